"""Drafters compared by their recordings: acceptance by depth, cost, best K, training."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simspec.cost.model import CostModel
from simspec.numerics.formulas import depthwise_committed
from simspec.numerics.stats import MIN_PROMPTS, Interval, bootstrap, stacked
from simspec.output.files import read_json
from simspec.output.terminal import markdown_table
from simspec.policies.fixed import fixed
from simspec.reports.intervals import (
    interval_columns,
    interval_data,
    interval_text,
    number_or_none,
    replicated_seconds,
)
from simspec.trace.recordings import CHECKOUT
from simspec.trace.trace import Trace, load_trace


def by_depth(trace: Trace) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(accepted, tried), float64[S, K]: drafts that begin at each row and are right to depth j.

    n-alpha at depth j is accepted[j] / tried[j]. A row is tried at depth j if its first j - 1
    drafted tokens are right, and neither `depth` nor the sequence ends before j. Each row counts
    once, as if a round began there: the figure holds for no draft length in particular.
    """
    left = np.repeat(trace.offset[1:], np.diff(trace.offset)) - np.arange(trace.rows)
    room = np.minimum(trace.depth, left)
    depth = np.arange(1, trace.K + 1)
    if trace.ratio is None:
        right, reached = trace.run[:, None] >= depth, trace.run[:, None] >= depth - 1
    else:  # acceptance probabilities in place of counts
        right = trace.ratio.astype(np.float64).cumprod(axis=1)
        reached = np.concatenate((np.ones((trace.rows, 1)), right[:, :-1]), axis=1)
    possible = room[:, None] >= depth
    accepted, tried = (
        np.add.reduceat(flags * possible, trace.offset[:-1], axis=0, dtype=np.float64)
        for flags in (right, reached)
    )
    return accepted, tried


def depth_acceptance(trace: Trace) -> tuple[float, NDArray[np.float64]]:
    """(alpha, alphas float64[K]): the share of drafted tokens accepted, at any depth and at each.

    All rows count, given that the tokens before are accepted; NaN where no draft reached the depth.
    """
    accepted, tried = (counts.sum(axis=0) for counts in by_depth(trace))
    with np.errstate(invalid="ignore"):
        return (
            float(accepted.sum() / max(tried.sum(), 1)),
            accepted / np.where(tried > 0, tried, np.nan),
        )


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


def table(rows: Sequence[DrafterRow]) -> Any:
    """The rows as a pandas DataFrame: alpha_1 .. alpha_K, speedup, expected, with _low and _high.

    Depths past a row's K are NaN. `learned` is there where a card tells it.
    """
    import pandas

    flat = []
    for row in rows:
        columns = {
            key: value
            for key, value in asdict(row).items()
            if key not in ("alpha", "speedup", "expected", "note", "learned")
        }
        columns |= interval_columns("speedup", row.speedup)
        columns |= interval_columns("expected", row.expected)
        for depth, alpha in enumerate(row.alpha, 1):
            columns |= interval_columns(f"alpha_{depth}", alpha)
        learned = {"learned": row.learned} if tells_training(rows) else {}
        flat.append(columns | learned | {"note": row.note})
    frame = pandas.DataFrame(flat)
    return frame[[*(name for name in frame if name != "note"), "note"]]


def markdown(rows: Sequence[DrafterRow], depth: int = 4) -> str:
    """The rows as a Markdown table, alpha to `depth`."""
    learned = tells_training(rows)
    return markdown_table(
        headings(depth, learned), [cells(row, depth, learned=learned) for row in rows]
    )


def tells_training(rows: Sequence[DrafterRow]) -> bool:
    """Whether a card says how many tokens some drafter learned."""
    return any(row.learned is not None for row in rows)


def check_depth(depth: int) -> None:
    """ValueError unless there is a depth to show."""
    if depth < 1:
        raise ValueError(f"--depth is {depth}, expected at least 1")


def headings(depth: int, learned: bool = False) -> list[str]:
    """The table's headings, alpha to `depth`; the first three name a row.

    `learned` adds the tokens that the drafter learned.
    """
    check_depth(depth)
    alphas = [f"a{j}" for j in range(1, depth + 1)]
    return [
        *("drafter", "rule", "domain"),
        *alphas,
        *("c", "then", "best K", "speedup", "expected"),
        *(("tokens learned",) if learned else ()),
    ]


def cells(
    row: DrafterRow, depth: int, alpha_limits: bool = True, learned: bool = False
) -> list[str]:
    """The row's cells, alpha to `depth`, with or without alpha's intervals."""
    alphas = [interval_text(alpha, limits=alpha_limits) for alpha in row.alpha]
    return [
        *(row.drafter, row.rule, row.task),
        *[*alphas, *["-"] * depth][:depth],
        f"{row.c:.2f}",
        "-" if np.isnan(row.marginal) else f"{row.marginal:.2f}",
        str(row.best_k),
        interval_text(row.speedup),
        interval_text(row.expected),
        *(("-" if row.learned is None else f"{row.learned:,}",) if learned else ()),
    ]


def bundled_cards(recording: Path) -> Path | None:
    """The folder with the cards of a checkout's recording; None for another one."""
    path = recording.resolve()
    if path.parent == CHECKOUT:
        return CHECKOUT.parent / "real" / "tiny"
    return CHECKOUT / "smollm2" / "drafters" if CHECKOUT / "smollm2" in path.parents else None


def tokens_learned(folder: Path | None, recording: str, drafter: str) -> int | None:
    """The tokens that a drafter learned, repetitions included, by its card; None without one.

    folder None: there are no cards.

    The first that exists of FOLDER/NAME/card.json and FOLDER/NAME.json, where NAME is the
    recording's file without its ending, then the drafter's name. None too for a card without
    training. ValueError, one line, for a damaged card, or one of another drafter.
    """
    if folder is None:
        return None
    for name in (Path(recording).stem, drafter):
        for path in (folder / name / "card.json", folder / f"{name}.json"):
            if path.is_file():
                return read_json(path, lambda data: _tokens(data, drafter), "drafter's card")
    return None


def _tokens(data: Any, drafter: str) -> int | None:
    if not isinstance(data, dict):
        raise ValueError(f"a {type(data).__name__}, expected an object")
    if data.get("drafter") != drafter:
        raise ValueError(f"drafter is {data.get('drafter')!r}, expected {drafter!r}")
    tokens = data.get("tokens")
    if tokens is None:
        return None
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 0:
        raise ValueError(f"tokens is {tokens!r}, expected a number of tokens")
    return tokens
