"""Costs and batch speeds that others published, against predictions fitted without them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from simspec.cost.batch import parse_terms
from simspec.cost.fit import PredictionErrors, fit_cost, fit_line, fit_tokens, leave_one_length_out
from simspec.cost.model import CostModel
from simspec.cost.speed_table import SpeedRow, SpeedTable
from simspec.cost.table import CostTable
from simspec.numerics.formulas import expected_committed
from simspec.output.table import Table
from simspec.policies.fixed import fixed
from simspec.published import batch_tables, speed_tables
from simspec.replay.lock_step import plain_steps, policy_steps
from simspec.replay.replay import replay
from simspec.trace.synthetic import iid

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


STATED = "pass=5.886,token=0.02101,kv=3.926e-5,draft_round=2.135,draft_row=0.00084,overhead=1.207"
"""SpecDecode-Bench's costs of Llama-3.1-8B with EAGLE on an H100 (predictor.py), milliseconds."""

CONTEXT = 1024
"""Cached tokens with STATED; the published batches do not say theirs."""


def published_batches(seed: int = 0) -> list[dict[str, Any]]:
    """One dict per published speed of a batch, and cost that predicts it.

    | key | meaning |
    | --- | --- |
    | table, task, batch, K, source | as published |
    | measured | the published speedup |
    | cost | 'other batch sizes' or 'other K': fitted to the table's other rows \
of the task; 'SpecDecode-Bench': STATED, of other hardware |
    | predicted | the speedup of a lock-step replay of an i.i.d. recording of that accepted length |
    | agrees | whether both pay, or neither does (speedup >= 1) |
    """
    found = []
    for name, tables in batch_tables().items():
        for table in tables:
            for row in table.rows:
                for label, cost in _costs(tables, table, row):
                    predicted = _predicted(cost, table.batch, row, seed)
                    found.append(
                        {
                            "table": name,
                            "task": row.task,
                            "batch": table.batch,
                            "K": row.K,
                            "source": table.texts["source"],
                            "measured": row.speedup,
                            "cost": label,
                            "predicted": predicted,
                            "agrees": (predicted >= 1) == (row.speedup >= 1),
                        }
                    )
    return found


def published_batches_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The rows of `published_batches`, and how many are on the same side of 1."""
    cells = [
        (
            *(row[key] or "-" for key in ("table", "task", "batch", "K", "cost")),
            f"{row['measured']:.2f}",
            f"{row['predicted']:.2f}",
            "yes" if row["agrees"] else "NO",
        )
        for row in rows
    ]
    headings = (
        "table", "task", "batch", "K", "costs from", "measured", "lock step", "same side of 1",
    )  # fmt: skip
    notes = []
    for cost in dict.fromkeys(row["cost"] for row in rows):
        agrees = [row["agrees"] for row in rows if row["cost"] == cost]
        notes.append(f"costs from {cost}: {sum(agrees)} of {len(agrees)} on the same side of 1")
    notes.append(
        "Speedups of published batches, and of i.i.d. recordings of the same accepted length. "
        "SpecDecode-Bench: its costs of an H100; the batches ran on other hardware."
    )
    return Table(headings, cells, names=5, notes=notes)


def _costs(
    tables: Sequence[SpeedTable], table: SpeedTable, row: SpeedRow
) -> Iterator[tuple[str, CostModel | CostTable]]:
    if len(tables) > 1:
        others = [
            replace(other, rows=tuple(r for r in other.rows if r.task == row.task))
            for other in tables
            if other.batch != table.batch
        ]
        yield "other batch sizes", fit_tokens(others, row.K).cost
        return
    rows = tuple(other for other in table.rows if row.K != other.K)
    rest = replace(table, rows=rows)
    cell = fit_cost(rest, max(row.K, rest.lengths[-1])).cost
    yield "other K", CostTable((table.batch,), (0,), ((cell,),), table.name)
    if table.texts["target"] == "Llama-3.1-8B":
        yield "SpecDecode-Bench", parse_terms(STATED).cost(row.K, CONTEXT)


def _predicted(cost: CostModel | CostTable, batch: int, row: SpeedRow, seed: int) -> float:
    trace = iid(iid_acceptance(row.accepted_length, row.K), 48, 200, row.K, seed)
    context = cost.context if isinstance(cost, CostModel) else 0
    rounds = replay(trace, fixed(row.K), cost=CostModel.from_ratio(0.1, row.K))
    plain = plain_steps(trace, cost, batch, context)
    return float(plain.share.sum() / policy_steps(trace, rounds, cost, batch, context).share.sum())


def iid_acceptance(accepted_length: float, K: int) -> float:
    """The i.i.d. acceptance whose rounds of K drafted tokens have this mean, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        below = expected_committed(middle, K) < accepted_length
        low, high = (middle, high) if below else (low, middle)
    return high
