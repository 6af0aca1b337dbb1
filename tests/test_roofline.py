import json
import math
from dataclasses import replace

import numpy as np
import pytest
import shell
import torch
from hypothesis import given
from hypothesis import strategies as st

from real.model.config import DecoderConfig
from real.model.decoder import Decoder
from simspec import CostModel, formulas
from simspec.cost_table import CostTable, load_cost
from simspec.device import DEVICES, Device
from simspec.model_shape import SHAPES, ModelShape, cache_bytes, matrix_weights, memory, parameters
from simspec.pass_cost import pass_bytes, pass_flops, pass_seconds
from simspec.roofline import MAX_BACKLOG, roofline_cost, roofline_memory, roofline_table

SLOW = Device("slow memory", bandwidth=1e9, rate=1e30, memory=1e30)
WEAK = Device("weak arithmetic", bandwidth=1e30, rate=1e12, memory=1e30)

small = st.integers(1, 6)
shapes = st.builds(
    ModelShape,
    st.just("s"),
    st.integers(2, 6),
    small,
    small,
    small,
    small,
    small,
    st.just(5),
    st.booleans(),
    st.sampled_from([1, 2.0, 4]),
)
figures = st.integers(1, 1000).map(float)
seconds = st.integers(0, 8).map(lambda n: n / 8)
cards = st.builds(
    Device,
    st.just("c"),
    figures,
    figures,
    st.just(1e30),
    st.sampled_from([1, 2, 8, 64]),
    seconds,
    seconds,
)
drafters = st.one_of(shapes, st.sampled_from([0.1, 0.5, 0.9]))


def twin(s, card, rows, batch, context, layers=None, head=True):
    """Seconds of a pass, matrix by matrix and row by row."""
    inner, shared = s.heads * s.head_dim, s.kv_heads * s.head_dim
    sizes = [(s.width, inner), (s.width, shared), (s.width, shared), (inner, s.width)]
    sizes += [(s.width, s.hidden), (s.width, s.hidden), (s.hidden, s.width)]
    matrices = sizes * (s.layers if layers is None else layers) + [(s.width, s.vocab)] * head
    padded = 0
    while padded < batch * rows:
        padded += card.tile
    operations = sum(2 * a * b * padded for a, b in matrices)
    moved = sum(a * b * s.weight_bytes for a, b in matrices)
    for _ in range(s.layers if layers is None else layers):
        for _ in range(batch):
            moved += 2 * shared * s.cache_bytes * (context + rows)
            for row in range(rows):
                operations += (
                    s.heads * (context + row + 1) * s.head_dim * 2 * 2
                )  # scores, and the mix of values
    launched = card.overhead + card.launch * (s.layers if layers is None else layers)
    return launched + max(moved / card.bandwidth, operations / card.rate)


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
def test_known_models_have_their_known_size(name, total):
    assert parameters(SHAPES[name]) == total


def test_keys_and_values_take_the_known_bytes():
    # half a megabyte a token without grouped queries; a quarter of that with 8 of 32 heads
    assert [cache_bytes(SHAPES[n]) for n in ("llama-2-7b", "llama-3-8b", "llama-2-70b")] == [
        524_288,
        131_072,
        327_680,
    ]
    assert memory(SHAPES["llama-3-8b"], 2, 100) == 2 * 8_030_261_248 + 2 * 100 * 131_072


@pytest.mark.parametrize("tied", [True, False])
def test_parameters_are_those_of_our_own_decoder(tied):
    sizes = dict(
        vocab=50, width=24, layers=3, heads=4, kv_heads=2, head_dim=8, hidden=40, tied=tied
    )
    with torch.device("meta"):
        counted = sum(p.numel() for p in Decoder(DecoderConfig(**sizes)).parameters())
    assert parameters(ModelShape(name="ours", **sizes)) == counted


@given(
    shapes,
    cards,
    st.integers(1, 9),
    st.integers(1, 5),
    st.integers(0, 9),
    st.sampled_from([{}, {"layers": 1, "head": False}]),
)
def test_a_pass_is_the_slow_twins(shape, card, rows, batch, context, part):
    assert pass_seconds(shape, card, rows, batch, context, **part) == pytest.approx(
        twin(shape, card, rows, batch, context, **part), rel=1e-12
    )


