"""Latency grids: minimum latencies, files, cost models and the command."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from grid_machine import DRAFTERS, SPEEDS, TINY, simulate, small
from shell import command, refused

from real.drafters import random_drafter
from real.measure import time_grid
from real.measure.device_limits import DeviceSpeeds, Quantiles
from real.measure.latency_grid import TARGET, LatencyGrid, PassLatency, minimum_latency
from real.measure.time_grid import grid_cost, grid_cost_table
from real.model.random_models import random_decoder, read_target
from simspec import CostModel
from simspec.cost.roofline import pass_seconds
from simspec.cost.shapes import Device
from simspec.cost.table import CostTable, load_cost


@pytest.fixture
def machine(monkeypatch):
    return simulate(monkeypatch)


def good():
    cells = (
        PassLatency(TARGET, 1, 8, 2, 2.0, 1.0, 3.0, 0.5, 4.0),
        PassLatency(TARGET, 4, 8, 2, None, None, None, 0.5, None),
    )
    return LatencyGrid("cpu", "float32", TINY, True, False, 3, SPEEDS, cells)


def test_grid_round_trips_through_its_file(tmp_path):
    good().to_json(tmp_path / "l.json")
    assert LatencyGrid.from_json(tmp_path / "l.json") == good()


@pytest.mark.parametrize(
    "damage, words",
    [
        (lambda d: d.pop("speeds"), "missing keys"),
        (lambda d: d.update(more=1), "unknown keys"),
        (lambda d: d.update(graphed=1), "graphed is"),
        (lambda d: d.update(repeats=0), "repeats is"),
        (lambda d: d.update(cells={}), "cells is"),
        (lambda d: d["shape"].update(layers=0), "layers is 0"),
        (lambda d: d["shape"].update(tied=3), "shape: name"),
        (lambda d: d["speeds"]["rate"].update(median=0), "rate is"),
        (lambda d: d["speeds"]["bandwidth"].pop("p10"), "missing keys"),
        (lambda d: d["cells"].append(1), "holds a int"),
        (lambda d: d["cells"].append(d["cells"][0]), "is there twice"),
        (lambda d: d["cells"][0].update(width=0), "width is 0"),
        (lambda d: d["cells"][0].update(width=True), "width is True"),
        (lambda d: d["cells"][0].update(batch=1.0), "batch is 1.0"),
        (lambda d: d["cells"][0].update(part=None), "part is no text"),
        (lambda d: d["cells"][0].update(median_s=None), "null in all four"),
        (lambda d: d["cells"][0].update(floor_s=-1), "floor_s is -1"),
        (lambda d: d["cells"][0].update(p10_s=2.5), "growing seconds"),
        (lambda d: d["cells"][0].update(distance=3.0), "not median / floor"),
        (lambda d: d["cells"][0].update(p90_s="3"), "p90_s is '3'"),
    ],
)
def test_damaged_file_is_refused_in_one_line(tmp_path, damage, words):
    data = json.loads(json.dumps(good().to_dict()))
    damage(data)
    (tmp_path / "l.json").write_text(json.dumps(data))
    with pytest.raises(ValueError, match=words) as error:
        LatencyGrid.from_json(tmp_path / "l.json")
    assert "l.json: not a latency grid" in str(error.value)
    assert "\n" not in str(error.value)


def test_target_is_a_name_or_a_model_folder(tmp_path):
    tiny = read_target("real/tiny/target")
    assert (tiny.name, tiny.layers > 0, tiny.tied) == ("target", True, tiny.tied)
    assert read_target("llama-3-8b").hidden == 14336
    with pytest.raises(ValueError, match="config.json"):
        read_target(str(tmp_path))


def test_minimum_latency_equals_hand_computation():
    # 4-byte weights: 2 layers of 4 16 16 + 3 16 48, a head of 16 24; a cached row: 2 layers 2 16
    shape = replace(TINY, hidden=48, weight_bytes=4.0, cache_bytes=4.0)
    weights = 2 * (4 * 256 + 3 * 768) + 384
    moved = 4 * weights + 3 * (8 + 2) * 2 * 2 * 16 * 4
    slow = DeviceSpeeds(Quantiles(1e3, 1, 1e4), Quantiles(1e30, 1, 1e31))
    assert minimum_latency(shape, slow, 2, 3, 8) == pytest.approx(moved / 1e3)
    # 3 sequences of 2 rows, which attend over 9 and 10 rows of 16 numbers, twice, in 2 layers
    computed = 2 * weights * 6 + 3 * (9 + 10) * 2 * 2 * 16 * 2
    busy = DeviceSpeeds(Quantiles(1e30, 1, 1e31), Quantiles(1e3, 1, 1e4))
    assert minimum_latency(shape, busy, 2, 3, 8) == pytest.approx(computed / 1e3)
    assert minimum_latency(shape, SPEEDS, 2, 3, 8) == max(moved / 1e9, computed / 1e10)
    assert minimum_latency(shape, busy, 2, 3, 8, extra_weights=100) == pytest.approx(
        (computed + 2 * 100 * 6) / 1e3
    )


def test_cost_interpolates_medians_between_widths(machine):
    grid = small(machine, widths=(1, 2, 5), batches=(1,), contexts=(8,), drafters=("eagle",))
    model = grid_cost(grid, 1, 8, "eagle")
    assert model.verify.tolist() == [0.5, 1.0, *np.interp([3, 4], [2, 5], [1.0, 1.5]), 1.5]
    assert (model.baseline, model.overhead, model.catch_up.tolist()) == (0.5, 0.0, [0.0])
    assert model.draft.tolist() == [2.0 * j for j in range(5)]
    assert model.device == grid.device
    assert grid_cost(grid, 1, 8, 0.125).draft.tolist() == [0.125 * j for j in range(5)]
    for cell, words in (
        ((2, 8, 0.1), "batch 2, context 8"),
        ((1, 8, "medusa"), "'medusa' was not measured"),
    ):
        with pytest.raises(ValueError, match=words):
            grid_cost(grid, *cell)
    with pytest.raises(ValueError, match="1 and a wider one"):
        grid_cost(small(machine, widths=(2, 3), batches=(1,), contexts=(8,)), 1, 8, 0.1)


def test_cost_is_not_smoothed(machine):
    machine.seconds = [[s] * 3 for s in (1.0, 1.0, 3.0, 2.0)]
    grid = small(machine, widths=(1, 2, 3, 4), batches=(1,), contexts=(8,))
    assert grid_cost(grid, 1, 8, 0.1).verify.tolist() == [1.0, 1.0, 3.0, 2.0]


def test_cost_table_can_be_loaded(machine, tmp_path):
    grid = small(machine, drafters=("medusa",))
    grid_cost_table(grid, "medusa").to_json(tmp_path / "c.json")
    table = load_cost(tmp_path / "c.json")
    assert isinstance(table, CostTable)
    assert isinstance(table.at(2, 4), CostModel)
    assert table.at(3, 8) == grid_cost(grid, 3, 8, "medusa")


SIZES = "--width 1 --width 3 --batch 1 --batch 2 --context 8 --repeats 2 --drafter medusa"


ARGUMENTS = f"latency --target 2x16x2x24 --dtype float32 {SIZES}".split()


def test_latency_command_writes_grid_table_and_plot(tmp_path, monkeypatch):
    monkeypatch.setattr(time_grid, "device_speeds", lambda *_, **__: SPEEDS)
    out = ["--out", "l.json", "--table", "c.json", "--plot", "l.png"]
    code, output, _ = command(tmp_path, *ARGUMENTS, *out)
    assert code == 0
    assert "copy bandwidth 1.0 GB/s" in output
    assert "medusa, one step" in output
    grid = LatencyGrid.from_json(tmp_path / "l.json")
    assert len(grid.cells) == 6
    assert (tmp_path / "l.png").read_bytes().startswith(b"\x89PNG")
    code, output, _ = command(tmp_path, *ARGUMENTS, *out, "--json")  # nothing left to do
    assert code == 0
    assert (
        LatencyGrid.from_dict(json.loads(output))
        == grid
        == LatencyGrid.from_json(tmp_path / "l.json")
    )
    sweep = (
        "sweep",
        "tiny-model-greedy",
        "--cost",
        "c.json",
        "--policy",
        "fixed:2",
        "--batch",
        "2",
        "--context",
        "8",
        "--json",
    )
    code, output, error = command(tmp_path, *sweep)
    assert code == 0, error
    assert "medusa-b2-c8" in output
    (tmp_path / "l.json").write_text("[]")
    refused(tmp_path, *ARGUMENTS, "--out", "l.json", words="not a latency grid")


def test_latency_command_validates_input_first(tmp_path):
    refused(
        tmp_path,
        "latency",
        "--target",
        "2x16x2",
        "--out",
        "l.json",
        "--table",
        "c.json",
        words="--table needs --drafter",
    )
    refused(
        tmp_path,
        "latency",
        "--target",
        "2x16x2",
        "--out",
        "l.json",
        "--dtype",
        "int8",
        words="dtype 'int8' is unknown",
    )
    refused(tmp_path, "latency", "--target", "2x16x3", "--out", "l.json", words="does not split")
    refused(
        tmp_path, "latency", "--target", "2x16x2", "--out", "no/l.json", words="there is no folder"
    )
    refused(tmp_path, *ARGUMENTS, "--out", "l.json", "--plot", "l.json", words="would overwrite")


def test_minimum_of_target_pass_equals_roofline(machine):
    card = Device("this", 1e9, 1e10, 1e12)
    for c in small(machine).cells:
        sized = replace(TINY, weight_bytes=4.0, cache_bytes=4.0)
        assert c.floor_s == pass_seconds(sized, card, c.width, c.batch, c.context)


@pytest.mark.parametrize("text", DRAFTERS)
def test_minimum_of_drafter_step_counts_its_weights(machine, text):
    cell = small(machine, widths=(1,), batches=(1,), contexts=(0,), drafters=(text,)).by_width(
        1, 0, text
    )[0]
    decoder = random_decoder(TINY, torch.float32, "cpu")
    drafter = random_drafter(text, decoder, TINY, 1)
    lm = getattr(drafter, "lm", None)
    read = [*lm.layers, lm.head] if lm else [drafter.head, decoder.head]
    weights = sum(
        m.weight.numel() for part in read for m in part.modules() if isinstance(m, torch.nn.Linear)
    )
    shape = decoder.config if lm is None else lm.config
    layers = len(lm.layers) if lm else text == "eagle"
    rows = layers * 2 * shape.kv_heads * shape.head_dim
    assert cell.floor_s == pytest.approx((weights + rows) * 4 / 1e9)
