"""A CostModel of medians of timed rounds."""

from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from real.decode.phase_timer import DRAFTING, OTHER, POLICY, VERIFICATION
from real.measure.job import MAX_BACKLOG, NODES, WIDTH, Job
from real.measure.round_times import RoundTimes, TimedRound
from simspec import CostModel


def median_cost(
    times: RoundTimes, trees: Mapping[Job, list[float]], K: int, name: str, device: str
) -> CostModel:
    """Medians of chain rounds and of tree passes, as `real.measure.measure` defines them.

    A sequence's first round counts only for a draft length that no later round computed.
    ValueError where some draft length never occurred.
    """
    later = {r.computed for r in times.chains if not r.first}
    rounds = [r for r in times.chains if not r.first or r.computed not in later]
    drafting: dict[tuple[int, int], list[float]] = defaultdict(list)
    passes: dict[int, list[float]] = defaultdict(list)
    for r in rounds:
        drafting[r.computed, r.backlog].append(r.seconds[DRAFTING] + r.seconds[POLICY])
        passes[r.computed].append(r.seconds[VERIFICATION] + r.seconds[OTHER])
    overhead = float(
        np.median([r.seconds[POLICY] for r in times.chains if not r.first and not r.computed])
    )
    draft = [max(_draft_median(drafting, j) - overhead, 0.0) for j in range(1, K + 1)]
    tree_passes = [float(np.median(trees[job])) for job in trees if job.kind == NODES]
    return CostModel(
        draft=np.array([0.0, *draft]),
        verify=np.array([*(_median(passes.get(j, []), j) for j in range(K + 1)), *tree_passes]),
        catch_up=np.array(_catch_up(drafting)),
        overhead=overhead,
        baseline=float(np.median([r.seconds.sum() for r in times.plain if not r.first])),
        name=name,
        device=device,
        feature=_feature_seconds(times.features, overhead),
        node=_node_seconds(trees),
    )


def _median(seconds: list[float], j: int) -> float:
    if not seconds:
        raise ValueError(
            f"the drafter never drafted {j} tokens in a round; "
            "measure with a smaller depth, or a longer context"
        )
    return float(np.median(seconds))


def _draft_median(drafting: Mapping[tuple[int, int], list[float]], j: int) -> float:
    """Median of drafts of j tokens without a backlog; of all where each had one."""
    pooled = [s for (computed, _), seconds in drafting.items() if computed == j for s in seconds]
    return _median(drafting.get((j, 0)) or pooled, j)


def _catch_up(drafting: Mapping[tuple[int, int], list[float]]) -> list[float]:
    """catch_up[0 .. MAX_BACKLOG] of one-token drafts; a missing backlog costs as the one before."""
    base, extra = _draft_median(drafting, 1), [0.0]
    for backlog in range(1, MAX_BACKLOG + 1):
        seconds = drafting.get((1, backlog))
        extra.append(max(float(np.median(seconds)) - base, 0.0) if seconds else extra[-1])
    return extra


def _feature_seconds(rounds: list[TimedRound], overhead: float) -> float:
    """What reading the features of one token takes, beyond calling the policy."""
    # a round of j tokens calls the policy j + 1 times, which overhead and draft price
    extra = [
        r.seconds[POLICY] / r.computed - overhead * (r.computed + 1) / r.computed
        for r in rounds
        if r.computed and not r.first
    ]
    return max(float(np.median(extra)), 0.0) if extra else 0.0


def _node_seconds(trees: Mapping[Job, list[float]]) -> float:
    """Slope of drafting time over the rows of a drafter's pass; 0 for fewer than two widths."""
    medians = {job.size: float(np.median(trees[job])) for job in trees if job.kind == WIDTH}
    if len(medians) < 2:
        return 0.0
    return max(float(np.polyfit(list(medians), list(medians.values()), 1)[0]), 0.0)