@given(
    st.sampled_from(list(SHAPES.values())),
    st.integers(1, 300),
    st.integers(1, 64),
    st.integers(0, 9000),
)
def test_both_limits(shape, rows, batch, context):
    bytes_, operations = (
        pass_bytes(shape, rows, batch, context),
        pass_flops(shape, rows, batch, context),
    )
    assert pass_seconds(shape, SLOW, rows, batch, context) == bytes_ / 1e9
    assert pass_seconds(shape, WEAK, rows, batch, context) == operations / 1e12
    assert bytes_ > 2 * matrix_weights(shape)
    assert operations > 2 * matrix_weights(shape) * rows * batch


@given(shapes, cards, st.integers(1, 40), st.integers(1, 9), st.integers(0, 30))
def test_a_pass_grows_with_rows_batch_and_context_and_is_at_least_either_bound(
    shape, card, rows, batch, context
):
    here = pass_seconds(shape, card, rows, batch, context)
    for more in (
        (rows + 1, batch, context),
        (rows, batch + 1, context),
        (rows, batch, context + 1),
    ):
        assert pass_seconds(shape, card, *more) >= here
    dry = card.overhead + card.launch * shape.layers
    assert here >= dry + pass_bytes(shape, rows, batch, context) / card.bandwidth
    assert here >= dry + pass_flops(shape, rows, batch, context, card.tile) / card.rate


@given(shapes, st.integers(1, 200), st.integers(1, 5), st.sampled_from([2, 16, 64]))
def test_the_staircase_is_the_tile(shape, rows, batch, tile):
    padding = pass_flops(shape, rows, batch, 3, tile) - pass_flops(shape, rows, batch, 3)
    missing = -(batch * rows) % tile
    assert padding == 2 * matrix_weights(shape) * missing
    assert 0 <= missing < tile


def test_the_knee_is_where_arithmetic_overtakes_memory():
    # weights of 2 bytes are used twice a row: rate / bandwidth rows, and a little less as caches
    # count for more arithmetic than bytes
    card, shape = DEVICES["h100"], SHAPES["llama-2-7b"]
    knee = card.rate / card.bandwidth
    assert 295 < knee < 296
    bound = [
        pass_seconds(shape, card, rows, 1, 0) * card.bandwidth
        == pytest.approx(pass_bytes(shape, rows, 1, 0))
        for rows in (256, 320)
    ]
    assert bound == [True, False]
    fine = replace(card, tile=1)
    last = max(
        r
        for r in range(1, 400)
        if pass_flops(shape, r, 1, 0) / card.rate <= pass_bytes(shape, r, 1, 0) / card.bandwidth
    )
    assert 280 < last < knee + 10
    # formulas.roofline is this with weights alone
    rows = np.arange(1, 500)
    simple = formulas.roofline(500, knee)[1:500]
    ours = np.array([pass_seconds(shape, fine, int(r), 1, 0) for r in rows]) / (
        2 * matrix_weights(shape) / card.bandwidth
    )
    np.testing.assert_allclose(ours, simple, rtol=0.03)


@given(shapes, drafters, cards, st.integers(1, 8), st.integers(1, 5), st.integers(MAX_BACKLOG, 30))
def test_a_cost_is_made_of_passes(target, drafter, card, K, batch, context):
    cost = roofline_cost(target, drafter, card, K, batch, context)
    assert cost.K == K
    assert len(cost.catch_up) == MAX_BACKLOG + 1
    assert (np.diff(cost.verify) >= -1e-9).all()
    assert (np.diff(cost.draft) > 0).all()
    full = twin(target, card, 1, batch, context)
    assert cost.baseline == pytest.approx(full) == cost.verify[0]
    if isinstance(drafter, ModelShape):
        expected = [twin(target, card, j + 1, batch, context) for j in range(K + 1)]
        steps = [twin(drafter, card, 1, batch, context + i) for i in range(K)]
        backlog = [
            twin(drafter, card, 1 + b, batch, context - b) - steps[0]
            for b in range(MAX_BACKLOG + 1)
        ]
    else:
        n = min(max(round(drafter * target.layers), 1), target.layers - 1)
        rest = [
            twin(target, card, 1, batch, context + j, n, False)
            + twin(target, card, j + 1, batch, context, target.layers - n)
            - card.overhead
            for j in range(1, K + 1)
        ]
        expected = [full, *rest]
        steps = [twin(target, card, 1, batch, context + i, n + 1) for i in range(K)]
        own = [
            twin(target, card, 1 + b, batch, context - b, 1, False) for b in range(MAX_BACKLOG + 1)
        ]
        backlog = [t - own[0] for t in own]
    np.testing.assert_allclose(cost.verify, expected)
    np.testing.assert_allclose(cost.draft, [math.fsum(steps[:j]) for j in range(K + 1)])
    np.testing.assert_allclose(cost.catch_up, np.maximum(backlog, 0), atol=1e-9)


