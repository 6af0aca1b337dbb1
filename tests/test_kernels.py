"""Costs from kernel times: laws between measured sizes, sums of layers, files, published cells."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import shell
from hypothesis import given, settings
from hypothesis import strategies as st

from real.model.random_models import read_shape
from simspec.cost.batch import BatchCost, StepLoad
from simspec.cost.kernel_files import COLUMNS, ENGINES, shipped_times
from simspec.cost.kernel_fit import SpeedCell, cell_errors, cell_prediction, fit_constants
from simspec.cost.kernel_times import AttentionGrid, Line, Products
from simspec.cost.kernels import (
    CAPTURED,
    EngineConstants,
    KernelPrices,
    kernel_cost,
    kernel_table,
    pass_parts,
    pass_seconds,
    pass_shares,
)
from simspec.cost.model import CostModel
from simspec.cost.shapes import SHAPES, ModelShape, draft_head
from simspec.cost.table import load_cost

LLAMA, SPARSE = SHAPES["llama-3.1-8b"], SHAPES["qwen3-30b-a3b"]
EAGLE3 = draft_head(LLAMA, "eagle3")
SMALL = replace(LLAMA, layers=2)
sizes = st.lists(st.integers(1, 60), min_size=2, max_size=5, unique=True).map(sorted)
times = st.integers(1, 200).map(lambda n: n / 8)


def h100(**options):
    return KernelPrices(shipped_times("h100", "vllm"), **options)


@st.composite
def lines(draw):
    held = draw(sizes)
    return Line(np.array(held, float), np.array([draw(times) for _ in held]))


@given(lines(), st.integers(1, 130))
def test_a_line_is_exact_where_measured_and_between_its_neighbours(line, size):
    time = line.at(size)
    if size in line.size:
        assert time == (line.seconds[list(line.size).index(size)], "measured")
        return
    below, above = line.seconds[line.size < size], line.seconds[line.size > size]
    if len(below) and len(above):
        assert time.status == "interpolated"
        assert min(below[-1], above[0]) - 1e-9 <= time.seconds <= max(below[-1], above[0]) + 1e-9
        low, high = max(line.size[line.size < size]), min(line.size[line.size > size])
        share = (size - low) / (high - low)
        assert time.seconds == pytest.approx(below[-1] * (1 - share) + above[0] * share)
    else:
        assert time.status == "extrapolated"
        beyond = line.seconds[-1] * size / line.size[-1]
        assert time.seconds == pytest.approx(beyond if not len(above) else line.seconds[0])


@given(st.data(), sizes, sizes, sizes)
def test_products_are_exact_at_weights_and_bilinear_in_logarithms(data, n_axis, k_axis, m_axis):
    cells = {
        (n, k): Line(np.array(m_axis, float), np.array([data.draw(times) for _ in m_axis]))
        for n in n_axis
        for k in k_axis
    }
    products = Products(cells)
    m = data.draw(st.sampled_from(m_axis))
    for (n, k), line in cells.items():
        assert products.at(m, n, k) == line.at(m)
    n, k = data.draw(st.integers(1, 70)), data.draw(st.integers(1, 70))
    time = products.at(m, n, k)

    # the slow twin, one axis after the other
    def along(axis, value, of):
        value = max(value, axis[0])
        if value >= axis[-1]:
            return math.log(of(axis[-1])) + math.log(value / axis[-1])
        logs = [math.log(of(size)) for size in axis]
        return np.interp(math.log(value), np.log(axis), logs)

    def at_n(size):
        return math.exp(along(k_axis, k, lambda other: cells[size, other].at(m).seconds))

    assert time.seconds == pytest.approx(math.exp(along(n_axis, n, at_n)))
    inside = n_axis[0] <= n <= n_axis[-1] and k_axis[0] <= k <= k_axis[-1]
    measured = n in n_axis and k in k_axis
    assert time.status == ("measured" if measured else "interpolated" if inside else "extrapolated")


@given(sizes, sizes, st.integers(1, 70), st.integers(1, 70), st.integers(1, 9))
def test_proportional_products_stay_so(n_axis, k_axis, n, k, rate):
    """Times in proportion to the weights are repeated between and beyond them."""
    one = np.array([1.0])
    products = Products({(a, b): Line(one, rate * one * a * b) for a in n_axis for b in k_axis})
    n, k = max(n, n_axis[0]), max(k, k_axis[0])
    assert products.at(1, n, k).seconds == pytest.approx(rate * n * k)


def test_a_missing_weight_takes_the_nearest_and_says_so():
    one = np.array([1.0])
    products = Products({(8, 8): Line(one, one * 4.0), (64, 64): Line(one, one * 99.0)})
    assert products.at(1, 8, 16) == (8.0, "extrapolated")


@given(sizes, sizes, times, times, st.integers(1, 120), st.integers(1, 120))
def test_attention_repeats_a_launch_and_a_rate_of_reading(batches, contexts, a, b, batch, context):
    cells = {(i, j): a + b * i * j for i in batches for j in contexts}
    grid = AttentionGrid.of(cells)
    inside = batches[0] <= batch <= batches[-1] and contexts[0] <= context <= contexts[-1]
    time = grid.at(batch, context)
    if inside:
        assert time.seconds == pytest.approx(a + b * batch * context)
    known = (batch, context) in cells
    assert time.status == ("measured" if known else "interpolated" if inside else "extrapolated")
    # the missing corner of a staircase: read in proportion
    last = cells.pop((batches[-1], contexts[-1]))
    filled = AttentionGrid.of(cells).at(batches[-1], contexts[-1])
    assert filled.status == "extrapolated"
    assert filled.seconds <= max(
        cells[batches[-1], contexts[-2]] * contexts[-1] / contexts[-2],
        cells[batches[-2], contexts[-1]] * batches[-1] / batches[-2],
    ) * (1 + 1e-9)
    assert filled.seconds >= last * (1 - 1e-9)  # a launch is not read again: never too cheap here


def test_rows_of_a_sequence_are_further_query_heads():
    held = shipped_times("h100", "vllm")
    # 32 query heads in 3 rows are the 96 heads that are measured
    assert held.attend((128, 32, 8), 4, 1023, 3).seconds == held.attend((128, 96, 8), 4, 1023)[0]
    # 8 rows: 32 query heads a key head, measured at 2 key heads of four times the sequences
    assert held.attend((128, 32, 8), 4, 1023, 8).seconds == held.attend((128, 64, 2), 16, 1023)[0]
    assert held.attend((128, 32, 8), 4, 1023, 8).status == "interpolated"
    assert held.attend((128, 32, 8), 4, 1023).status == "measured"
    between = held.attend((128, 32, 8), 4, 1023, 2.5).seconds
    ends = [held.attend((128, 32, 8), 4, 1023, rows).seconds for rows in (2, 3)]
    assert between == pytest.approx(sum(ends) / 2)
    # beyond the largest ratio the reading repeats
    wide = held.attend((128, 32, 8), 1, 1023, 32)
    assert wide.status == "extrapolated"
    assert wide.seconds == pytest.approx(2 * held.attend((128, 32, 8), 1, 1023, 16).seconds)


def looked_up(frame, **wanted):
    for column, value in wanted.items():
        frame = frame[frame[column] == value]
    return float(frame.nanoseconds.iloc[0]) / 1e9


def test_a_layer_is_the_sum_of_its_kernels_in_the_files():
    """The slow twin: measured sizes alone, read from the files row by row."""
    folder = Path(shell.__file__).parents[1] / "simspec" / "published" / "kernels"
    frames = {n: pd.read_parquet(folder / f"{n}.parquet") for n in COLUMNS}
    held = {n: f[(f.device == "h100") & (f.engine == "vllm")] for n, f in frames.items()}
    shape = ModelShape("s", 3, 4096, 32, 8, 128, 8192, 65536)
    for rows, batch in ((16, 16), (48, 16)):

        def gemm(n, k, m=rows):
            return looked_up(held["gemm"], dtype="bf16", m=m, n=n, k=k)

        heads = 32 * rows // batch
        attention = looked_up(held["attention"], head_dim=128, heads=heads, kv_heads=8,
                              batch=batch, context=1023)  # fmt: skip
        layer = gemm(6144, 4096) + gemm(4096, 4096) + gemm(16384, 4096) + gemm(4096, 8192)
        expected = 3 * (layer + attention) + gemm(65536, 4096)
        parts = pass_parts(h100(), shape, rows, batch, 1023)
        assert sum(part.seconds for part in parts) == pytest.approx(expected)
        assert pass_seconds(h100(), shape, rows, batch, 1023) == pytest.approx(expected)
        products = [part.time.status for part in parts if part.name != "attention"]
        assert set(products) == {"measured"}
    # two GPUs: half of each layer, and two all-reduces of a layer and one of the embedding
    shape = replace(shape, hidden=16384)
    two = pass_parts(h100(tp=2), shape, 16, 16, 1023)
    layer = gemm(3072, 4096, 16) + gemm(4096, 2048, 16) + gemm(16384, 4096, 16)
    layer += gemm(4096, 8192, 16) + looked_up(
        held["attention"], head_dim=128, heads=16, kv_heads=4, batch=16, context=1023
    )
    reduced = looked_up(held["all_reduce"], gpus=2, bytes=2 * 16 * 4096)
    head = Products(shipped_times("h100", "vllm").products["bf16"].lines).at(16, 32768, 4096)[0]
    assert sum(part.seconds for part in two) == pytest.approx(3 * layer + 7 * reduced + head)
    # experts are one kernel of the table, beside their router
    names = {part.name: part for part in pass_parts(h100(), SPARSE, 8, 8, 1023)}
    routed = looked_up(held["moe"], width=2048, hidden=768, topk=8, experts=128, tp=1, tokens=8)
    assert names["experts"].seconds == pytest.approx(48 * routed)
    assert "router 128x2048" in names
    assert "gate and up 1536x2048" not in names


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 2000))
@settings(max_examples=15, deadline=None)
def test_cost_is_the_sum_of_its_passes(K, batch, context):
    held = EngineConstants(step=1e-3, row=1e-5, draft=2e-4)
    prices = h100(constants=held)
    cost = kernel_cost(prices, SMALL, EAGLE3, K, batch, context)
    for j in range(K + 1):
        rows = batch * (j + 1)
        expected = pass_seconds(prices, SMALL, rows, batch, context) + 1e-5 * rows
        assert cost.verify[j] == pytest.approx(expected)
        if batch > 1:
            assert cost.passes[batch * j] == cost.verify[j]
    assert cost.baseline == pytest.approx(1e-3 + cost.verify[0])
    assert cost.overhead == 1e-3
    first = pass_seconds(prices, EAGLE3, batch * (K + 1), batch, context, batch)
    fused = prices.times.product(batch * (K + 1), 4096, 3 * 4096, "bf16").seconds
    later = sum(pass_seconds(prices, EAGLE3, batch, batch, context + i) for i in range(1, K))
    assert cost.draft[K] == pytest.approx(first + fused + later + 2e-4 * K)
    ngram = kernel_cost(prices, SMALL, None, K, batch, context)
    assert not ngram.draft.any() and not ngram.catch_up.any()  # noqa: PT018
    np.testing.assert_array_equal(ngram.verify, cost.verify)


@given(st.lists(st.integers(0, 5), min_size=4, max_size=4), st.booleans())
@settings(max_examples=25, deadline=None)
def test_ragged_drafts_of_a_batch_are_priced_by_their_rows(drafted, graphs):
    prices = h100(captured=CAPTURED if graphs else ())
    cost = kernel_cost(prices, SMALL, EAGLE3, 5, 4, 1000)
    one = np.ones(1, np.int64)
    load = StepLoad(4 * one, sum(drafted) * one, max(drafted) * one, sum(drafted) * one,
                    max(drafted) * one, np.zeros(1), 4000.0 * one,
                    1000.0 * sum(drafted) * one)  # fmt: skip
    rows = 4 + sum(drafted)
    expected = cost.draft[max(drafted)] + pass_seconds(prices, SMALL, rows, 4, 1000)
    moved = cost.kv_draft * 1000 * (sum(drafted) - 4 * max(drafted))
    assert BatchCost(cost, 4).seconds(load)[0] == pytest.approx(expected + moved)
    # the control: on the line between multiples of the batch this is another time
    line = BatchCost(replace(cost, passes=None), 4).seconds(load)[0]
    assert line == pytest.approx(expected + moved, rel=0.2)
    if rows % 4 == 0:
        assert line == pytest.approx(expected + moved)


def test_the_line_misses_a_step_of_the_products():
    cost = kernel_cost(h100(), SMALL, EAGLE3, 5, 64, 1000)
    rows = np.arange(len(cost.passes)) / 64
    line = np.interp(rows, np.arange(6), cost.verify)
    assert np.abs(cost.passes / line - 1).max() > 0.05


def test_graphs_pad_rows_to_the_next_captured_size():
    padded, plain = h100(captured=CAPTURED), h100()
    assert [padded.padded(rows) for rows in (1, 3, 9, 257, 513)] == [1, 4, 16, 272, 513]
    product = [
        [part.seconds for part in pass_parts(prices, LLAMA, rows, 3, 100) if "qkv" in part.name]
        for prices, rows in ((padded, 9), (plain, 16), (plain, 9))
    ]
    assert product[0] == product[1] != product[2]


def test_contexts_move_by_the_slope_of_attention():
    cost = kernel_cost(h100(), LLAMA, EAGLE3, 3, 32, 2048)
    for context in (0, 1500, 3000):
        one = np.ones(1, np.int64)
        moved = BatchCost(cost, 32).plain_seconds(32 * one, np.array([32.0 * context]))[0]
        exact = kernel_cost(h100(), LLAMA, None, 1, 32, context).baseline
        assert moved == pytest.approx(exact, rel=0.08)
        assert moved > 0


@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), st.randoms())
@settings(max_examples=10, deadline=None)
def test_fit_finds_the_constants_that_made_the_cells(step, row, draft, random):
    held = EngineConstants(step / 4000, row / 400_000, draft / 20_000)
    prices = h100(constants=held)
    wanted = [(0, b, None) for b in (1, 32)] + [(K, b, EAGLE3) for K in (1, 3) for b in (1, 16)]
    cells = []
    for K, batch, drafter in wanted:
        blank = SpeedCell(SMALL, drafter, K, batch, 512, seconds=1.0)
        seconds = cell_prediction(prices, blank)
        plain = cell_prediction(prices, replace(blank, K=0))
        ratio = K > 0 and random.random() < 0.5
        cells.append(
            replace(blank, seconds=None, ratio=seconds / plain) if ratio
            else replace(blank, seconds=seconds)
        )  # fmt: skip
    found = fit_constants(h100(), cells, ("step", "row", "draft"))
    for name in ("step", "row", "draft"):
        assert getattr(found, name) == pytest.approx(getattr(held, name), rel=1e-4, abs=1e-8)
    assert max(map(abs, cell_errors(h100(constants=found), cells))) < 1e-5
    # the constants that prices hold already do not enter
    assert fit_constants(prices, cells, ("step",)) == fit_constants(h100(), cells, ("step",))


def test_published_steps_and_rounds_are_repeated_without_a_fit():
    """SpecDecode-Bench's terms of Llama-3.1-8B on an H100 (simulator at 2fdccbd, predictor.py), and
    the audit's mean rounds at batch 1 (pramodjella at 0c0fa77) with vLLM."""

    def published(batch, context):
        return (5.886 + 0.02101 * batch + 3.926e-5 * batch * context) / 1e3

    cells = [
        SpeedCell(LLAMA, None, 0, batch, 256, published(batch, 256)) for batch in (1, 8, 32, 64)
    ]
    assert max(map(abs, cell_errors(h100(), cells))) < 0.03
    large = [SpeedCell(LLAMA, None, 0, 128, 256, published(128, 256))]
    assert cell_errors(h100(), large)[0] == pytest.approx(-0.138, abs=0.01)
    audit = {1: 1.070, 2: 1.124, 3: 1.219, 5: 1.351, 7: 1.482}
    rounds = [SpeedCell(LLAMA, EAGLE3, K, 1, 256, ratio=ratio) for K, ratio in audit.items()]
    errors = cell_errors(h100(), rounds)
    assert max(map(abs, errors)) < 0.065
    assert np.median(np.abs(errors)) < 0.035
    # the control: another device's kernels are told apart
    h200 = KernelPrices(shipped_times("h200", "vllm"))
    assert min(map(abs, cell_errors(h200, cells[:1]))) > 0.15


