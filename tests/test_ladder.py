"""Ladders: passes as captured compute what the plain decoder computes; times, floors and tables are what was measured."""

import json
import weakref
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from shell import command, refused

from real.drafters import random_drafter
from real.measure import time_grid as climb
from real.measure.device_limits import Speeds
from real.measure.latency_grid import TARGET, Cell, Ladder, floor
from real.measure.time_grid import ladder, rows_pass
from real.measure.timer import Spread
from real.model.cuda_graphs import capture
from real.model.layer import DecoderLayer
from real.model.random_models import random_decoder, read_shape, read_target
from real.model.tree_mask import ancestor_mask, chain
from simspec import CostModel
from simspec.cost_table import CostTable, load_cost
from simspec.device import Device
from simspec.model_shape import ModelShape
from simspec.pass_cost import pass_seconds

TINY = read_shape("2x16x2x24")
SHARED = ModelShape("shared", 2, 16, 4, 2, 4, 24, 30)
SPEEDS = Speeds(Spread(1e9, 9e8, 1.1e9), Spread(1e10, 9e9, 1.1e10))
DRAFTERS = ("early_exit:1", "eagle", "medusa", "model:1x8x1x24")


def filled(decoder, text, start, capacity):
    """A cache that holds the first `start` tokens of `text [batch, n]` and rubbish behind."""
    cache = decoder.cache(batch=len(text), capacity=capacity)
    for part in (cache.key, cache.value):
        part.normal_()
    if start:
        rotation = decoder.rotation(torch.arange(start))
        decoder.run(
            decoder.embed(text[:, :start]),
            range(len(decoder.layers)),
            rotation,
            ancestor_mask(0, chain(start)),
            cache,
        )
    return cache


@pytest.mark.parametrize("still", [True, False])
@pytest.mark.parametrize("shape", [TINY, SHARED])
@torch.inference_mode()
def test_a_captured_pass_gives_the_plain_decoders_logits(shape, still):
    decoder = random_decoder(shape, torch.float64, "cpu")
    for batch, start, width in ((1, 0, 1), (1, 9, 1), (1, 9, 5), (3, 0, 4), (3, 6, 3)):
        text = torch.randint(shape.vocab, (batch, start + width))
        token = text[:, start:].clone()
        function = rows_pass(decoder, filled(decoder, text, start, 16), token, start, still)
        replay = capture(function, decoder.device)
        assert torch.allclose(replay()[0], decoder(text)[:, start:], rtol=0, atol=1e-12)
        # the capture reads its tokens where they stand
        other = (text + 1) % shape.vocab
        other[:, :start] = text[:, :start]
        token.copy_(other[:, start:])
        assert torch.allclose(replay()[0], decoder(other)[:, start:], rtol=0, atol=1e-12)


@torch.inference_mode()
def test_control_rows_at_a_wrong_place_are_noticed():
    decoder = random_decoder(TINY, torch.float64, "cpu")
    text = torch.randint(TINY.vocab, (2, 12))
    cache = filled(decoder, text, 9, 16)
    right, wrong = (rows_pass(decoder, cache, text[:, 9:], start)()[0].clone() for start in (9, 10))
    plain = decoder(text)[:, 9:]
    assert torch.allclose(right, plain, rtol=0, atol=1e-12)
    assert not torch.allclose(wrong, plain, rtol=0, atol=1e-6)


class Machine:
    """In place of a capture: the n-th pass captured takes seconds[n][turn], the turn before the first is very long."""

    def __init__(self, seconds):
        self.seconds, self.time, self.ran, self.functions = seconds, 0.0, [], []

    def capture(self, function, device, pool=None):
        n, turns = (
            len(self.functions),
            iter([1e6, *self.seconds[len(self.functions) % len(self.seconds)]]),
        )
        self.functions.append(function)

        def replay():
            self.ran.append(n)
            self.time += next(turns)

        return replay

    def now(self):
        return self.time


@pytest.fixture
def machine(monkeypatch):
    made = Machine([[0.5 * (n + 1), 0.25 * (n + 1), 4.0 * (n + 1)] for n in range(100)])
    monkeypatch.setattr(climb, "capture", made.capture)
    monkeypatch.setattr(climb, "speeds", lambda *_, **__: SPEEDS)
    return made


