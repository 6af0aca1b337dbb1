"""Arguments of `simspec train` as they are typed: names of drafters, paths, settings."""

import json
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path

from real.drafters import BUILTIN, trainable

PREDICTORS = "predictors"
"""In place of a drafter: the acceptance predictors of those that are there."""


def train_choices() -> tuple[str, ...]:
    """All drafters that `simspec train` makes: self_skip's settings are searched."""
    return (*trainable(), "self_skip")


def split_arguments(words: Sequence[str]) -> tuple[str | None, tuple[str, ...]]:
    """The drafter to train, or None for all, and the text; an existing path is never a drafter."""
    first = words[0] if words else ""
    if first == PREDICTORS and not Path(first).exists():
        return first, tuple(words[1:])
    if first and Path(first).exists():
        return None, tuple(words)
    if first in train_choices():
        return first, tuple(words[1:])
    if first in BUILTIN:
        raise ValueError(
            f"{first} has nothing to learn; expected one of {', '.join(train_choices())}, or text"
        )
    if near := get_close_matches(first, train_choices(), n=1):
        raise ValueError(
            f"{first} does not exist, and no drafter has that name; did you mean {near[0]}?"
        )
    return None, tuple(words)


def read_settings(items: Iterable[str]) -> dict:
    """Settings from key=value items; a value is JSON if possible (4, true, [8, 9]), else text."""
    settings: dict = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not (key and equals) or key in settings:
            raise ValueError(
                f"--set {item!r} is no setting; expected key=value, such as layers=2, each key once"
            )
        try:
            settings[key] = json.loads(value)
        except (ValueError, RecursionError):
            settings[key] = value
    return settings
