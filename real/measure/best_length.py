"""Which draft length is best at measured costs, and whether these costs settle it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simspec import CostModel, Trace, replay
from simspec.numerics.formulas import expected_committed
from simspec.policies.fixed import fixed

ACCEPTANCE = 0.5, 0.7, 0.9
"""Of a draft token, where no recording says it."""
LEAST = 1e-3
"""Plain steps of a round: a replicate of one or two blocks may be far below its cost."""
LOSS = 0.01
"""A length is settled where another gains no more than this share, at 95% of the replicates."""


@dataclass(frozen=True)
class BestLength:
    """The best fixed draft length at one acceptance.

    | field | meaning |
    | --- | --- |
    | acceptance | "recorded", or that of every draft token |
    | K, speedup | the best length, and its speedup over plain decoding |
    | rival | the length that is best in most replicates where K is not; else the second best |
    | row, half_width | rows of the pass that decides, and its relative half-width |
    | loss | share that K loses to the best length, 95% quantile over replicates |
    """

    acceptance: str
    K: int
    speedup: float
    rival: int
    row: int
    half_width: float
    loss: float

    @property
    def settled(self) -> bool:
        """Whether the costs are certain enough to choose K."""
        return self.loss <= LOSS

    def describe(self) -> str:
        """One line."""
        state = "settled" if self.settled else "not settled"
        of = "recorded acceptance" if self.acceptance == "recorded" else f"a = {self.acceptance}"
        return (
            f"{of}: K = {self.K} is best ({self.speedup:.2f}x), {state}: it loses at most "
            f"{self.loss:.1%}; the pass of {self.row} rows, +-{self.half_width:.1%}, decides"
        )


def tokens_per_round(trace: Trace | None, K: int) -> dict[str, np.ndarray]:
    """{acceptance: float64 [K + 1], tokens a round of every fixed length}, recorded or assumed."""
    if trace is not None:
        rounds = [len(replay(trace, fixed(k), seed=0)) for k in range(K + 1)]
        return {"recorded": trace.rows / np.array(rounds)}
    return {
        f"{a:g}": np.array([expected_committed(a, k) for k in range(K + 1)]) for a in ACCEPTANCE
    }


def best_length(
    acceptance: str, tokens: Sequence[float] | np.ndarray, cost: CostModel
) -> BestLength:
    """The best of K = 0 .. len(tokens) - 1; a round of K tokens emits `tokens[K]`.

    Catching up, features and ends of sequences are left out: they hardly move the best length.
    """
    assert cost.precision is not None
    emitted = np.asarray(tokens)
    lengths = len(emitted)
    point = _speedups(
        emitted, cost.draft[:lengths] / cost.baseline, cost.verify[:lengths] / cost.baseline,
        cost.overhead / cost.baseline,
    )  # fmt: skip
    K = int(point.argmax())
    held = cost.precision.replicates
    if not held:
        return BestLength(acceptance, K, float(point[K]), K, K + 1, float("inf"), float("inf"))
    drawn = np.array([
        _speedups(emitted, np.array(draft[:lengths]), np.array(verify[:lengths]), overhead)
        for draft, verify, overhead in zip(held["draft"], held["verify"], held["overhead"])
    ])  # fmt: skip
    loss = drawn.max(1) / drawn[:, K] - 1
    other = drawn.argmax(1)[drawn.argmax(1) != K]
    if len(other):
        rival = int(np.bincount(other).argmax())
    else:
        rival = int(np.argsort(point)[-2]) if lengths > 1 else K
    verify = np.array(held["verify"])
    error = 2 * verify.std(axis=0, ddof=1) / np.maximum(verify.mean(axis=0), 1e-9)
    row = max(K, rival, key=lambda k: error[k])
    return BestLength(
        acceptance,
        K,
        float(point[K]),
        rival,
        row + 1,
        float(error[row]),
        float(np.quantile(loss, 0.95)),
    )


def _speedups(
    emitted: np.ndarray, draft: np.ndarray, verify: np.ndarray, overhead: float
) -> np.ndarray:
    """Of every length over plain decoding; that of no drafts is 1."""
    speedup = emitted / np.maximum(draft + verify + overhead, LEAST)
    speedup[0] = 1.0
    return speedup
