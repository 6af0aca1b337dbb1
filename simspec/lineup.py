"""The drafters of some recordings side by side: acceptance by depth, price, best fixed K, speedup."""

from collections.abc import Mapping

import numpy as np

from simspec.cost import CostModel
from simspec.policies import fixed
from simspec.score import by_prompt
from simspec.stats import bootstrap
from simspec.trace import Trace, load_trace

ALL = "all"


def lineup(traces: Mapping, costs=0.1, resamples: int = 1000, seed: int = 0) -> list[dict]:
    """One dict per recording and domain, ALL of them first: {recording, drafter, rule, task, prompts, tokens, alpha, c, best_k, speedup, expected}.

    | key | meaning |
    | --- | --- |
    | alpha | [{value, low, high}] for depth j = 1 .. K: n-alpha, see `by_depth`; None where no draft got there |
    | c | one draft step over one plain step, draft(K) / (K baseline) of the cost model, and no interval: costs are medians |
    | best_k | the fixed K (0 is plain decoding) of the least modelled time on these prompts, in hindsight |
    | speedup | {value, low, high} at best_k: replayed, at the cost model's seconds |
    | expected | {value, low, high} at best_k: (1 + sum of products of alpha) / (c best_k + 1), GLIDE section 5.1 with acceptance by depth |

    Intervals are 95%, by bootstrap over prompts with best_k held; low and high are None for fewer than 8 prompts and where a resample
    may hold no draft of that depth. traces {name: Trace or path}, costs as for `score`. ValueError, one line, for what cannot run.
    """
    found = []
    for name, given in traces.items():
        trace = given if isinstance(given, Trace) else load_trace(given)
        cost = costs[name] if isinstance(costs, Mapping) else costs
        cost = cost if isinstance(cost, CostModel) else CostModel.from_ratio(cost, trace.K)
        lengths = [fixed(k) for k in range(trace.K + 1)]
        seconds, tokens = by_prompt(trace, lengths, cost, 1, seed)
        held, tried = by_depth(trace)
        times = np.stack([seconds[policy.name] for policy in lengths], -1)
        tasks = np.array(trace.task, dtype=object)
        head = {"recording": name, "drafter": trace.meta.drafter, "rule": trace.meta.rule}
        for task in (ALL, *dict.fromkeys(trace.task)):
            mine = np.ones(len(tasks), bool) if task == ALL else tasks == task
            found.append(head | {"task": task} | _one(held[mine], tried[mine], times[mine], tokens[mine], cost, resamples, seed))
    return found


def by_depth(trace: Trace) -> tuple[np.ndarray, np.ndarray]:
    """(held, tried), float64 [S, K]: of the drafts that would begin at each row of a prompt's text, how many were right to depth j.

    n-alpha at depth j is held[j] / tried[j]: tried counts rows whose first j - 1 draft tokens were right and that could go on (not past
    `depth`, nor the text's end). Each row counts once, as if a round began there, so it holds for no K in particular.
    """
    left = np.repeat(trace.offset[1:], np.diff(trace.offset)) - np.arange(trace.rows)
    room = np.minimum(trace.depth, left)
    depth = np.arange(1, trace.K + 1)
    right = trace.run[:, None] >= depth
    could = (trace.run[:, None] >= depth - 1) & (room[:, None] >= depth)
    return tuple(np.add.reduceat(flags & could, trace.offset[:-1], axis=0, dtype=np.float64) for flags in (right, could))


def _one(held, tried, times, tokens, cost, resamples, seed) -> dict:
    K = held.shape[1]
    best = int(times.sum(axis=0).argmin())
    c = float(cost.draft[K] / (K * cost.baseline))

    def interval(parts, figure):
        with np.errstate(divide="ignore", invalid="ignore"):
            value = float(figure(parts.sum(axis=0)))
            try:
                found = bootstrap(parts, figure, resamples=resamples, seed=seed)
                return {"value": value, "low": found.low, "high": found.high}
            except ValueError:  # too few prompts, or a resample without a single draft so deep
                return {"value": value if np.isfinite(value) else None, "low": None, "high": None}

    def expected(totals):
        return (1 + np.cumprod(totals[..., :best] / totals[..., best:], axis=-1).sum(axis=-1)) / (c * best + 1)

    return {
        "prompts": len(tokens),
        "tokens": int(tokens.sum()),
        "alpha": [interval(np.stack(parts, -1), _ratio) if parts[1].sum() else None for parts in zip(held.T, tried.T)],
        "c": c,
        "best_k": best,
        "speedup": interval(np.stack((tokens * cost.baseline, times[:, best]), -1), _ratio),
        "expected": interval(np.concatenate((held[:, :best], tried[:, :best]), axis=1), expected),
    }


def _ratio(totals):
    return totals[..., 0] / totals[..., 1]


def markdown(rows: list[dict], depth: int = 5) -> str:
    """The rows as a Markdown table, alpha to `depth`."""
    lines = [_heads(depth), ["---"] * (depth + 7), *(_cells(row, depth) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def show(rows: list[dict], console, depth: int = 5) -> None:
    """Print the rows to a rich Console, alpha to `depth`."""
    from rich.table import Table

    table = Table(*_heads(depth))
    for row in rows:
        table.add_row(*(cell.replace("[", "\\[") for cell in _cells(row, depth)))
    console.print(table)
    console.print("Intervals: 95%, bootstrap over prompts. speedup: replayed at the recording's costs; expected: by the formula, from a1, a2 .. and c.")


def _heads(depth):
    return ["drafter", "rule", "domain", *(f"a{j}" for j in range(1, depth + 1)), "c", "best K", "speedup", "expected"]


def _cells(row, depth):
    alpha = [*row["alpha"], *[None] * depth][:depth]
    figures = [_figure(each) for each in (*alpha, row["speedup"], row["expected"])]
    return [row["drafter"], row["rule"], row["task"], *figures[:depth], f"{row['c']:.2f}", str(row["best_k"]), *figures[depth:]]


def _figure(each):
    if each is None or each["value"] is None:
        return "-"
    limits = "" if each["low"] is None else f" [{each['low']:.2f}, {each['high']:.2f}]"
    return f"{each['value']:.2f}{limits}"
