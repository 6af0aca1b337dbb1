"""What there is to learn: each drafter with weights of its own, its part, its loss, and the settings that both take."""

import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path

import torch
from torch import nn

from real.draft import TrainingRecipe
from real.drafters import BUILTIN, trainable
from real.model.decoder import Decoder
from real.train.trainer import Plan


def recipe_of(drafter: str) -> TrainingRecipe:
    """The training recipe of a drafter; ValueError for one without."""
    recipe = BUILTIN[drafter].recipe if drafter in BUILTIN else None
    if recipe is None:
        raise ValueError(
            f"drafter {drafter!r} has nothing to train; expected one of {', '.join(trainable())}"
        )
    return recipe


def train_choices() -> tuple[str, ...]:
    """All drafters that `simspec train` makes: self_skip's settings are searched."""
    return (*trainable(), "self_skip")


@dataclass(frozen=True)
class DrafterTraining:
    """One drafter to train.

    | field | meaning |
    | --- | --- |
    | drafter | its name in `real.drafters.BUILTIN` |
    | plan | how long and how fast |
    | soft | towards the target's distribution, or the text's own tokens |
    | settings | keywords of its part, and of its loss |
    | folder | where in the bundle, and in the work folder, it goes |
    """

    drafter: str
    plan: Plan
    soft: bool
    settings: Mapping[str, object] = field(default_factory=dict)
    folder: str = ""

    @property
    def place(self) -> str:
        return self.folder or self.drafter


def training(
    drafter: str,
    plan: Plan | None = None,
    soft: bool | None = None,
    settings: Mapping[str, object] | None = None,
    folder: str = "",
    rate: float | None = None,
) -> DrafterTraining:
    """The lesson of a drafter as its recipe has it, where nothing else is said; ValueError for a setting that it does not know."""
    recipe = recipe_of(drafter)
    known = _keywords(recipe.head, 1) + _keywords(recipe.loss, 5)
    if unknown := [name for name in settings or {} if name not in known]:
        raise ValueError(
            f"{drafter} has no setting {unknown[0]!r}; expected one of {', '.join(known)}"
        )
    check_folder(folder)
    if rate is not None and not 0 < rate < 1:
        raise ValueError(
            f"--rate is {rate}; expected a peak learning rate between 0 and 1, such as {recipe.rate}"
        )
    plan = plan or Plan(minutes=6, rows=16, length=192)
    soft = recipe.soft if soft is None else soft
    return DrafterTraining(
        drafter,
        replace(plan, rate=recipe.rate if rate is None else rate),
        soft,
        {**recipe.defaults, **(settings or {})},
        folder,
    )


def named(words: Sequence[str]) -> tuple[str | None, tuple[str, ...]]:
    """What `simspec train` was told: a drafter, or None for all of them, and the text; a path that is there is never a name."""
    first = words[0]
    if Path(first).exists():
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


def _keywords(function: Callable, skip: int) -> list[str]:
    return list(inspect.signature(function).parameters)[skip:]


def fresh(training: DrafterTraining, target: Decoder) -> nn.Module:
    """What learns, as it is before any training, by the lesson's seed; ValueError, one line, for settings that it refuses."""
    recipe, known = recipe_of(training.drafter), _keywords(recipe_of(training.drafter).head, 1)
    torch.manual_seed(training.plan.seed + 1)
    try:
        return recipe.head(
            target, **{k: v for k, v in training.settings.items() if k in known}
        ).requires_grad_(True)
    except (TypeError, RuntimeError) as error:
        raise ValueError(
            f"{training.drafter} cannot be made with {dict(training.settings)}: {' '.join(str(error).split())[:200]}"
        ) from error


def check_folder(name: str) -> None:
    """ValueError for a name that is no folder of its own in a bundle; "" is the drafter's."""
    if name and (Path(name).name != name or name in (".", "..", "target")):
        raise ValueError(
            f"--name is {name!r}; expected the name of a folder in the bundle, such as eagle-token"
        )


def loss_settings(training: DrafterTraining) -> dict:
    """Those of the lesson's settings that its loss takes."""
    known = _keywords(recipe_of(training.drafter).loss, 5)
    return {k: v for k, v in training.settings.items() if k in known}


def read_settings(given: Iterable[str]) -> dict:
    """Settings as they are typed: key=value, the value JSON where it can be read as such (4, 0.5, true, [8, 9]), else a text."""
    made = {}
    for item in given:
        key, equals, value = item.partition("=")
        if not (key and equals) or key in made:
            raise ValueError(
                f"--set {item!r} is no setting; expected key=value, such as layers=2, each key once"
            )
        try:
            made[key] = json.loads(value)
        except (ValueError, RecursionError):
            made[key] = value
    return made
