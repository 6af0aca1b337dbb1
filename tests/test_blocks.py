"""Blocks of a measurement run their jobs in a new random order each time."""

import numpy as np

from real.measure.blocks import LoopBlock, TreeWidthBlock
from real.measure.job import FIXED, WIDTH, Job

COUNT = 6


def orders(seen, turns):
    """The order of each turn, checked to hold every job once."""
    rows = np.array(seen).reshape(turns, COUNT)
    assert (np.sort(rows, 1) == np.arange(1, COUNT + 1)).all()
    return {tuple(row) for row in rows.tolist()}


def test_jobs_of_the_loop_are_shuffled():
    block, seen = object.__new__(LoopBlock), []
    block.jobs = [Job(FIXED, size) for size in range(1, COUNT + 1)]
    block.one_by_one = True
    block._sequence = lambda units, retries, counted: seen.extend(u.size for (u,) in units)
    block.run(np.random.default_rng(0), 4, True, 0.0)
    assert len(orders(seen, 4)) == 4


def test_tree_widths_are_shuffled():
    block, seen = object.__new__(TreeWidthBlock), []
    block.trees = {Job(WIDTH, size): None for size in range(1, COUNT + 1)}
    block._draft = lambda job, rounds, counted: seen.append(job.size)
    random = np.random.default_rng(0)
    for _ in range(4):
        block.run(random, 4, True, 0.0)
    assert len(orders(seen, 4)) == 4
