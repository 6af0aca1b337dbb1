"""Drafters compared by their recordings: acceptance by depth, cost, best fixed K, speedup."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simspec.cost.model import CostModel
from simspec.numerics.formulas import depthwise_committed
from simspec.numerics.stats import MIN_PROMPTS, Interval, bootstrap, stacked
from simspec.policies.fixed import fixed
from simspec.reports.acceptance_by_depth import by_depth
from simspec.reports.intervals import interval_data, number_or_none
from simspec.reports.prompt_seconds import replicated_seconds
from simspec.trace.trace import Trace, load_trace

ALL = "all"
DRAWS = 16
"""Replays of a recording of the rejection rule that its times are means of."""

Array = NDArray[np.float64]


@dataclass(frozen=True)
class DrafterRow:
    """A recording's drafter on one task; low and high are NaN where there is no interval.

    | field | meaning |
    | --- | --- |
    | recording, drafter, rule | what was recorded |
    | task | the task; ALL: every prompt of the recording |
    | prompts, tokens | counts |
    | alpha | (Interval,) [K]: n-alpha, see `by_depth`; NaN where no draft reached the depth |
    | c | draft[1] / baseline: the first draft step over a plain step of the target |
    | marginal | (draft[K] - draft[1]) / ((K - 1) baseline): a further step; NaN at K = 1 |
    | best_k | the fixed K of the least modelled time in hindsight; 0: plain decoding |
    | speedup | Interval at best_k: replayed, at the cost model's seconds |
    | expected | Interval at best_k: depthwise_committed(alpha) / (1 + draft[best_k] / baseline) |
    | note | why intervals are missing, or '' |
    | learned | tokens that the drafter learned, by its card; None where no card says it |

    Reference: GLIDE with a CAPE, section 5.1, by depth.
    """

    recording: str
    drafter: str
    rule: str
    task: str
    prompts: int
    tokens: int
    alpha: tuple[Interval, ...]
    c: float
    marginal: float
    best_k: int
    speedup: Interval
    expected: Interval
    note: str
    learned: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON: an interval is {value, low, high}, and NaN None."""
        return asdict(self) | {
            "alpha": [interval_data(alpha) for alpha in self.alpha],
            "speedup": interval_data(self.speedup),
            "expected": interval_data(self.expected),
            "marginal": number_or_none(self.marginal),
        }


def compare_drafters(
    traces: Mapping[str, Trace | Path | str],
    costs: Any = 0.1,
    K: int | None = None,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> list[DrafterRow]:
    """A DrafterRow per recording and task, ALL first; intervals by bootstrap over prompts and, of
    speedups, over the replicates of the costs.

    traces {name: Trace or path}; costs as for `score`; K the longest draft, default each
    recording's. best_k is chosen once on all prompts. Fewer than 8 prompts have no interval, nor
    has a depth that some resample never reaches. ValueError for what cannot run.
    """
    if K is not None and K < 1:
        raise ValueError(f"K is {K}, expected at least 1: the longest draft to look at")
    if not 0 < level < 1:
        raise ValueError(f"level is {level}, expected a number in (0, 1), such as 0.95")
    interval = partial(_interval, level=level, resamples=resamples, seed=seed)
    rows = []
    for name, source in traces.items():
        trace = source if isinstance(source, Trace) else load_trace(source)
        cost = costs[name] if isinstance(costs, Mapping) else costs
        cost = cost if isinstance(cost, CostModel) else CostModel.from_ratio(cost, trace.K)
        longest = trace.K if K is None else min(K, trace.K)
        lengths = [fixed(k) for k in range(longest + 1)]
        draws = 1 if trace.ratio is None else DRAWS
        seconds, tokens = replicated_seconds(trace, lengths, cost, draws, seed)
        times = np.stack([seconds[policy.name] for policy in lengths], axis=1)
        accepted, tried = (counts[:, :longest] for counts in by_depth(trace))
        tasks = np.array(trace.task, dtype=object)
        for task in (ALL, *dict.fromkeys(trace.task)):
            chosen = np.ones(len(tasks), bool) if task == ALL else tasks == task
            counts = accepted[chosen], tried[chosen]
            figures = _figures(*counts, times[chosen], tokens[chosen], cost, interval)
            rows.append(DrafterRow(name, trace.meta.drafter, trace.meta.rule, task, **figures))
    return rows


def _interval(parts: Array, figure: Callable[[Array], Any], **options: Any) -> Interval:
    with np.errstate(divide="ignore", invalid="ignore"):
        try:
            return bootstrap(parts, figure, **options)
        except ValueError:  # too few prompts, or a resample without a single draft so deep
            totals = parts.sum(axis=0)
            value = float(figure(totals if parts.ndim == 2 else totals[:, 0]))
            return Interval(value, np.nan, np.nan, options["level"], len(parts))


def _figures(
    accepted: Array, tried: Array, times: Array, tokens: NDArray[np.int64], cost: CostModel,
    interval: Callable[..., Interval],
) -> dict[str, Any]:  # fmt: skip
    K, steps = tried.shape[1], cost.draft / cost.baseline
    best = int(times[..., 0].sum(axis=0).argmin())

    def expected(totals: Array) -> Array:
        # A depth that no draft reached adds nothing.
        alphas = np.nan_to_num(totals[..., :best] / totals[..., best:])
        return depthwise_committed(alphas) / (1 + steps[best])

    few = f"{len(tokens)} prompts, an interval takes {MIN_PROMPTS}"
    return {
        "prompts": len(tokens),
        "tokens": int(tokens.sum()),
        "alpha": tuple(interval(np.stack(p, -1), _ratio) for p in zip(accepted.T, tried.T)),
        "c": float(steps[1]),
        "marginal": float((steps[K] - steps[1]) / (K - 1)) if K > 1 else np.nan,
        "best_k": best,
        "speedup": interval(stacked(tokens * cost.baseline, times[:, best]), _ratio),
        "expected": interval(
            np.concatenate((accepted[:, :best], tried[:, :best]), axis=1), expected
        ),
        "note": few if len(tokens) < MIN_PROMPTS else "",
    }


def _ratio(totals: Array) -> Array:
    return totals[..., 0] / totals[..., 1]