def test_launches_are_paid_by_layer_and_pass():
    dry, wet = (
        roofline_cost(SHAPES["llama-2-7b"], 0.1, replace(DEVICES["a100"], launch=x, overhead=y), 2)
        for x, y in ((0, 0), (1.0, 8.0))
    )
    np.testing.assert_allclose(
        wet.verify - dry.verify, 32 + 8, rtol=1e-9
    )  # an early exit's verification is one pass
    np.testing.assert_allclose(
        wet.draft - dry.draft, [0, 4 + 8, 2 * (4 + 8)], rtol=1e-9
    )  # 3 layers shared and 1 of its own


def test_gains_shrink_with_the_batch():
    table = roofline_table(
        SHAPES["llama-3-8b"], SHAPES["llama-3.2-1b"], DEVICES["h100"], 8, [1, 16, 64, 256], [1024]
    )
    k = np.arange(9)
    gains = []
    for batch in table.batch:
        cost = table.at(batch, 1024)
        gains.append(
            formulas.expected_committed(0.8, k) * cost.baseline / (cost.draft + cost.verify)
        )
    best = [g.max() for g in gains]
    assert best == sorted(best, reverse=True)
    assert best[0] > 1.5
    assert gains[-1].argmax() < gains[0].argmax()


def test_cells_that_do_not_fit_are_missing_and_sizes_that_never_fit_refused():
    def make(batches, contexts, device="h100"):
        target, drafter = SHAPES["llama-3-8b"], SHAPES["llama-3.2-1b"]
        return roofline_table(target, drafter, DEVICES[device], 4, batches, contexts)

    table = make([256, 1], [8192, 1024])
    assert table.batch == (1, 256)
    assert table.context == (1024, 8192)
    assert table.cells[1][1] is None
    assert roofline_memory(SHAPES["llama-3-8b"], SHAPES["llama-3.2-1b"], 4, 256, 8192) > 80e9
    assert table.at(1, 2000).K == 4
    with pytest.raises(ValueError, match="at batch 256"):
        table.at(2, 2000)
    with pytest.raises(ValueError, match="batch 4096 has no cell at all"):
        make([1, 4096], [1024])
    with pytest.raises(
        ValueError, match=r"needs 140.\d GB at batch 1 and context 1024, H100 SXM has 80"
    ):
        roofline_cost(SHAPES["llama-2-70b"], 0.1, DEVICES["h100"], 4)
    assert (
        roofline_cost(replace(SHAPES["llama-2-70b"], weight_bytes=1.0), 0.1, DEVICES["h100"], 4).K
        == 4
    )


