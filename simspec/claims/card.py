"""Cards of trained drafters: what was trained, and the accepted length on held-out sequences."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simspec.files import read_json
from simspec.stats import MIN_PROMPTS, Interval

MOST_BYTES = 1 << 20
FOLDERS = ("traces/smollm2/drafters", "traces/drafters", "real/tiny")
"""Where cards are, below a checkout; in `real/tiny` one a folder."""


@dataclass(frozen=True)
class Card:
    """A trained drafter.

    | field | meaning |
    | --- | --- |
    | name | the card's file |
    | drafter | the recipe |
    | asked | {dotted key: value} of settings, schedule, text and target |
    | K | tokens drafted in the evaluation |
    | length | Interval of the accepted length over held-out sequences, at 95% |
    | device | that trained it |
    """

    name: str
    drafter: str
    asked: Mapping[str, Any]
    K: int
    length: Interval
    device: str = ""

    @property
    def target(self) -> str:
        """Hash of the target's weights."""
        return str(self.asked.get("target.weights", ""))

    def setting(self, name: str) -> Any:
        """A setting of the recipe; None where it has none of that name."""
        return self.asked.get(f"settings.{name}")


def find_cards(root: Path) -> list[Card]:
    """The cards below a checkout; files of other kinds are left out.

    ValueError, one line with the path, for a card that cannot be read.
    """
    files: list[Path] = []
    for folder in FOLDERS:
        files += [*(root / folder).glob("*.json"), *(root / folder).glob("*/card.json")]
    cards = [read_card(path, str(path.relative_to(root))) for path in sorted(files)]
    return [card for card in cards if card is not None]


def read_card(path: Path, name: str) -> Card | None:
    """The card in a file; None for JSON that evaluates no trained drafter."""
    if path.stat().st_size > MOST_BYTES:
        raise ValueError(f"{path}: more than {MOST_BYTES} bytes, expected a drafter's card")
    return read_json(path, lambda data: _card(data, name), "drafter's card")


def _card(data: Any, name: str) -> Card | None:
    if not (isinstance(data, dict) and "evaluation" in data and "asked" in data):
        return None
    evaluation = data["evaluation"]
    try:
        length = evaluation["trained"]["accepted_length"]
        value, low, high = (float(length[key]) for key in ("value", "low", "high"))
        texts, K, drafter = int(length["texts"]), int(evaluation["K"]), str(data["drafter"])
        asked = flat(data["asked"])
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"lacks {error}, expected what `simspec train` writes") from None
    if not (0 <= low <= value <= high <= K <= 255 and texts >= MIN_PROMPTS):
        raise ValueError(
            f"accepted length {value} in [{low}, {high}] of {K} tokens on {texts} texts, expected "
            f"0 <= low <= value <= high <= K and {MIN_PROMPTS} texts or more"
        )
    interval = Interval(value, low, high, 0.95, texts)
    return Card(name, drafter, asked, K, interval, str(data.get("device", "")))


def flat(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{dotted key: value} of nested objects; lists become their JSON."""
    found: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = json.dumps(value) if isinstance(value, list) else value
    return found


def differences(a: Card, b: Card) -> set[str]:
    """The keys of `asked` in which two cards differ: one key is an ablation at an equal budget."""
    return {key for key in {*a.asked, *b.asked} if a.asked.get(key) != b.asked.get(key)}


def pairs(cards: Iterable[Card], drafter: str, allowed: set[str]) -> list[tuple[Card, Card]]:
    """Pairs of a drafter's cards, both ways, that differ in some of the `allowed` keys alone."""
    of = [card for card in cards if card.drafter == drafter]
    return [
        (a, b)
        for a in of
        for b in of
        if a is not b and a.K == b.K and (found := differences(a, b)) and found <= allowed
    ]
