"""Whether drafting pays in published batches, against lock-step replays."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from simspec.cost.batch import parse_terms
from simspec.cost.fit import fit_cost, fit_tokens
from simspec.cost.model import CostModel
from simspec.cost.speed_table import SpeedRow, SpeedTable
from simspec.cost.table import CostTable
from simspec.numerics.formulas import expected_committed
from simspec.policies.fixed import fixed
from simspec.published import batch_tables
from simspec.replay.lock_step import plain_steps, policy_steps
from simspec.replay.replay import replay
from simspec.trace.synthetic import iid

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
    trace = iid(_acceptance(row), 48, 200, row.K, seed)
    context = cost.context if isinstance(cost, CostModel) else 0
    rounds = replay(trace, fixed(row.K), cost=CostModel.from_ratio(0.1, row.K))
    plain = plain_steps(trace, cost, batch, context)
    return float(plain.share.sum() / policy_steps(trace, rounds, cost, batch, context).share.sum())


def _acceptance(row: SpeedRow) -> float:
    """The i.i.d. acceptance of the row's accepted length, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        below = expected_committed(middle, row.K) < row.accepted_length
        low, high = (middle, high) if below else (low, middle)
    return high