def small(machine=None, widths=(1, 2, 4), batches=(1, 3), contexts=(0, 8), **more):
    more = {"timer": machine.now if machine else None, "repeats": 3} | more
    return ladder(TINY, widths, batches, contexts, torch.float32, "cpu", **more)


def test_every_cell_has_its_own_median_and_percentiles(machine):
    told = []
    found = small(machine, drafters=("medusa",), progress=lambda *at: told.append(at))
    assert [c.key for c in found.cells] == [
        (part, b, c, w)
        for c in (0, 8)
        for b in (1, 3)
        for part, w in ((TARGET, 1), (TARGET, 2), (TARGET, 4), ("medusa", 1))
    ]
    for n, c in enumerate(found.cells):
        assert c.median_s == 0.5 * (n + 1)
        assert (c.p10_s, c.p90_s) == pytest.approx(
            ((0.25 + 0.2 * 0.25) * (n + 1), (0.5 + 0.8 * 3.5) * (n + 1))
        )
        assert c.distance == c.median_s / c.floor_s
    assert told == [("timing", n, 16) for n in (4, 8, 12, 16)]
    assert found.graphed
    assert not found.fused
    assert found.speeds == SPEEDS
    assert found.dtype == "float32"


def test_control_times_of_another_pass_are_noticed(machine):
    machine.seconds[0], machine.seconds[1] = machine.seconds[1], machine.seconds[0]
    found = small(machine)
    assert [c.median_s for c in found.cells][:3] == [1.0, 0.5, 1.5]


def test_widths_come_in_a_new_random_order_each_turn(machine):
    small(machine, widths=range(1, 13), batches=(1,), contexts=(4,))
    turns = [machine.ran[i : i + 12] for i in range(0, 48, 12)]
    assert all(sorted(turn) == list(range(12)) for turn in turns)
    assert len(set(map(tuple, turns))) == 4


def test_passes_that_are_issued_one_by_one_are_not_captured(monkeypatch, machine):
    monkeypatch.setattr(climb, "capture", None)
    monkeypatch.setattr(
        climb,
        "laps",
        lambda works, device, timer: [
            0.5 if work()[0].isfinite().all() else None for work in works
        ],
    )
    found = small(graphs=False, drafters=DRAFTERS)
    assert not found.graphed
    assert {c.median_s for c in found.cells} == {0.5}


def test_layers_are_packed_for_captures_alone(machine):
    for graphs in (True, False):
        made = climb._Climb(
            TINY, torch.float32, "cpu", DRAFTERS, graphs, False, 1, 0, machine.now, 4
        )
        wholes = [
            made.decoder,
            made.drafters["eagle"].part,
            made.drafters["early_exit:1"].lm,
            made.drafters["model:1x8x1x24"].lm,
        ]
        layers = [
            layer
            for whole in wholes
            for layer in whole.modules()
            if isinstance(layer, DecoderLayer)
        ]
        assert len(layers) == 2 + 1 + 2 + 1
        assert {layer.fused for layer in layers} == {graphs}


@torch.inference_mode()
def test_every_pass_and_step_has_logits_of_its_rows(machine):
    small(machine, drafters=DRAFTERS)
    sizes = [tuple(function()[0].shape) for function in machine.functions]
    assert sizes == [(b, w, 24) for _ in (0, 8) for b in (1, 3) for w in (1, 2, 4, 1, 1, 1, 1)]


def test_compiled_layers_are_for_captures_on_a_card():
    for more in ({}, {"graphs": False}):
        with pytest.raises(ValueError, match="on a card only"):
            small(compiled=True, **more)


