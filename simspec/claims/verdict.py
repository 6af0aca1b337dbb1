"""Verdicts on claims: held, did not hold or undecided, with one error rate for all of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simspec.claims.claim import Claim, Inputs
from simspec.claims.evidence import Evidence
from simspec.claims.price import Price
from simspec.reports.comparison import holm

HELD, FAILED, UNDECIDED = "held", "did not hold", "undecided"
BY_CONSTRUCTION = "by construction"
ALPHA = 0.05
COVERED = (
    f"The chance that any 'held' or 'did not hold' is wrong is {ALPHA:.0%} at most over the draw "
    "of prompts, given these recordings, costs and cards. It does not cover the training seed "
    "(one for each drafter), errors of the measured costs, or tests that changed after a look at "
    "results."
)
"""What the error rate of the verdicts covers."""
NO_PRICE = Price("no price")


@dataclass(frozen=True)
class Verdict:
    """A claim at one price.

    | field | meaning |
    | --- | --- |
    | claim, price | Claim, and the price's name |
    | verdict | held, by construction, did not hold or undecided |
    | p | of the verdict's error, after Holm's step-down over all verdicts; 1 without evidence |
    | reason | '' or why no evidence counts |
    | evidence | (Evidence,) |
    """

    claim: Claim
    price: str
    verdict: str
    p: float
    reason: str
    evidence: tuple[Evidence, ...]

    @property
    def inside(self) -> tuple[int, int]:
        """(recordings that count whose 95% intervals all lie within the bounds, all that count)."""
        of: dict[str, bool] = {}
        for e in self.evidence:
            if e.source.counted:
                low, high = e.bounds
                within = low < e.interval.low and e.interval.high < high
                of[e.source.name] = of.get(e.source.name, True) and within
        return sum(of.values()), len(of)

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        names = "price", "verdict", "p", "reason"
        return {name: getattr(self, name) for name in names} | {
            "inside": self.inside,
            "recordings": list(dict.fromkeys(e.source.name for e in self.evidence)),
            "evidence": [e.to_dict() for e in self.evidence],
        }


def verdicts_on(
    claims: Sequence[Claim], inputs: Inputs, progress: Callable[[Claim], None] = lambda claim: None
) -> list[Verdict]:
    """The verdict on each claim at each of its prices; `progress` is called before each claim."""
    found = []
    for claim in claims:
        progress(claim)
        for price in claim.prices or (NO_PRICE,):
            evidence = tuple(claim.test(inputs, price))
            excluded = dict.fromkeys(e.source.excluded for e in evidence)
            reason = f"nothing counts ({', '.join(excluded)})" if evidence else claim.needs
            reason = "" if "" in excluded else reason
            found.append(Verdict(claim, price.name, UNDECIDED, 1.0, reason, evidence))
    return decided(found)


def decided(found: Sequence[Verdict], alpha: float = ALPHA) -> list[Verdict]:
    """The verdicts; any 'held' or 'did not hold' is wrong with a chance of alpha at most.

    The chance is over the draw of prompts, given recordings, costs and cards, see `COVERED`.
    With p_i and q_i the p-values of `Evidence.inside` and `outside` of n pieces of evidence:

    | verdict | shown | p-value |
    | --- | --- | --- |
    | held, or by construction | every piece | 2 max p_i |
    | did not hold | at least one piece contradicts | 2 n min q_i |

    The smaller is Holm-adjusted over all verdicts that have evidence.
    """
    sides = [_sides(verdict.evidence) for verdict in found]
    tested = [i for i, side in enumerate(sides) if side is not None]
    p = np.array([min(1.0, 2 * min(side)) for side in sides if side is not None])
    adjusted = dict(zip(tested, holm(p))) if tested else {}
    rows = []
    for i, (verdict, side) in enumerate(zip(found, sides)):
        if side is None:
            rows.append(verdict)
            continue
        held = BY_CONSTRUCTION if verdict.claim.construction else HELD
        word = held if side[0] <= side[1] else FAILED
        q = float(adjusted[i])
        rows.append(replace(verdict, p=q, verdict=word if q <= alpha else UNDECIDED))
    return rows


def _sides(evidence: Sequence[Evidence]) -> tuple[float, float] | None:
    """(p-value of 'held', p-value of 'did not hold') of the pieces that count; None: no piece."""
    counted = [e for e in evidence if e.source.counted]
    if not counted:
        return None
    against = len(counted) * min(e.outside for e in counted)
    return max(e.inside for e in counted), min(1.0, against)
