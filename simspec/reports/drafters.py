"""The drafters of some recordings side by side: acceptance by depth, price, best fixed K, speedup."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np

from simspec.cost import CostModel
from simspec.formulas import depthwise_committed
from simspec.policies import fixed
from simspec.reports.oracle_gap import by_prompt
from simspec.stats import FEWEST, Interval, bootstrap
from simspec.trace import Trace, load_trace

ALL = "all"
DRAWS = 16
"""Replays of a recording of the rejection rule that its times are means of."""


@dataclass(frozen=True)
class Row:
    """A recording's drafter on one domain; low and high of an interval are NaN where it has none.

    | field | meaning |
    | --- | --- |
    | recording, drafter, rule | what was recorded |
    | task | the domain; ALL: every prompt of the recording |
    | prompts, tokens | counts |
    | alpha | (Interval,) [K]: n-alpha, see `by_depth`; NaN where no draft got so far |
    | c | draft[1] / baseline: the first draft step over a plain step of the target; costs are medians and have no interval |
    | marginal | (draft[K] - draft[1]) / ((K - 1) baseline): a further one; NaN at K = 1 |
    | best_k | the fixed K (0 is plain decoding) of the least modelled time on these prompts, in hindsight |
    | speedup | Interval at best_k: replayed, at the cost model's seconds |
    | expected | Interval at best_k: depthwise_committed(alpha) / (1 + k c), GLIDE section 5.1 by depth, k c being draft[k] / baseline |
    | note | why intervals are missing, or '' |
    """

    recording: str
    drafter: str
    rule: str
    task: str
    prompts: int
    tokens: int
    alpha: tuple
    c: float
    marginal: float
    best_k: int
    speedup: Interval
    expected: Interval
    note: str

    def to_dict(self) -> dict:
        """As plain data for JSON: an interval is {value, low, high}, and NaN None."""
        shown = {
            "alpha": [_plain(each) for each in self.alpha],
            "speedup": _plain(self.speedup),
            "expected": _plain(self.expected),
        }
        return asdict(self) | shown | {"marginal": _known(self.marginal)}


def lineup(
    traces: Mapping,
    costs=0.1,
    K: int | None = None,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> list[Row]:
    """A Row per recording and domain, ALL first; intervals by bootstrap over prompts, best_k held at its choice on all of them.

    traces {name: Trace or path}; costs as for `score`; K the longest draft looked at, default each recording's. Fewer than 8 prompts
    have no interval, nor has an acceptance whose depth no draft may reach in a resample. ValueError, one line, for what cannot run.
    """
    if K is not None and K < 1:
        raise ValueError(f"K is {K}, expected at least 1: the longest draft to look at")
    if not 0 < level < 1:
        raise ValueError(f"level is {level}, expected a number in (0, 1), such as 0.95")
    found = []
    for name, given in traces.items():
        trace = given if isinstance(given, Trace) else load_trace(given)
        cost = costs[name] if isinstance(costs, Mapping) else costs
        cost = cost if isinstance(cost, CostModel) else CostModel.from_ratio(cost, trace.K)
        longest = trace.K if K is None else min(K, trace.K)
        lengths = [fixed(k) for k in range(longest + 1)]
        seconds, tokens = by_prompt(trace, lengths, cost, 1 if trace.ratio is None else DRAWS, seed)
        held, tried = (counts[:, :longest] for counts in by_depth(trace))
        times = np.stack([seconds[policy.name] for policy in lengths], -1)
        tasks = np.array(trace.task, dtype=object)
        for task in (ALL, *dict.fromkeys(trace.task)):
            mine = np.ones(len(tasks), bool) if task == ALL else tasks == task
            figures = _figures(
                held[mine], tried[mine], times[mine], tokens[mine], cost, level, resamples, seed
            )
            found.append(Row(name, trace.meta.drafter, trace.meta.rule, task, **figures))
    return found


def by_depth(trace: Trace) -> tuple[np.ndarray, np.ndarray]:
    """(held, tried), float64 [S, K]: of the drafts that would begin at each row of a prompt's text, how many were right to depth j.

    n-alpha at depth j is held[j] / tried[j]: tried counts rows whose first j - 1 draft tokens were right and that could go on (not past
    `depth`, nor the text's end). Each row counts once, as if a round began there, so it holds for no K in particular.
    """
    left = np.repeat(trace.offset[1:], np.diff(trace.offset)) - np.arange(trace.rows)
    room = np.minimum(trace.depth, left)
    depth = np.arange(1, trace.K + 1)
    if trace.ratio is None:
        right, reached = trace.run[:, None] >= depth, trace.run[:, None] >= depth - 1
    else:  # chances in place of counts
        right = trace.ratio.astype(np.float64).cumprod(axis=1)
        reached = np.concatenate((np.ones((trace.rows, 1)), right[:, :-1]), axis=1)
    could = room[:, None] >= depth
    return tuple(
        np.add.reduceat(flags * could, trace.offset[:-1], axis=0, dtype=np.float64)
        for flags in (right, reached)
    )


def _figures(held, tried, times, tokens, cost, level, resamples, seed) -> dict:
    K, best, steps = held.shape[1], int(times.sum(axis=0).argmin()), cost.draft / cost.baseline

    def interval(parts, figure):
        with np.errstate(divide="ignore", invalid="ignore"):
            try:
                return bootstrap(parts, figure, level, resamples, seed)
            except ValueError:  # too few prompts, or a resample without a single draft so deep
                return Interval(float(figure(parts.sum(axis=0))), np.nan, np.nan, level, len(parts))

    def expected(totals):
        # A depth that no draft reached adds nothing.
        return depthwise_committed(np.nan_to_num(totals[..., :best] / totals[..., best:])) / (
            1 + steps[best]
        )

    return {
        "prompts": len(tokens),
        "tokens": int(tokens.sum()),
        "alpha": tuple(interval(np.stack(parts, -1), _ratio) for parts in zip(held.T, tried.T)),
        "c": float(steps[1]),
        "marginal": float((steps[K] - steps[1]) / (K - 1)) if K > 1 else np.nan,
        "best_k": best,
        "speedup": interval(np.stack((tokens * cost.baseline, times[:, best]), -1), _ratio),
        "expected": interval(np.concatenate((held[:, :best], tried[:, :best]), axis=1), expected),
        "note": f"{len(tokens)} prompts, an interval takes {FEWEST}"
        if len(tokens) < FEWEST
        else "",
    }


def _ratio(totals):
    return totals[..., 0] / totals[..., 1]


def _known(value):
    return None if np.isnan(value) else value


def _plain(interval):
    return {key: _known(getattr(interval, key)) for key in ("value", "low", "high")}


def table(rows: list[Row]):
    """The rows as a pandas DataFrame: alpha_1 .. alpha_K, speedup and expected each with its _low and _high, NaN past a row's K."""
    import pandas

    flat = []
    for row in rows:
        given = {
            key: value
            for key, value in asdict(row).items()
            if key not in ("alpha", "speedup", "expected", "note")
        }
        named = {"speedup": row.speedup, "expected": row.expected} | {
            f"alpha_{j}": each for j, each in enumerate(row.alpha, 1)
        }
        for name, each in named.items():
            given |= {name: each.value, f"{name}_low": each.low, f"{name}_high": each.high}
        flat.append(given | {"note": row.note})
    made = pandas.DataFrame(flat)
    return made[[*(name for name in made if name != "note"), "note"]]


def markdown(rows: list[Row], depth: int = 4) -> str:
    """The rows as a Markdown table, alpha to `depth`."""
    lines = [_heads(depth), ["---"] * (depth + 8), *(_cells(row, depth) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def show(rows: list[Row], console, depth: int = 4) -> None:
    """Print the rows to a rich Console, alpha to `depth` and without its intervals: a line must hold a drafter."""
    from rich.table import Table

    shown = Table(*_heads(depth))
    for row in rows:
        shown.add_row(*(cell.replace("[", "\\[") for cell in _cells(row, depth, brief=True)))
    console.print(shown)
    console.print(
        "a1, a2 ..: acceptance by depth, those before it right. c, then: the first draft step and a further one, in plain steps."
    )
    console.print(
        "speedup: at the best K in hindsight, replayed at the recording's costs; expected: by GLIDE's formula from a1, a2 .."
    )
    said = f"Intervals: bootstrap over prompts, none for fewer than {FEWEST} (those of a1, a2 .. with --json, --csv and --markdown)."
    console.print(said, highlight=False)


def _heads(depth):
    return [
        "drafter",
        "rule",
        "domain",
        *(f"a{j}" for j in range(1, depth + 1)),
        "c",
        "then",
        "best K",
        "speedup",
        "expected",
    ]


def _cells(row, depth, brief=False):
    alpha = [*(_figure(each, brief) for each in row.alpha), *["-"] * depth][:depth]
    price = (f"{row.c:.2f}", "-" if np.isnan(row.marginal) else f"{row.marginal:.2f}")
    return [
        row.drafter,
        row.rule,
        row.task,
        *alpha,
        *price,
        str(row.best_k),
        _figure(row.speedup),
        _figure(row.expected),
    ]


def _figure(each, brief=False):
    if np.isnan(each.value):
        return "-"
    return f"{each.value:.2f}" + (
        "" if brief or np.isnan(each.low) else f" [{each.low:.2f}, {each.high:.2f}]"
    )