@pytest.mark.parametrize(
    "make, words",
    [
        (
            lambda: replace(SHAPES["llama-2-7b"], layers=0),
            "layers is 0, expected a positive integer",
        ),
        (lambda: replace(SHAPES["llama-2-7b"], width=2.5), "width is 2.5"),
        (lambda: replace(SHAPES["llama-2-7b"], weight_bytes=math.nan), "weight_bytes is nan"),
        (lambda: replace(DEVICES["h100"], bandwidth=0), "bandwidth is 0"),
        (lambda: replace(DEVICES["h100"], tile=1.5), "tile is 1.5"),
        (lambda: replace(DEVICES["h100"], launch=-1), "launch is -1"),
        (lambda: pass_seconds(SHAPES["llama-2-7b"], DEVICES["h100"], 0), "rows is 0"),
        (lambda: roofline_cost(SHAPES["llama-2-7b"], 1.0, DEVICES["h100"], 4), "drafter is 1.0"),
        (lambda: roofline_cost(SHAPES["llama-2-7b"], True, DEVICES["h100"], 4), "drafter is True"),
        (lambda: roofline_cost(SHAPES["llama-2-7b"], "x", DEVICES["h100"], 4), "drafter is 'x'"),
        (
            lambda: roofline_cost(replace(SHAPES["llama-2-7b"], layers=1), 0.5, DEVICES["h100"], 4),
            "has 1 layer",
        ),
        (
            lambda: roofline_cost(SHAPES["llama-3-8b"], SHAPES["llama-68m"], DEVICES["h100"], 4),
            "take one with the same tokenizer",
        ),
        (lambda: roofline_cost(SHAPES["llama-2-7b"], 0.1, DEVICES["h100"], 0), "K is 0"),
        (lambda: roofline_cost(SHAPES["llama-2-7b"], 0.1, DEVICES["h100"], 4, 0), "batch 0"),
        (lambda: roofline_cost(SHAPES["llama-2-7b"], 0.1, DEVICES["h100"], 4, 1, 1), "context 1"),
        (
            lambda: roofline_table(SHAPES["llama-2-7b"], 0.1, DEVICES["h100"], 4, [], [8]),
            "at least one of each",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def run(capsys, *arguments):
    return shell.run(capsys, "roofline", *arguments)


def test_the_command_writes_what_sweep_reads(capsys, tmp_path):
    one, many = tmp_path / "one.json", tmp_path / "many.json"
    code, out, err = run(
        capsys, "--target", "llama-2-7b", "--drafter", "llama-68m", "-k", 4, "--out", one, "--json"
    )
    assert code == 0
    assert err == ""
    assert CostModel.from_dict(json.loads(out)) == load_cost(one)
    assert load_cost(one) == roofline_cost(
        SHAPES["llama-2-7b"], SHAPES["llama-68m"], DEVICES["h100"], 4
    )
    code, out, _ = run(
        capsys,
        "--target",
        "llama-3-8b",
        "--drafter",
        "0.1",
        "--device",
        "a100",
        "-k",
        4,
        "--batch",
        1,
        "--batch",
        512,
        "--context",
        64,
        "--context",
        8192,
        "--weight-bytes",
        1,
        "--launch",
        1e-5,
        "--out",
        many,
    )
    table = load_cost(many)
    assert code == 0
    assert isinstance(table, CostTable)
    assert table.cells[1][1] is None
    assert "does not fit" in out
    card, shape = (
        replace(DEVICES["a100"], launch=1e-5),
        replace(SHAPES["llama-3-8b"], weight_bytes=1.0),
    )
    assert table.at(512, 64) == roofline_cost(shape, 0.1, card, 4, 512, 64)


@pytest.mark.parametrize(
    "change, words",
    [
        (["--target", "llama-9"], "model 'llama-9' is unknown, expected one of llama-2-7b"),
        (["--drafter", "gpt"], "model 'gpt' is unknown"),
        (["--drafter", "nan"], "drafter is nan"),
        (["--device", "abacus"], "device 'abacus' is unknown, expected one of h100"),
        (["-k", "0"], "K is 0"),
        (["--batch", "0"], "batch 0"),
        (["--weight-bytes", "-1"], "weight_bytes is -1"),
        (["--launch", "inf"], "launch is inf"),
        (["--out", "nowhere/cost.json"], "no folder nowhere"),
    ],
)
def test_a_users_error_is_one_line_and_exit_code_2(capsys, tmp_path, monkeypatch, change, words):
    monkeypatch.chdir(tmp_path)
    given = {"--target": "llama-3-8b", "--drafter": "llama-3.2-1b", "--out": "cost.json"} | {
        change[0]: change[1]
    }
    code, out, err = run(capsys, *(part for pair in given.items() for part in pair))
    assert code == 2
    assert out == ""
    assert words in err
    assert err.count("\n") == 1
    assert err.startswith("simspec: ")
    assert not list(tmp_path.iterdir())
