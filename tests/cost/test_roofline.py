"""The data sheet's bound on a pass, against a slow twin, and costs made of such passes."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simspec import formulas
from simspec.cost.roofline import (
    DEVICES,
    SHAPES,
    Device,
    ModelShape,
    pass_seconds,
    roofline_cost,
    roofline_table,
)

small = st.integers(1, 6)
shapes = st.builds(
    ModelShape, st.just("s"), st.integers(2, 6), *[small] * 5, st.just(5), st.booleans(),
    st.sampled_from([1, 2.0, 4]),
)  # fmt: skip
figures = st.integers(1, 1000).map(float)
devices = st.builds(Device, st.just("c"), figures, figures, st.sampled_from([1, 2, 8, 64]))


def twin(s, device, rows, batch, context, layers=None, head=True):
    """Seconds of a pass, matrix by matrix and row by row."""
    inner, shared = s.heads * s.head_dim, s.kv_heads * s.head_dim
    sizes = [(s.width, inner), (s.width, shared), (s.width, shared), (inner, s.width)]
    sizes += [(s.width, s.hidden), (s.width, s.hidden), (s.hidden, s.width)]
    deep = s.layers if layers is None else layers
    matrices = sizes * deep + [(s.width, s.vocab)] * head
    padded = 0
    while padded < batch * rows:
        padded += device.tile
    operations = sum(2 * a * b * padded for a, b in matrices)
    moved = sum(a * b * s.weight_bytes for a, b in matrices)
    for _ in range(deep * batch):
        moved += 2 * shared * s.cache_bytes * (context + rows)
        for row in range(rows):  # scores, and the mix of values
            operations += s.heads * (context + row + 1) * s.head_dim * 2 * 2
    return max(moved / device.bandwidth, operations / device.rate)


@given(
    shapes, devices, st.integers(1, 9), st.integers(1, 5), st.integers(0, 9),
    st.sampled_from([{}, {"layers": 1, "head": False}]),
)  # fmt: skip
def test_pass_time_equals_slow_twin(shape, device, rows, batch, context, part):
    assert pass_seconds(shape, device, rows, batch, context, **part) == pytest.approx(
        twin(shape, device, rows, batch, context, **part), rel=1e-12
    )


@given(
    shapes, st.one_of(shapes, st.sampled_from([0.1, 0.5])), devices, st.integers(1, 8),
    st.integers(1, 5), st.integers(4, 30),
)  # fmt: skip
def test_cost_equals_sums_of_passes(target, drafter, device, K, batch, context):
    cost = roofline_cost(target, drafter, device, K, batch, context)
    assert cost.baseline == pytest.approx(twin(target, device, 1, batch, context)) == cost.verify[0]
    if isinstance(drafter, ModelShape):
        verify = [twin(target, device, j + 1, batch, context) for j in range(1, K + 1)]
        steps = [twin(drafter, device, 1, batch, context + i) for i in range(K)]
        backlog = [twin(drafter, device, 1 + b, batch, context - b) for b in range(5)]
    else:
        n = max(round(drafter * target.layers), 1)
        verify = [
            twin(target, device, 1, batch, context + j, n, False)
            + twin(target, device, j + 1, batch, context, target.layers - n)
            for j in range(1, K + 1)
        ]
        steps = [twin(target, device, 1, batch, context + i, n + 1) for i in range(K)]
        backlog = [twin(target, device, 1 + b, batch, context - b, 1, False) for b in range(5)]
    np.testing.assert_allclose(cost.verify[1:], verify)
    np.testing.assert_allclose(cost.draft, [math.fsum(steps[:j]) for j in range(K + 1)])
    late = np.maximum(np.array(backlog) - backlog[0], 0)
    np.testing.assert_allclose(cost.catch_up, late, atol=1e-9)


def test_gains_shrink_with_the_batch():
    table = roofline_table(
        SHAPES["llama-3-8b"], SHAPES["llama-3.2-1b"], DEVICES["h100"], 8, (1, 16, 64, 256), (1024,)
    )
    k, gains = np.arange(9), []
    for batch in table.batch:
        cost = table.at(batch, 1024)
        tokens = formulas.expected_committed(0.8, k)
        gains.append(tokens * cost.baseline / (cost.draft + cost.verify))
    best = [gain.max() for gain in gains]
    assert best == sorted(best, reverse=True)
    assert best[0] > 1.5
    assert gains[-1].argmax() < gains[0].argmax()


def test_trees_are_priced_where_requested():
    big, tiny, device = SHAPES["llama-3-8b"], SHAPES["llama-3.2-1b"], DEVICES["h100"]
    chains, trees = (roofline_cost(big, tiny, device, 4, nodes=nodes) for nodes in (0, 63))
    assert (chains.nodes, trees.nodes, trees.K) == (4, 63, 4)
    assert chains.node == 0 <= trees.node < trees.draft[1]
    assert (np.diff(trees.verify) >= 0).all()
    assert trees.verify[:5].tolist() == chains.verify.tolist()


def test_the_bound_lies_below_a_measured_h200():
    """vLLM 0.26.0, plain steps of Llama-3.1-8B after 1,024 tokens (docs/gpu.md)."""
    for batch, measured in ((1, 6.16e-3), (8, 6.65e-3), (64, 10.90e-3)):
        bound = pass_seconds(SHAPES["llama-3-8b"], DEVICES["h200"], 1, batch, 1024)
        assert 0.4 < bound / measured < 1
