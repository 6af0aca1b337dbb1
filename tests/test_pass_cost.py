"""Sizes of models, and roofline times of one pass."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from naive_pass import devices, shapes, twin

from real.model.config import DecoderConfig
from real.model.decoder import Decoder
from simspec import formulas
from simspec.cost.roofline import pass_bytes, pass_flops, pass_seconds
from simspec.cost.shapes import (
    DEVICES,
    SHAPES,
    Device,
    ModelShape,
    cache_bytes,
    matrix_weights,
    memory,
    parameters,
)

SLOW = Device("slow memory", bandwidth=1e9, rate=1e30, memory=1e30)


WEAK = Device("weak arithmetic", bandwidth=1e30, rate=1e12, memory=1e30)


# Totals as counted from the published weights.
@pytest.mark.parametrize(
    "name, total",
    [
        ("llama-2-7b", 6_738_415_616),
        ("llama-2-13b", 13_015_864_320),
        ("llama-2-70b", 68_976_648_192),
        ("llama-3-8b", 8_030_261_248),
        ("llama-3.2-1b", 1_235_814_400),
        ("tinyllama-1.1b", 1_100_048_384),
    ],
)
def test_parameter_counts_equal_published_ones(name, total):
    assert parameters(SHAPES[name]) == total


def test_cache_bytes_equal_known_sizes():
    # half a megabyte a token without grouped queries; a quarter of that with 8 of 32 heads
    assert [cache_bytes(SHAPES[n]) for n in ("llama-2-7b", "llama-3-8b", "llama-2-70b")] == [
        524_288,
        131_072,
        327_680,
    ]
    assert memory(SHAPES["llama-3-8b"], 2, 100) == 2 * 8_030_261_248 + 2 * 100 * 131_072


@pytest.mark.parametrize("tied", [True, False])
def test_parameter_counts_equal_the_decoder(tied):
    sizes = dict(
        vocab=50, width=24, layers=3, heads=4, kv_heads=2, head_dim=8, hidden=40, tied=tied
    )
    with torch.device("meta"):
        counted = sum(p.numel() for p in Decoder(DecoderConfig(**sizes)).parameters())
    assert parameters(ModelShape(name="ours", **sizes)) == counted


@given(
    shapes,
    devices,
    st.integers(1, 9),
    st.integers(1, 5),
    st.integers(0, 9),
    st.sampled_from([{}, {"layers": 1, "head": False}]),
)
def test_pass_time_equals_slow_twin(shape, device, rows, batch, context, part):
    assert pass_seconds(shape, device, rows, batch, context, **part) == pytest.approx(
        twin(shape, device, rows, batch, context, **part), rel=1e-12
    )


@given(
    st.sampled_from(list(SHAPES.values())),
    st.integers(1, 300),
    st.integers(1, 64),
    st.integers(0, 9000),
)
def test_pass_time_has_both_roofline_limits(shape, rows, batch, context):
    bytes_, operations = (
        pass_bytes(shape, rows, batch, context),
        pass_flops(shape, rows, batch, context),
    )
    assert pass_seconds(shape, SLOW, rows, batch, context) == bytes_ / 1e9
    assert pass_seconds(shape, WEAK, rows, batch, context) == operations / 1e12
    assert bytes_ > 2 * matrix_weights(shape)
    assert operations > 2 * matrix_weights(shape) * rows * batch


@given(shapes, devices, st.integers(1, 40), st.integers(1, 9), st.integers(0, 30))
def test_pass_time_is_monotone_and_above_both_bounds(shape, device, rows, batch, context):
    here = pass_seconds(shape, device, rows, batch, context)
    for larger in (
        (rows + 1, batch, context),
        (rows, batch + 1, context),
        (rows, batch, context + 1),
    ):
        assert pass_seconds(shape, device, *larger) >= here
    dry = device.overhead + device.launch * shape.layers
    assert here >= dry + pass_bytes(shape, rows, batch, context) / device.bandwidth
    assert here >= dry + pass_flops(shape, rows, batch, context, device.tile) / device.rate


@given(shapes, st.integers(1, 200), st.integers(1, 5), st.sampled_from([2, 16, 64]))
def test_tile_padding_makes_a_staircase(shape, rows, batch, tile):
    padding = pass_flops(shape, rows, batch, 3, tile) - pass_flops(shape, rows, batch, 3)
    missing = -(batch * rows) % tile
    assert padding == 2 * matrix_weights(shape) * missing
    assert 0 <= missing < tile


def test_compute_bound_begins_at_the_ridge_point():
    # weights of 2 bytes are used twice a row: rate / bandwidth rows, and a little less as caches
    # count for more arithmetic than bytes
    device, shape = DEVICES["h100"], SHAPES["llama-2-7b"]
    knee = device.rate / device.bandwidth
    assert 295 < knee < 296
    bound = [
        pass_seconds(shape, device, rows, 1, 0) * device.bandwidth
        == pytest.approx(pass_bytes(shape, rows, 1, 0))
        for rows in (256, 320)
    ]
    assert bound == [True, False]
    fine = replace(device, tile=1)
    last = max(
        r
        for r in range(1, 400)
        if pass_flops(shape, r, 1, 0) / device.rate <= pass_bytes(shape, r, 1, 0) / device.bandwidth
    )
    assert 280 < last < knee + 10
    # formulas.roofline is this with weights alone
    rows = np.arange(1, 500)
    simple = formulas.roofline(500, knee)[1:500]
    ours = np.array([pass_seconds(shape, fine, int(r), 1, 0) for r in rows]) / (
        2 * matrix_weights(shape) / device.bandwidth
    )
    np.testing.assert_allclose(ours, simple, rtol=0.03)
