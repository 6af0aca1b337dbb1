"""Cards of trained drafters: what was trained, and the accepted length on held-out sequences."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simspec.numerics.stats import MIN_PROMPTS, Estimate
from simspec.output.files import read_json
from simspec.papers.evidence import Array

MOST_BYTES = 1 << 20
FOLDERS = (
    "traces/ablations", "traces/ablations-seed1", "traces/smollm2/drafters", "traces/drafters",
    "real/tiny",
)  # fmt: skip
"""Folders of a checkout that hold cards; in `real/tiny` one a folder. Tables of the papers show
the first; claims compare cards of one training seed."""
HELD_OUT = "held-out text"
SUMS = ("accepted", "drafts", "tested")


@dataclass(frozen=True, eq=False)
class Lengths:
    """Accepted lengths of drafts of K from every position of some sequences.

    | field | meaning |
    | --- | --- |
    | where | `HELD_OUT`, or the recording whose sequences they are |
    | interval | Estimate of the mean over sequences, at 95% |
    | sums | float64[S, 3]: accepted tokens, drafts and tested tokens by sequence; None: not kept |
    | repeated | share of repeated 8-grams; None: not stated |
    """

    where: str
    interval: Estimate
    sums: Array | None = None
    repeated: float | None = None


@dataclass(frozen=True, eq=False)
class Card:
    """A trained drafter.

    | field | meaning |
    | --- | --- |
    | name, path | the card's file |
    | drafter | the recipe |
    | asked | {dotted key: value} of settings, schedule, text and target |
    | K | tokens drafted in the evaluation |
    | lengths | (Lengths,) on held-out text, then along recordings |
    | device | that trained it |
    | data | the whole card |
    """

    name: str
    path: Path
    drafter: str
    asked: Mapping[str, Any]
    K: int
    lengths: tuple[Lengths, ...]
    device: str
    data: Mapping[str, Any]

    @property
    def target(self) -> str:
        """Hash of the target's weights."""
        return str(self.asked.get("target.weights", ""))

    @property
    def label(self) -> str:
        """The file's name without its ending, and the training seed unless it is 0."""
        seed = self.asked.get("plan.seed", 0)
        return f"{self.path.stem} (seed {seed})" if seed else self.path.stem

    @property
    def recording(self) -> Path:
        """The drafter's recording next to the card, if there is one."""
        return self.path.with_suffix(".parquet")

    def setting(self, name: str) -> Any:
        """A setting of the recipe; None where it has none of that name."""
        return self.asked.get(f"settings.{name}", self.asked.get(f"loss.{name}"))


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
    return read_json(path, lambda data: _card(data, path, name), "drafter's card")


def _card(data: Any, path: Path, name: str) -> Card | None:
    if not (isinstance(data, dict) and "evaluation" in data and "asked" in data):
        return None
    evaluation = data["evaluation"]
    try:
        trained, K, asked = evaluation["trained"], int(evaluation["K"]), flat(data["asked"])
        lengths, drafter = [_lengths(HELD_OUT, trained, evaluation, K)], str(data["drafter"])
        if "recorded" in evaluation:
            recorded = evaluation["recorded"]
            lengths.append(_lengths(str(recorded["recording"]), recorded, recorded, K))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"lacks {error}, expected what `simspec train` writes") from None
    return Card(name, path, drafter, asked, K, tuple(lengths), str(data.get("device", "")), data)


def _lengths(where: str, found: Mapping[str, Any], about: Mapping[str, Any], K: int) -> Lengths:
    length = found["accepted_length"]
    value, low, high = (float(length[key]) for key in ("value", "low", "high"))
    texts, repeated = int(length["texts"]), about.get("repeated_8grams")
    if not (0 <= low <= value <= high <= K <= 255 and texts >= MIN_PROMPTS):
        raise ValueError(
            f"accepted length {value} in [{low}, {high}] of {K} tokens on {texts} texts, expected "
            f"0 <= low <= value <= high <= K and {MIN_PROMPTS} texts or more"
        )
    sums = _sums(found["by_sequence"], value, K) if "by_sequence" in found else None
    interval = Estimate(value, low, high, 0.95, texts)
    return Lengths(where, interval, sums, None if repeated is None else float(repeated))


def _sums(by_sequence: Mapping[str, Any], value: float, K: int) -> Array:
    """float64[S, 3] of SUMS; ValueError where they do not give the accepted length `value`."""
    sums: Array = np.array([by_sequence[key] for key in SUMS], np.float64).T
    accepted, drafts, tested = sums.T
    if not ((accepted >= 0) & (accepted <= tested) & (tested <= K * drafts)).all():
        raise ValueError(f"by_sequence accepts less than 0, or more than {K} tokens a draft")
    if not abs(accepted.sum() - value * drafts.sum()) <= 1e-3 * drafts.sum():
        raise ValueError(f"by_sequence does not give the accepted length {value}")
    return sums


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


def shared_lengths(*cards: Card) -> list[tuple[Lengths, ...]]:
    """The lengths of several cards on the same sequences; one tuple for each set of sequences."""
    found = []
    for first in cards[0].lengths:
        alike = [
            length
            for card in cards
            for length in card.lengths
            if length.where == first.where and _same(first, length)
        ]
        if len(alike) == len(cards):
            found.append(tuple(alike))
    return found


def _same(a: Lengths, b: Lengths) -> bool:
    """Whether both were taken on the same sequences, as far as the cards tell."""
    if a.sums is None or b.sums is None:
        return a.interval.prompts == b.interval.prompts
    return np.array_equal(a.sums[:, 1], b.sums[:, 1])
