"""Whether figures may be published: enough repeats and prompts, and nothing impossible."""

from collections.abc import Sequence

from real.bench.race_rows import RaceRow
from real.prompts import ALL

LEAST_REPEATS, LEAST_PROMPTS = 5, 20
"""Repeats, an odd number, and prompts of a measurement."""


def shortcomings(repeats: int, prompts: int) -> list[str]:
    """Reasons why so many repeats and prompts are no measurement; [] where they are."""
    reasons = []
    if repeats < LEAST_REPEATS or not repeats % 2:
        reasons.append(f"{repeats} repeats, expected an odd number of at least {LEAST_REPEATS}")
    if prompts < LEAST_PROMPTS:
        reasons.append(f"{prompts} prompts, expected at least {LEAST_PROMPTS}")
    return reasons


def impossible(rows: Sequence[RaceRow]) -> list[str]:
    """A reason for each contestant that is surely faster than its tokens a pass allow.

    A pass that verifies drafts is not cheaper than a plain pass of one row on the same engine. So
    speedup <= tokens a pass. Both are of the same prompts and vary together, so the interval is of
    their ratio, `pass_ratio`: a reason where it lies above 1. At a true ratio of 1, which a drafter
    that costs nothing has, one contestant of 40 is reported by chance.
    """
    return [
        f"{r.contestant} is faster than its passes allow, {r.own:.3f}x its own plain decoding at "
        f"{r.per_pass:.3f} tokens a pass (ratio {r.pass_ratio:.3f} [{r.pass_low:.3f}, "
        f"{r.pass_high:.3f}]): the plain pass is handicapped, or noise"
        for r in rows
        if r.group == ALL and r.drafts and r.pass_low is not None and r.pass_low > 1
    ]
