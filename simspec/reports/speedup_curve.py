"""Speedup against draft length, with adaptive policies beside it (EESD Figure 3)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simspec.numerics.stats import MIN_PROMPTS, Interval, ratio
from simspec.policies.fixed import fixed
from simspec.replay.sweep import cost_model
from simspec.reports.prompt_seconds import replicated_seconds
from simspec.trace.trace import Trace


@dataclass(frozen=True)
class Point:
    """A policy's modelled speedup on a recording; K is a fixed draft length, None if adaptive.

    Of fewer than 8 prompts the interval is the value alone: low = high = value.
    """

    policy: str
    K: int | None
    speedup: Interval


def speedup_curve(
    trace: Trace,
    policies: Sequence[Any],
    cost: Any,
    replicates: int = 4,
    seed: int = 0,
    longest: int | None = None,
    level: float = 0.95,
    jobs: int = 1,
) -> list[Point]:
    """Points of fixed(0) .. fixed(longest), then of `policies` that are no fixed length.

    speedup = sum over prompts of L T_plain / sum of modelled seconds, mean of replicates, resampled
    by prompt and by replicate of the costs (`stats.ratio`). longest: default as deep as trace and
    cost reach. Policies as for `sweep`; ValueError as there, and for a length that is not recorded
    or priced.
    """
    most = min(trace.K, getattr(cost, "K", trace.K))
    longest = most if longest is None else longest
    if not 0 <= longest <= most:
        raise ValueError(
            f"longest is {longest}, expected 0 to {most}: "
            "the recording and its costs reach no further"
        )
    lengths = {fixed(k).name: k for k in range(longest + 1)}
    adaptive = [policy for policy in policies if not _is_fixed(policy)]
    cost = cost_model(cost, trace)
    policies = [*map(fixed, range(longest + 1)), *adaptive]
    seconds, tokens = replicated_seconds(trace, policies, cost, replicates, seed, jobs)
    plain = tokens * cost.baseline
    return [
        Point(name, lengths.get(name), speedup_of(plain, spent, level, seed))
        for name, spent in seconds.items()
    ]


def speedup_of(
    plain: NDArray[np.float64], spent: NDArray[np.float64], level: float = 0.95, seed: int = 0
) -> Interval:
    """Plain decoding's seconds [P] over a policy's, as for `stats.ratio`; of too few prompts the
    value alone."""
    if len(plain) < MIN_PROMPTS:
        value = float(plain.sum() / spent.reshape(len(plain), -1)[:, 0].sum())
        return Interval(value, value, value, level, len(plain))
    return ratio(plain, spent, level=level, seed=seed)


def _is_fixed(policy: Any) -> bool:
    name = policy if isinstance(policy, str) else getattr(policy, "name", "")
    return name.partition(":")[0] == "fixed"
