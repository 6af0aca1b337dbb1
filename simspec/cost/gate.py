"""The gate of printed speedups: what prices allow, and which measurements settle a question.

Every command that prints a speedup asks here first. A speculative round verifies its drafts in one
pass of the target, so it costs about a plain step or more, and its speedup is at most the tokens
that it commits. Figures beyond that are faults of a price or of a clock, whatever their decimals.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite

import numpy as np

from simspec.cost.model import CostModel

LEAST_ROUND = 0.9
"""Least cost of a round in plain steps. Below 1 since engines run a pass over a few rows up to 7%
faster than one over a single row (vLLM 0.32 on a CPU: 0.935 [0.92, 0.95] for three drafts, 48
blocks; an H200: 0.96, 292 blocks)."""
MIN_BLOCKS = 4
"""Timing blocks, below which a price has no interval and confirms nothing."""
SETTLED = 1.1
"""Largest ratio of two measurements of one length on the same prompts that counts as noise."""
SECONDS = 1e-6, 600.0
"""Least and most seconds of a pass or a request that a clock can mean."""


class PriceError(ValueError):
    """A price, or a measured speedup, that cannot be true."""


@dataclass(frozen=True)
class Claim:
    """A speedup that a command is about to print, and the tokens a round that it would come from.

    name: of the policy or length; low: lower end of the speedup's interval, where it has one.
    """

    name: str
    speedup: float
    tokens: float
    low: float | None = None

    @property
    def possible(self) -> bool:
        """Whether the mean round costs LEAST_ROUND plain steps or more, or is that within noise."""
        most = self.tokens / LEAST_ROUND
        noisy = self.low is not None and self.low <= self.tokens and self.speedup <= 1.5 * most
        return not isfinite(self.tokens) or self.speedup <= most or noisy


def check_claims(claims: Iterable[Claim], cost: CostModel | None = None, source: str = "") -> None:
    """PriceError for the first claim above tokens a round, beyond noise.

    cost: whose cell is named; None for speedups that a clock measured. source: the costs' file or
    the run.
    """
    for claim in claims:
        if claim.possible:
            continue
        where = f"{source}: " if source else ""
        said = f"{where}{claim.name} would be {claim.speedup:.2f} times as fast as plain decoding"
        limit = f"at {claim.tokens:.2f} tokens a round, which no round can reach"
        if cost is None:
            raise PriceError(
                f"{said} {limit}: the clock was disturbed; run again on an idle machine"
            )
        raise PriceError(f"{said} {limit}: {cheapest_round(cost)}; measure the costs again, idle")


def cheapest_round(cost: CostModel) -> str:
    """The cell of the costs whose rounds are cheapest, in words."""
    drafted = np.arange(1, cost.K + 1)
    rounds = (cost.draft[drafted] + cost.verify[drafted] + cost.overhead) / cost.baseline
    k = int(drafted[np.argmin(rounds)]) if len(drafted) else 0
    least = float(rounds.min()) if len(drafted) else float(cost.verify[0] / cost.baseline)
    return f"its costs have a round of {k} drafts at {least:.2f} of a plain step"


def no_interval(cost: CostModel) -> str:
    """Why intervals at these measured costs would hold nothing; "" where they hold.

    A ratio that somebody gave, or a published figure, claims no precision, and its intervals say
    that they cover prompts only.
    """
    if cost.parents:
        return next(filter(None, map(no_interval, cost.parents)), "")
    held = cost.precision
    if held is None:
        return ""
    blocks = held.blocks - held.disturbed
    if held.blocks and blocks < MIN_BLOCKS:
        return f"{blocks} undisturbed timing blocks, expected {MIN_BLOCKS} or more"
    verify = np.array(held.replicates.get("verify", []), dtype=float)
    if len(verify) and cost.K and not np.ptp(verify[:, 1:], axis=0).any():
        return f"{len(verify)} replicates that are all alike: one sample a cell"
    return ""


def settled(first: float, second: float) -> bool:
    """Whether two measurements of one length on the same prompts agree within noise."""
    return 1 / SETTLED <= first / second <= SETTLED


def check_seconds(seconds: float, what: str) -> None:
    """PriceError unless a pass or request took at least 1 us and at most 10 minutes."""
    least, most = SECONDS
    if not least <= seconds <= most:
        raise PriceError(
            f"{what} took {seconds:g} s by its clock, expected {least:g} to {most:g}: its clock or "
            "its report is broken"
        )
