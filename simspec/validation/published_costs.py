"""Published speeds against an affine round cost that is equal for all tasks."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from simspec.cost.fit import PredictionErrors, fit_line, leave_one_length_out
from simspec.cost.speed_table import SpeedTable
from simspec.published import speed_tables

LIMIT = 0.03
"""Largest median error at batch 1 that is no failure: the accuracy asked of predicted speeds."""

CHECKED = ("SpecBundle, batch 1", "vllm-20780-eagle1", "vllm-20780-eagle3", "draft-length-audit")
"""Groups under the limit: dense 8B targets at batch 1, three draft lengths or more."""


def between_lengths(table: SpeedTable) -> list[float]:
    """Errors of speedups by the line through each task's own first and last round cost.

    Only draft lengths between the two are predicted.
    """
    errors: list[float] = []
    for task in table.tasks:
        rows = [row for row in table.rows if row.task == task]
        first, last = min(row.K for row in rows), max(row.K for row in rows)
        inside = [row for row in rows if first < row.K < last]
        if inside:
            line = fit_line([row for row in rows if row.K in (first, last)])
            errors += map(line.error, inside)
    return errors


def leave_one_task_out(table: SpeedTable) -> list[float]:
    """Errors of speedups by the median round cost of the other tasks at the same draft length."""
    errors = []
    for row in table.rows:
        others = [r.round_cost for r in table.rows if r.K == row.K and r.task != row.task]
        if others:
            errors.append(row.accepted_length / median(others) / row.speedup - 1)
    return errors


MEASURES: dict[str, Callable[[SpeedTable], list[float]]] = {
    "K between the ends": between_lengths,
    "a K left out": leave_one_length_out,
    "a task left out": leave_one_task_out,
}


def published_costs(tables: Mapping[str, SpeedTable] | None = None) -> dict[str, Any]:
    """{ok, limit, errors: [..], tables: [..]}, as plain data, of published or other tables.

    A round's cost in plain steps is accepted length / speedup. Each measure of MEASURES predicts
    speedups from other rows' costs and the row's own accepted length. ok: every group of CHECKED
    has medians up to LIMIT.
    """
    tables = speed_tables() if tables is None else tables
    errors = []
    for group, members in _groups(tables).items():
        for measure, predict in MEASURES.items():
            found = [error for table in members for error in predict(table)]
            if found:
                errors.append(_result(group, measure, found))
    return {
        "ok": all(result["ok"] for result in errors),
        "limit": LIMIT,
        "errors": errors,
        "tables": [_facts(table) for table in tables.values()],
    }


def _groups(tables: Mapping[str, SpeedTable]) -> dict[str, list[SpeedTable]]:
    """Tables by the name of their line: those of SpecBundle together, by batch size and in all."""
    groups: dict[str, list[SpeedTable]] = {}
    for name, table in tables.items():
        bundle = name.startswith("specbundle/")
        names = (f"SpecBundle, batch {table.batch}", "SpecBundle, all") if bundle else (name,)
        for group in names:
            groups.setdefault(group, []).append(table)
    return groups


def _result(group: str, measure: str, found: Iterable[float]) -> dict[str, Any]:
    errors = PredictionErrors.of(found)
    checked = group in CHECKED
    return {
        "group": group,
        "measure": measure,
        **errors.to_dict(),
        "limit": LIMIT if checked else None,
        "ok": not checked or errors.median <= LIMIT,
    }


def _facts(table: SpeedTable) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "name": table.name,
        **table.texts,
        "batch": table.batch,
        "lengths": table.lengths,
        "tasks": table.tasks,
        "rows": len(table.rows),
        "round_cost": _mean_costs(table),
    }
    if len(table.lengths) > 1:
        line = fit_line(table.rows)
        facts |= {"intercept": line.intercept, "step": line.step}
    return facts


def _mean_costs(table: SpeedTable) -> dict[int, float]:
    """{K: mean round cost of the tasks}, in plain steps."""
    costs: dict[int, Sequence[float]] = {
        K: [row.round_cost for row in table.rows if row.K == K] for K in table.lengths
    }
    return {K: sum(values) / len(values) for K, values in costs.items()}
