"""Totals of rounds: accepted lengths, and acceptance by depth at a constant draft length."""

from typing import Any

import numpy as np

from simspec.imports.depth_counts import DEEPEST, DepthCounts, of_totals

PER_ROUND = "1 + accepted drafts / rounds with a draft (bonus token included)"
MIXED = (
    "rounds of several draft lengths are in one histogram: deeper tokens were tried by some rounds "
    "only, and which is lost"
)
LOST = 0.01
"""Largest share of rounds whose draft may be short, such as the last ones of requests."""


def mean_of(rounds: Any, accepted: Any) -> float | None:
    """1 + accepted / rounds: of totals, or the mean of it over requests that have rounds."""
    rounds, accepted = np.atleast_1d(rounds), np.atleast_1d(accepted)
    drafting = rounds > 0
    if not drafting.any():
        return None
    return float((1 + accepted[drafting] / rounds[drafting]).mean())


def at_constant_length(
    rounds: int, drafted: int, accepted: int, at_least: np.ndarray, slack: float = 0.0
) -> tuple[dict[int, DepthCounts], dict[str, str], list[str]]:
    """({K: counts}, withheld, notes) of rounds that accepted at least 1 .. K tokens.

    Rounds whose draft is shorter than K are at most the K rounds - drafted missing tokens. Up to
    1% of the rounds they are taken as K long, with a note; above, the draft length varies. slack:
    accepted tokens that rounded rates may miss.
    """
    K = len(at_least)
    missing = K * rounds - drafted
    if not 1 <= K <= DEEPEST or missing < 0:
        raise ValueError(
            f"{drafted} tokens are drafted in {rounds} rounds with {K} positions, expected at most "
            f"{K} each: the file is of two runs, or counts the bonus token"
        )
    if abs(int(at_least.sum()) - accepted) > slack:
        raise ValueError(
            f"positions sum to {int(at_least.sum())} accepted tokens, the total is {accepted}: "
            "expected the same"
        )
    if missing > LOST * rounds:
        return {}, {"acceptance by depth": MIXED}, []
    notes = [f"{missing} drafted tokens fewer than K a round: acceptance is up to "
             f"{missing / rounds:.4f} too low at each depth"] if missing else []  # fmt: skip
    return {K: of_totals(rounds, at_least)}, {}, notes
