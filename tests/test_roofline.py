import json
import math
from dataclasses import replace

import numpy as np
import pytest
import shell
from hypothesis import given
from hypothesis import strategies as st
from naive_pass import devices, drafters, shapes, twin

from simspec import CostModel, formulas
from simspec.cost.roofline import (
    MAX_BACKLOG,
    pass_seconds,
    roofline_cost,
    roofline_memory,
    roofline_table,
)
from simspec.cost.shapes import DEVICES, SHAPES, ModelShape
from simspec.cost.table import CostTable, load_cost


@given(
    shapes, drafters, devices, st.integers(1, 8), st.integers(1, 5), st.integers(MAX_BACKLOG, 30)
)
def test_cost_equals_sums_of_passes(target, drafter, device, K, batch, context):
    cost = roofline_cost(target, drafter, device, K, batch, context)
    assert cost.K == K
    assert len(cost.catch_up) == MAX_BACKLOG + 1
    assert (np.diff(cost.verify) >= -1e-9).all()
    assert (np.diff(cost.draft) > 0).all()
    full = twin(target, device, 1, batch, context)
    assert cost.baseline == pytest.approx(full) == cost.verify[0]
    if isinstance(drafter, ModelShape):
        expected = [twin(target, device, j + 1, batch, context) for j in range(K + 1)]
        steps = [twin(drafter, device, 1, batch, context + i) for i in range(K)]
        catch_up = [
            twin(drafter, device, 1 + b, batch, context - b) - steps[0]
            for b in range(MAX_BACKLOG + 1)
        ]
    else:
        n = min(max(round(drafter * target.layers), 1), target.layers - 1)
        rest = [
            twin(target, device, 1, batch, context + j, n, False)
            + twin(target, device, j + 1, batch, context, target.layers - n)
            - device.overhead
            for j in range(1, K + 1)
        ]
        expected = [full, *rest]
        steps = [twin(target, device, 1, batch, context + i, n + 1) for i in range(K)]
        layer = [
            twin(target, device, 1 + b, batch, context - b, 1, False)
            for b in range(MAX_BACKLOG + 1)
        ]
        catch_up = [t - layer[0] for t in layer]
    np.testing.assert_allclose(cost.verify, expected)
    np.testing.assert_allclose(cost.draft, [math.fsum(steps[:j]) for j in range(K + 1)])
    np.testing.assert_allclose(cost.catch_up, np.maximum(catch_up, 0), atol=1e-9)


def test_launches_are_priced_per_layer_and_pass():
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


def test_cells_beyond_memory_are_missing_or_refused():
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
def test_invalid_arguments_are_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def run(capsys, *arguments):
    return shell.run(capsys, "roofline", *arguments)


def test_command_writes_a_cost_file(capsys, tmp_path):
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
    device, shape = (
        replace(DEVICES["a100"], launch=1e-5),
        replace(SHAPES["llama-3-8b"], weight_bytes=1.0),
    )
    assert table.at(512, 64) == roofline_cost(shape, 0.1, device, 4, 512, 64)


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
def test_user_errors_are_one_line_and_exit_code_2(capsys, tmp_path, monkeypatch, change, words):
    monkeypatch.chdir(tmp_path)
    options = {"--target": "llama-3-8b", "--drafter": "llama-3.2-1b", "--out": "cost.json"} | {
        change[0]: change[1]
    }
    code, out, err = run(capsys, *(part for pair in options.items() for part in pair))
    assert code == 2
    assert out == ""
    assert words in err
    assert err.count("\n") == 1
    assert err.startswith("simspec: ")
    assert not list(tmp_path.iterdir())
