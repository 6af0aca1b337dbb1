"""The prices that tables are printed at: measured ones, and the papers' cost coefficients."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from simspec.cost.model import CostModel
from simspec.output.table import Table
from simspec.replay.sweep import cost_model
from simspec.reports.drafters import ALL, DrafterRow
from simspec.reports.tree_rows import TreeRow
from simspec.trace.trace import Trace, load_trace

RATIOS = (0.05, 0.10, 0.15)
"""c = draft step / target step, where EESD, GLIDE and EAGLE work."""
MEASURED = "measured"
FLAT, VERIFIED = "flat", "measured verification"


def regimes(cost: CostModel | float, trace: Trace) -> dict[str, CostModel]:
    """{label: costs}: the recording's own, then those of `regime_label` for each of RATIOS.

    | verification | draft[j] | verify[j] | all else |
    | --- | --- | --- | --- |
    | flat | c j | 1 | 0: the papers' unit model |
    | measured verification | c j baseline | as measured | 0 |

    A ratio in place of measured costs has flat verification only.
    """
    flat = {regime_label(c, FLAT): cost_model(c, trace) for c in RATIOS}
    priced = {MEASURED: cost_model(cost, trace)} | flat
    if not isinstance(cost, CostModel):
        return priced
    return priced | {regime_label(c, VERIFIED): with_ratio(cost, c) for c in RATIOS}


def regime_label(c: float, verification: str) -> str:
    """'c=0.05, flat' or 'c=0.05, measured verification'."""
    return f"c={c:.2f}, {verification}"


def with_ratio(cost: CostModel, c: float) -> CostModel:
    """The measured verification, and draft steps of c plain steps; all else is free."""
    priced = replace(
        cost,
        name=regime_label(c, VERIFIED),
        draft=c * cost.baseline * np.arange(cost.K + 1),
        catch_up=np.zeros(1),
        overhead=0.0,
        feature=0.0,
        predictor=None,
        node=0.0,
        kv_draft=0.0,
        origin=None,
        precision=None,
    )
    return priced.derived(partial(with_ratio, c=c), cost)


def by_regime(traces: Mapping[str, Trace], costs: Any) -> dict[str, dict[str, CostModel]]:
    """{label: {recording: costs}}; costs as for `score`. A label holds what has it."""
    labels: dict[str, dict[str, CostModel]] = {}
    for name, trace in traces.items():
        cost = costs[name] if isinstance(costs, Mapping) else costs
        for label, priced in regimes(cost, trace).items():
            labels.setdefault(label, {})[name] = priced
    return labels


def regime_columns(labels: Mapping[str, Any]) -> dict[str, list[str]]:
    """{verification: the labels side by side, the measured price first} of one table each."""
    return {
        verification: [
            MEASURED,
            *(label for label in labels if label.endswith(f", {verification}")),
        ]
        for verification in (FLAT, VERIFIED)
        if any(label.endswith(f", {verification}") for label in labels)
    }


Cells = Mapping[str, Mapping[str, str]]
"""{table: {row: cell}}"""
LEGEND = (
    "Speedups over plain decoding. measured: the recording's costs. c: a draft step over a plain "
    "step, all else free, verification flat or as measured."
)


def at_regimes(
    paths: Mapping[str, Path],
    costs: Any,
    figures: Callable[[Mapping[str, Trace], Mapping[str, Any]], Any],
) -> dict[str, Any]:
    """{label: figures(recordings, their costs)} at each of `regimes`."""
    traces = {name: load_trace(path) for name, path in paths.items()}
    return {
        label: figures({name: traces[name] for name in priced}, priced)
        for label, priced in by_regime(traces, costs).items()
    }


def score_cells(scores: Sequence[Mapping[str, Any]]) -> Cells:
    """Speedups of the best fixed K, of the oracle and of policies, from `oracle_gap.score`."""
    return {
        of["recording"]: {
            "best fixed K": f"{of['speedup_fixed']:.2f} {of['best_fixed']}",
            "oracle": f"{of['speedup_oracle']:.2f}",
        }
        | {row["policy"]: f"{row['speedup']:.2f}" for row in of["policies"]}
        for of in scores
    }


def tree_cells(rows: Sequence[TreeRow]) -> Cells:
    """Speedups of chains and trees, and what was chosen for them."""
    tables: dict[str, dict[str, str]] = {}
    for row in rows:
        chosen = row.chosen.removesuffix(", in hindsight").replace(" nodes, depth ", "n d")
        cell = f"{row.speedup.value:.2f} {chosen}".rstrip()
        tables.setdefault(row.recording, {})[row.policy] = cell
    return tables


def drafter_cells(rows: Sequence[DrafterRow]) -> Cells:
    """Speedups at the best fixed K of each drafter, on all tasks, in one table."""
    cells = {
        row.recording: f"{row.speedup.value:.2f} k={row.best_k}" for row in rows if row.task == ALL
    }
    return {"": cells}


def regime_tables(first: str, cells: Mapping[str, Cells]) -> list[Table]:
    """A table per recording and verification: names down, the prices of `cells` across.

    cells: {label of `regimes`: the cells at it}; first: heading of the names.
    """
    tables = []
    for name in dict.fromkeys(name for of in cells.values() for name in of):
        for verification, labels in regime_columns(cells).items():
            columns = [cells[label].get(name, {}) for label in labels]
            rows = [
                (row, *(column.get(row, "-") for column in columns))
                for row in dict.fromkeys(row for column in columns for row in column)
            ]
            headings = (first, *(label.partition(",")[0] for label in labels))
            title = (
                f"{name}: verification {verification}" if name else f"verification {verification}"
            )
            title = title.replace("measured verification", "as measured")
            tables.append(Table(headings, rows, title=title))
    return [*tables[:-1], *(replace(table, notes=(LEGEND,)) for table in tables[-1:])]