@pytest.mark.parametrize("device", ("a100", "h100", "h200", "l40s"))
@pytest.mark.parametrize("engine", ENGINES)
def test_every_shipped_device_prices_a_dense_and_a_sparse_model(device, engine):
    prices = KernelPrices(shipped_times(device, engine))
    one, many = (pass_seconds(prices, LLAMA, rows, rows, 500) for rows in (1, 128))
    least = 15e9 / {"a100": 2.04e12, "h100": 3.35e12, "h200": 4.8e12, "l40s": 0.864e12}[device]
    assert least < one < 1.6 * least
    assert one < many < 6 * one
    assert pass_seconds(prices, SPARSE, 1, 1, 500) < one
    shares = pass_shares(pass_parts(prices, LLAMA, 4, 4, 500))
    assert sum(shares.values()) == pytest.approx(1)
    assert 0 < shares["measured"] < 1


def test_a_batch_of_passes_survives_its_file(tmp_path):
    table = kernel_table(h100(), SMALL, EAGLE3, 2, (1, 2), (100, 200))
    table.to_json(tmp_path / "t.json")
    again = load_cost(tmp_path / "t.json")
    assert again.to_dict() == table.to_dict()
    assert again.cells[0][0].passes is None
    between = again.at(2, 150)
    low, high = (cell.passes for cell in again.cells[1])
    np.testing.assert_allclose(between.passes, (low + high) / 2)
    assert again.origin.products["target qkv 6144x4096"] == "measured"
    assert again.origin.products["target head 128256x4096"] == "extrapolated"
    data = again.cells[1][0].to_dict()
    for bad in ("x", [], ["x"], [-1.0], [float("inf")]):
        with pytest.raises(ValueError):
            CostModel.from_dict(data | {"passes": bad})


