"""Draft trees, their prices, and recordings with ranks and tree orders: drawn, or one example."""

from dataclasses import replace

import naive_tree
import numpy as np
from hypothesis import strategies as st
from strategies import traces

from simspec import CostModel, synthetic
from simspec.tree.replay import tree_rounds
from simspec.tree.tree import MAX_NODES, Tree


@st.composite
def shapes(draw, most=12, widest=4):
    parent, rank = [], []
    for i in range(draw(st.integers(0, most))):
        free = [
            (p, r)
            for p in range(i + 1)
            for r in range(widest)
            if (p, r) not in set(zip(parent, rank))
        ]
        p, r = draw(st.sampled_from(free))
        parent.append(p)
        rank.append(r)
    return Tree(tuple(parent), tuple(rank))


def tree_seconds(rounds, trace, policy, cost):
    """Seconds of the rounds of `replay_tree`."""
    replayed, rows, backlog = tree_rounds(trace, policy)
    assert replayed == rounds
    return cost.seconds_tree(rounds, rows, backlog)


NODES = CostModel.from_ratio(0.1, 6, MAX_NODES)


def ranked(trace, seed=0, widest=5, **changes):
    """The trace with ranks of which many are small, as a recording of a drafter with a
    distribution has them.
    """
    rng = np.random.default_rng(seed)
    rank = np.minimum(rng.geometric(0.5, (trace.rows, trace.K)) - 1, widest)
    rank[rng.random(rank.shape) < 0.1] = 255
    rank[np.arange(trace.K) < trace.run[:, None]] = 0
    reach = np.minimum(
        trace.depth, np.repeat(trace.offset[1:], np.diff(trace.offset)) - np.arange(trace.rows)
    )
    missed = np.flatnonzero(trace.run < reach)
    rank[missed, trace.run[missed]] = np.maximum(rank[missed, trace.run[missed]], 1)
    return replace(trace, rank=rank.astype(np.uint8), **changes)


def scores(seed, s, row):
    """log q of a node at that row, from its path: an addressed draw."""
    return lambda path: (
        -np.random.default_rng([seed, s, row, len(path), *path]).exponential() - 0.3 * path[-1]
    )


def ordered(trace, width, depth, seed=0):
    """The trace with the order of dynamic trees whose confidences are `scores`."""
    order = [
        naive_tree.order_of(trace, s, t, scores(seed, s, t), width, depth)
        for s in range(trace.sequences)
        for t in range(trace.offset[s], trace.offset[s + 1])
    ]
    return replace(
        trace, order=np.array(order, np.uint8), meta=replace(trace.meta, tree=(width, depth))
    )


@st.composite
def recordings(draw, **options):
    return ranked(draw(traces(**options)), draw(st.integers(0, 2**32)))


def example(K=4, prompts=12, **options):
    trace = synthetic.iid(0.6, prompts, 30, K, seed=3, confidence=True)
    return ranked(trace, 1, **options)
