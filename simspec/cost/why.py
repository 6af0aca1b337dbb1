"""Why a round pays or loses: what it takes beyond a plain step, by part.

speedup = tokens of a round / (1 + sum of its parts in plain steps)

| part | seconds of a round that computes c drafts and verifies d |
| --- | --- |
| drafting | draft[c] + catch_up[backlog], without the next two |
| reading cached tokens | kv_draft x context x c; the target reads its cache in a plain step too |
| reading features | c times `CostModel.charge` of what the policy reads |
| verification of rows | verify[d] - verify[0] |
| host and sampling | overhead + verify[0] - baseline |
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simspec.cost.gate import no_interval
from simspec.cost.model import CostModel
from simspec.cost.rounds import backlogs
from simspec.numerics.stats import Estimate
from simspec.output.frames import DataFrame, frame

DRAFTING, ROWS, CACHED = "drafting", "verification of rows", "reading cached tokens"
HOST, FEATURES = "host and sampling", "reading features"
REMEDIES = {
    DRAFTING: "a smaller or faster drafter, one that drafts in one pass, or n-grams",
    ROWS: "a shorter draft, a smaller batch, or a GPU with spare compute",
    CACHED: "a shorter context of the drafter",
    HOST: "asynchronous scheduling, CUDA graphs, or a larger target",
    FEATURES: "a read that does not wait, or a policy that reads nothing",
}
"""{part: what would make it smaller}."""
SAMPLED = {DRAFTING: "draft", ROWS: "verify", HOST: "overhead", FEATURES: "feature"}
"""{part: field of `CostPrecision.samples` that tells whether it was measured}."""
TITLE = "Where a round's time goes, in plain steps (95% intervals over prices)"


@dataclass(frozen=True)
class Why:
    """The mean round of a draft length or policy.

    tokens: that it commits; parts: {part: plain steps that it adds to one}, with intervals over the
    costs' replicates; unknown: parts that the costs do not price, or hold within other parts.
    """

    name: str
    tokens: float
    parts: Mapping[str, Estimate]
    unknown: tuple[str, ...]

    @property
    def steps(self) -> float:
        """The round in plain steps."""
        return 1 + sum(part.value for part in self.parts.values())

    @property
    def speedup(self) -> float:
        """Over plain decoding."""
        return self.tokens / self.steps

    @property
    def largest(self) -> str:
        """The part that takes most; "" where none takes any time."""
        part = max(self.parts, key=lambda part: self.parts[part].value)
        return part if self.parts[part].value > 0 else ""

    def without(self, part: str) -> float:
        """The speedup if the part took no time; at most the tokens of a round."""
        return self.tokens / max(self.steps - self.parts[part].value, 1.0)

    @property
    def disappoints(self) -> bool:
        """Whether the round gains less than half of its tokens beyond the first."""
        return self.speedup - 1 < (self.tokens - 1) / 2

    @property
    def sentence(self) -> str:
        """The largest part, and what would change it, in words."""
        steps, tokens = f"{self.steps:.2f} plain steps", f"{self.tokens:.2f} tokens"
        told = f"A round of {self.name} takes {steps} for {tokens}"
        if part := self.largest:
            name, remedy = part, REMEDIES[part]
            if part == ROWS and DRAFTING in self.unknown:
                name = f"{DRAFTING} with {ROWS}, which these costs do not tell apart"
                remedy = f"{remedy}; or {REMEDIES[DRAFTING]}"
            told += (
                f". Its largest part is {name}: {self.parts[part].text()} plain steps, without "
                f"which the speedup would be {self.without(part):.2f}, not {self.speedup:.2f}. "
                f"What would shrink it: {remedy}"
            )
        if self.unknown:
            told += f". Not known from these costs: {', '.join(self.unknown)}"
        return told


def split_rounds(
    name: str, rounds: Any, tokens: float, cost: CostModel, reads: Sequence[str] = ()
) -> Why:
    """The parts of a replay's mean round, of chains, at these costs.

    tokens: of the mean round; reads: the features that its policy reads. The parts add up to
    `CostModel.seconds` of `cost.reading(reads)` over the plain step, less 1. A part that is priced
    0 and has no samples was not measured, and is unknown.
    """
    computed, last = rounds.computed, len(cost.catch_up) - 1
    lag = np.minimum(backlogs(rounds), last)[computed > 0]
    counts = ((computed, cost.K), (rounds.drafted, cost.nodes), (lag, last))
    shares = [np.bincount(of, minlength=most + 1) / len(computed) for of, most in counts]
    every = [_parts(held, reads, *shares) for held in (cost, *cost.replicates)]
    parts = {part: np.array([held[part] for held in every]) for part in REMEDIES}
    measured = cost
    while measured.parents:
        measured = measured.parents[0]
    samples = {} if measured.precision is None else measured.precision.samples
    anywhere = _parts(cost, reads, *map(np.ones_like, shares))
    known = [part for part, field in SAMPLED.items() if np.any(samples.get(field, 0))]
    known += [] if reads else [FEATURES]
    unknown = [part for part, price in anywhere.items() if not price and part not in known]
    return why(name, tokens, parts, unknown, not no_interval(cost))


def _parts(cost: CostModel, reads: Sequence[str], c: Any, d: Any, b: Any) -> dict[str, float]:
    """Plain steps of each part; c, d, b: shares of rounds by drafts, rows and backlog."""
    drafts = c @ np.arange(len(c))
    cached = cost.kv_draft * cost.context * drafts
    seconds = {
        DRAFTING: c @ cost.draft + b @ cost.catch_up - cached,
        ROWS: d @ (cost.verify - cost.verify[0]),
        CACHED: cached,
        HOST: cost.overhead + cost.verify[0] - cost.baseline,
        FEATURES: cost.charge(reads) * drafts,
    }
    return {part: float(value) / cost.baseline for part, value in seconds.items()}


def why(
    name: str, tokens: float, parts: Mapping[str, NDArray[np.float64]],
    unknown: Sequence[str], limits: bool = True,
) -> Why:  # fmt: skip
    """The round of parts float64[1 + R] in plain steps, at the costs and at their R replicates;
    those left out are 0."""
    made = {}
    for part in REMEDIES:
        value, *drawn = parts.get(part, np.zeros(1)).tolist()
        spread = limits and drawn and np.ptp(drawn)
        low, high = np.quantile(drawn, (0.025, 0.975)).tolist() if spread else (np.nan, np.nan)
        made[part] = Estimate(value, low, high, 0.95, 0)
    return Why(name, tokens, made, tuple(unknown))


def why_frame(whys: Sequence[Why], about: str = "") -> DataFrame:
    """A column for each: its parts, their sum and its speedup; its notes are their sentences.

    Parts that the costs do not know are None.
    """
    columns = [
        {"a plain step": 1.0}
        | {part: None if part in of.unknown else of.parts[part] for part in REMEDIES}
        | {"a round": of.steps, "tokens of a round": of.tokens, "speedup": of.speedup}
        | {"without its largest part": of.without(of.largest) if of.largest else None}
        for of in whys
    ]
    return frame(
        [(part, *(column[part] for column in columns)) for part in columns[0]],
        ("part", *(of.name for of in whys)),
        title=f"{about}: {TITLE}" if about else TITLE,
        notes=[of.sentence for of in whys if of.tokens > 1],
        formats=dict.fromkeys((of.name for of in whys), ".2f"),
    )