def test_a_floor_by_hand():
    # 2 layers of 4 16 16 + 3 16 48 weights, a head of 16 24; 4 bytes each; a cached row has 2 layers 2 16 numbers
    shape = replace(TINY, hidden=48, weight_bytes=4.0, cache_bytes=4.0)
    weights = 2 * (4 * 256 + 3 * 768) + 384
    moved = 4 * weights + 3 * (8 + 2) * 2 * 2 * 16 * 4
    slow = Speeds(Spread(1e3, 1, 1e4), Spread(1e30, 1, 1e31))
    assert floor(shape, slow, 2, 3, 8) == pytest.approx(moved / 1e3)
    # 3 sequences of 2 rows; a row reads the 8 before it and those of its pass up to itself: 9 + 10 of 16 numbers, twice, in 2 layers
    computed = 2 * weights * 6 + 3 * (9 + 10) * 2 * 2 * 16 * 2
    busy = Speeds(Spread(1e30, 1, 1e31), Spread(1e3, 1, 1e4))
    assert floor(shape, busy, 2, 3, 8) == pytest.approx(computed / 1e3)
    assert floor(shape, SPEEDS, 2, 3, 8) == max(moved / 1e9, computed / 1e10)
    assert floor(shape, busy, 2, 3, 8, more=100) == pytest.approx((computed + 2 * 100 * 6) / 1e3)


def test_floors_are_the_rooflines_in_the_dtypes_bytes(machine):
    card = Device("this", 1e9, 1e10, 1e12)
    for c in small(machine).cells:
        sized = replace(TINY, weight_bytes=4.0, cache_bytes=4.0)
        assert c.floor_s == pass_seconds(sized, card, c.width, c.batch, c.context)


@pytest.mark.parametrize("text", DRAFTERS)
def test_a_steps_floor_counts_the_weights_that_its_modules_hold(machine, text):
    found = small(machine, widths=(1,), batches=(1,), contexts=(0,), drafters=(text,)).line(
        1, 0, text
    )[0]
    decoder = random_decoder(TINY, torch.float32, "cpu")
    drafter = random_drafter(text, decoder, TINY, 1)
    lm = getattr(drafter, "lm", None)
    read = [*lm.layers, lm.head] if lm else [drafter.part, decoder.head]
    weights = sum(
        m.weight.numel() for part in read for m in part.modules() if isinstance(m, torch.nn.Linear)
    )
    shape = decoder.config if lm is None else lm.config
    layers = len(lm.layers) if lm else text == "eagle"
    rows = layers * 2 * shape.kv_heads * shape.head_dim
    assert found.floor_s == pytest.approx((weights + rows) * 4 / 1e9)


def test_a_cell_without_room_is_none_everywhere(machine, monkeypatch, tmp_path):
    alone = climb._Climb(TINY, torch.float32, "cpu", (), True, False, 3, 0, None, 4)
    sized = replace(TINY, weight_bytes=4.0, cache_bytes=4.0)
    alone.shape = sized
    monkeypatch.setattr(climb, "free", lambda device: alone._room(3, 16) / 0.9 * 1.01)
    found = small(machine, batches=(1, 3, 5))
    assert {c.key[:3] for c in found.cells if not c.fits} == {(TARGET, 5, 0), (TARGET, 5, 8)}
    assert all(
        (c.median_s, c.p10_s, c.p90_s, c.distance) == (None,) * 4 and c.floor_s > 0
        for c in found.cells
        if c.batch == 5
    )
    found.to_json(tmp_path / "l.json")
    assert Ladder.from_json(tmp_path / "l.json") == found
    table = found.table(0.1)
    assert table.batch == (1, 3)
    assert table.context == (0, 8)
    with pytest.raises(ValueError, match="batch 5, context 8: widths measured are \\[\\]"):
        found.cost(5, 8, 0.1)


def short(chained):
    try:
        raise torch.OutOfMemoryError("no room")
    except torch.OutOfMemoryError:
        if not chained:
            raise
        raise RuntimeError("the capture could not be ended")