def test_what_does_not_fit_is_none_or_one_line():
    table = kernel_table(h100(), LLAMA, None, 2, (1, 128), (100, 16384))
    assert [[cell is None for cell in row] for row in table.cells] == [[False] * 2, [False, True]]
    large = SHAPES["llama-3.1-70b"]
    with pytest.raises(ValueError, match="needs 141.* GB on each of 1 GPUs"):
        kernel_cost(h100(), large, None, 2)
    assert kernel_cost(h100(tp=4), large, draft_head(large, "eagle3"), 2).baseline > 0.01
    with pytest.raises(ValueError, match="does not divide by 3 GPUs"):
        kernel_cost(h100(tp=3), large, None, 2)
    with pytest.raises(ValueError, match="same tokenizer"):
        kernel_cost(h100(), LLAMA, SHAPES["llama-68m"], 2)
    with pytest.raises(ValueError, match="no published head"):
        draft_head(SHAPES["mixtral-8x7b"], "eagle3")
    with pytest.raises(ValueError, match=r"2 \(bf16\) or 1 \(fp8\)"):
        kernel_cost(h100(), replace(LLAMA, weight_bytes=0.5), None, 2)
    fp8 = pass_seconds(h100(), replace(LLAMA, weight_bytes=1.0), 1, 1, 256)
    assert 0.5 < fp8 / pass_seconds(h100(), LLAMA, 1, 1, 256) < 0.75


def test_sparse_shapes_are_no_dense_decoders():
    assert read_shape("llama-3.1-8b") == LLAMA
    with pytest.raises(ValueError, match="'qwen3-30b-a3b' is unknown"):
        read_shape("qwen3-30b-a3b")
    for experts, topk in ((8, 0), (0, 2), (2, 8), (8.0, 2), (-1, -1)):
        with pytest.raises(ValueError, match="expected 0 of 0, or at least one"):
            replace(LLAMA, experts=experts, topk=topk)
