"""The best draft length is that of a group's total time."""

from dataclasses import replace

import numpy as np

from simspec import CostModel, replay, synthetic
from simspec.policies import fixed
from simspec.reports.drafters import ALL, compare_drafters

COST = CostModel.from_ratio(0.3, 4)


def recording():
    """Nine short prompts whose drafts fail, and one long one whose drafts are right."""
    lengths = np.array([4] * 9 + [400])
    trace = synthetic.iid(1.0, 1, int(lengths.sum()), 4)
    offset = np.concatenate(([0], np.cumsum(lengths)))
    left = np.repeat(offset[1:], lengths) - np.arange(trace.rows)
    run = np.where(np.arange(trace.rows) < offset[9], 0, np.minimum(4, left)).astype(np.uint8)
    tasks = ("hard",) * 9 + ("easy",)
    meta = replace(trace.meta, tasks=tasks, ids=tuple(map(str, range(10))))
    return replace(
        trace, offset=offset, budget=lengths, run=run, meta=meta, sequence=np.arange(10),
        prompt_offset=np.zeros(11, np.int64),
    )  # fmt: skip


def test_best_length_is_of_total_time_and_of_each_task():
    trace = recording()
    rows = {row.task: row for row in compare_drafters({"x": trace}, COST, resamples=100)}
    times = [COST.seconds(replay(trace, fixed(k), cost=COST)).sum() for k in range(5)]
    assert rows[ALL].best_k == int(np.argmin(times)) == 4
    assert {task: row.best_k for task, row in rows.items()} == {ALL: 4, "hard": 0, "easy": 4}