@pytest.mark.parametrize("chained", [False, True])
def test_passes_that_do_not_fit_together_are_measured_apart(machine, monkeypatch, chained):
    held, tried, honest = [], [], machine.capture

    def capture(function, device, pool=None):
        width = function()[0].shape[1]
        tried.append(width)
        if sum(held) + width > 6:
            short(chained)
        replay = honest(function, device, pool)
        held.append(width)
        weakref.finalize(replay, held.remove, width)  # its memory is given back with it
        return replay

    monkeypatch.setattr(climb, "capture", capture)
    found = small(machine, widths=(1, 2, 4, 8), batches=(1,), contexts=(0,))
    assert tried == [1, 2, 4, 1, 2, 4, 8, 4, 8]
    assert not held
    assert [c.fits for c in found.cells] == [True, True, True, False]
    with pytest.raises(ValueError, match=r"widths measured are \[1, 2, 4\]"):
        found.cost(1, 0, 0.1)
    with pytest.raises(ValueError, match="no cell of 2x16x2x24 fits"):
        found.table(0.1)


def test_layers_are_compiled_around_the_capture_where_asked(machine, monkeypatch):
    said = []

    @contextmanager
    def compiled_layers():
        said.append("compiled")
        yield
        said.append("as they were")

    monkeypatch.setattr(climb, "compiled_layers", compiled_layers)
    monkeypatch.setattr(climb, "capture", lambda *_: said.append("captured") or (lambda: None))
    for compiled, expected in (
        (False, ["captured"]),
        (True, ["compiled", "captured", "as they were"]),
    ):
        said.clear()
        made = climb._Climb(TINY, torch.float32, "cpu", (), True, compiled, 1, 0, machine.now, 4)
        assert (
            said == ["compiled", "as they were"] * 2 * compiled
        )  # sizes that differ, so that one compilation does for all
        said.clear()
        made._work((TARGET, 1, 0, 2), made.decoder.cache(2, 1, 8), None)
        assert said == expected


def test_another_error_of_a_capture_is_not_taken_for_one_of_memory(machine, monkeypatch):
    def capture(function, device, pool=None):
        raise RuntimeError("a captured pass read a number on the host")

    monkeypatch.setattr(climb, "capture", capture)
    with pytest.raises(RuntimeError, match="on the host"):
        small(machine)


