"""Totals of rounds: accepted lengths, and acceptance by depth at a constant draft length."""

from typing import Any

import numpy as np

from simspec.imports.depth_counts import DEEPEST, DepthCounts, of_totals
from simspec.imports.fields import Fields

PER_ROUND = "1 + accepted drafts / rounds with a draft (bonus token included)"
MIXED = (
    "rounds of several draft lengths are in one histogram: deeper tokens were tried by some rounds "
    "only, and which is lost"
)
ROUNDED = 0.0051
"""Largest difference of a figure from its own counts, such as of two decimals."""

LOST = 0.01
"""Largest share of rounds whose draft may be short, such as the last ones of requests."""


def mean_of(rounds: Any, accepted: Any) -> float | None:
    """1 + accepted / rounds: of totals, or the mean of it over requests that have rounds."""
    rounds, accepted = np.atleast_1d(rounds), np.atleast_1d(accepted)
    drafting = rounds > 0
    if not drafting.any():
        return None
    return float((1 + accepted[drafting] / rounds[drafting]).mean())


def rounding_slack(rounds: int, K: int) -> float:
    """Accepted tokens that K rates of three decimals may miss or add, over all positions."""
    error = 0.0005 * rounds
    return K * (error + 0.5) if error >= 0.5 else 0.0


def check_figure(fields: Fields, key: str, expected: float) -> None:
    """ValueError where a figure of the file is there and not `expected`, to two decimals.

    Another figure under a known name is another definition: of the bonus token, or tested tokens.
    """
    if key in fields and abs(fields.number(key) - expected) > ROUNDED:
        counts = "a length with the bonus token, or accepted / drafted tokens"
        raise fields.error(key, fields.number(key), f"{expected:.4f} by the counts ({counts})")


def check_means(
    fields: Fields, length: str, rate: str, rounds: int, drafted: int, accepted: int
) -> None:
    """`check_figure` of a mean length and of a rate, where there are rounds and drafts."""
    if rounds:
        check_figure(fields, length, 1 + accepted / rounds)
    if drafted:
        check_figure(fields, rate, accepted / drafted)


def at_constant_length(
    rounds: int, drafted: int, accepted: int, at_least: np.ndarray, slack: float = 0.0
) -> tuple[dict[int, DepthCounts], dict[str, str], list[str]]:
    """({K: counts}, withheld, notes) of rounds that accepted at least 1 to K tokens.

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
