"""Modelled time of each prompt under each policy: what intervals over prompts resample."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simspec.cost.model import CostModel
from simspec.replay.replay import run_seconds
from simspec.replay.sweep import check_sweep, plan_jobs
from simspec.trace.trace import Trace

Seconds = dict[str, NDArray[np.float64]]


def prompt_seconds(
    trace: Trace, policies: Sequence[Any], cost: CostModel, replicates: int, seed: int
) -> tuple[Seconds, NDArray[np.int64]]:
    """({policy name: modelled seconds float64[S], averaged over replicates}, tokens int64[S])."""
    seconds, tokens = replicated_seconds(trace, policies, cost, replicates, seed)
    return {name: spent[:, 0] for name, spent in seconds.items()}, tokens


def replicated_seconds(
    trace: Trace,
    policies: Sequence[Any],
    cost: CostModel,
    replicates: int,
    seed: int,
    jobs: int = 1,
) -> tuple[Seconds, NDArray[np.int64]]:
    """As `prompt_seconds`, float64[S, 1 + R] each: at the costs, then at their R replicates.

    No policy is replayed at a replicate: each plans with the costs as measured, and its rounds are
    priced again. jobs: threads, on which results do not depend.
    """
    check_sweep("prompt", replicates, jobs)
    todo = plan_jobs({"": trace}, policies, {"": cost}, replicates, seed)
    seconds: Seconds = {}
    for job, spent in zip(todo, run_seconds(todo, jobs)):
        for _ in range(1 if job.random else replicates):
            total = seconds.get(job.policy.name, 0.0)
            seconds[job.policy.name] = total + spent / replicates
    return seconds, np.diff(trace.offset)