def test_killed_it_continues_where_it_was(machine, monkeypatch, tmp_path):
    path = tmp_path / "l.json"
    whole = small(machine)

    def killed(label, done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        small(machine, keep=lambda made: made.to_json(path), progress=killed)
    part = Ladder.from_json(path)
    assert len(part.cells) == 3
    monkeypatch.setattr(climb, "speeds", None)
    before = len(machine.functions)
    again = small(machine, known=part)
    assert again.cells[:3] == part.cells
    assert len(machine.functions) == before + 9
    assert [c.key for c in again.cells] == [c.key for c in whole.cells]
    more = small(machine, known=again, widths=(1, 3), contexts=(8,))
    assert len(machine.functions) == before + 9 + 2
    assert more.axis("width") == [1, 2, 3, 4]
    monkeypatch.setattr(climb, "random_decoder", None)
    assert small(machine, known=more) is more


@pytest.mark.parametrize(
    "more, name", [({"repeats": 4}, "repeats 3"), ({"graphs": False}, "graphed True")]
)
def test_cells_of_other_settings_are_not_mixed(machine, more, name):
    with pytest.raises(ValueError, match=f"the cells there have {name}.* write to another file"):
        small(machine, known=small(machine), **more)


@pytest.mark.parametrize(
    "more, words",
    [
        ({"widths": ()}, "widths are"),
        ({"widths": (0, 1)}, "widths are"),
        ({"batches": (0,)}, "batches are"),
        ({"contexts": (-1,)}, "contexts are"),
        ({"repeats": 0}, "repeats is 0"),
        ({"drafters": ("prompt_lookup",)}, "no pass to time"),
        ({"drafters": ("early_exit:2",)}, "an exit after 2 layers"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(more, words):
    with pytest.raises(ValueError, match=words):
        small(**more)


def test_costs_are_the_medians_and_lines_between_them(machine):
    found = small(machine, widths=(1, 2, 5), batches=(1,), contexts=(8,), drafters=("eagle",))
    model = found.cost(1, 8, "eagle")
    assert model.verify.tolist() == [0.5, 1.0, *np.interp([3, 4], [2, 5], [1.0, 1.5]), 1.5]
    assert (model.baseline, model.overhead, model.catch_up.tolist()) == (0.5, 0.0, [0.0])
    assert model.draft.tolist() == [2.0 * j for j in range(5)]
    assert model.device == found.device
    assert found.cost(1, 8, 0.125).draft.tolist() == [0.125 * j for j in range(5)]
    for at, words in (
        ((2, 8, 0.1), "batch 2, context 8"),
        ((1, 8, "medusa"), "'medusa' was not measured"),
    ):
        with pytest.raises(ValueError, match=words):
            found.cost(*at)
    with pytest.raises(ValueError, match="1 and a wider one"):
        small(machine, widths=(2, 3), batches=(1,), contexts=(8,)).cost(1, 8, 0.1)


def test_a_staircase_is_kept(machine):
    machine.seconds = [[s] * 3 for s in (1.0, 1.0, 3.0, 2.0)]
    found = small(machine, widths=(1, 2, 3, 4), batches=(1,), contexts=(8,))
    assert found.cost(1, 8, 0.1).verify.tolist() == [1.0, 1.0, 3.0, 2.0]


def test_the_table_is_one_that_costs_are_read_from(machine, tmp_path):
    found = small(machine, drafters=("medusa",))
    found.table("medusa").to_json(tmp_path / "c.json")
    table = load_cost(tmp_path / "c.json")
    assert isinstance(table, CostTable)
    assert isinstance(table.at(2, 4), CostModel)
    assert table.at(3, 8) == found.cost(3, 8, "medusa")


def good():
    found = (
        Cell(TARGET, 1, 8, 2, 2.0, 1.0, 3.0, 0.5, 4.0),
        Cell(TARGET, 4, 8, 2, None, None, None, 0.5, None),
    )
    return Ladder("cpu", "float32", TINY, True, False, 3, SPEEDS, found)


def test_what_is_written_comes_back(tmp_path):
    good().to_json(tmp_path / "l.json")
    assert Ladder.from_json(tmp_path / "l.json") == good()


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
def test_damage_is_refused_in_one_line(tmp_path, damage, words):
    data = json.loads(json.dumps(good().to_dict()))
    damage(data)
    (tmp_path / "l.json").write_text(json.dumps(data))
    with pytest.raises(ValueError, match=words) as error:
        Ladder.from_json(tmp_path / "l.json")
    assert "l.json: not a ladder" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_target_is_a_name_or_a_models_folder(tmp_path):
    tiny = read_target("real/tiny/target")
    assert (tiny.name, tiny.layers > 0, tiny.tied) == ("target", True, tiny.tied)
    assert read_target("llama-3-8b").hidden == 14336
    with pytest.raises(ValueError, match="config.json"):
        read_target(str(tmp_path))


SIZES = "--width 1 --width 3 --batch 1 --batch 2 --context 8 --repeats 2 --drafter medusa"
ARGUMENTS = f"latency --target 2x16x2x24 --dtype float32 {SIZES}".split()


def test_the_command_writes_cells_a_table_and_a_figure(tmp_path, monkeypatch):
    monkeypatch.setattr(climb, "speeds", lambda *_, **__: SPEEDS)
    out = ["--out", "l.json", "--table", "c.json", "--plot", "l.png"]
    code, said, _ = command(tmp_path, *ARGUMENTS, *out)
    assert code == 0
    assert "copy bandwidth 1.0 GB/s" in said
    assert "medusa, one step" in said
    found = Ladder.from_json(tmp_path / "l.json")
    assert len(found.cells) == 6
    assert (tmp_path / "l.png").read_bytes().startswith(b"\x89PNG")
    code, said, _ = command(tmp_path, *ARGUMENTS, *out, "--json")  # nothing left to do
    assert code == 0
    assert Ladder.from_dict(json.loads(said)) == found == Ladder.from_json(tmp_path / "l.json")
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
    code, said, error = command(tmp_path, *sweep)
    assert code == 0 and "medusa-b2-c8" in said, error
    (tmp_path / "l.json").write_text("[]")
    refused(tmp_path, *ARGUMENTS, "--out", "l.json", words="not a ladder")


def test_slips_are_told_before_any_work(tmp_path):
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
