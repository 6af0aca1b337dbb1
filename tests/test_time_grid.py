"""Measuring a latency grid: passes compute what the decoder computes, and times are their own."""

import gc
import weakref
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from grid_machine import DRAFTERS, SHARED, SPEEDS, TINY, on_cpu, simulate, small

from real.measure import grid_timer, time_grid
from real.measure.grid_timer import GridTimer, rows_pass
from real.measure.latency_grid import TARGET, GridSettings, LatencyGrid
from real.measure.time_grid import grid_cost, grid_cost_table
from real.model.cuda_graphs import capture
from real.model.layer import DecoderLayer
from real.model.random_models import random_decoder
from real.model.runner import ancestor_mask, chain


@pytest.fixture(scope="module", autouse=True)
def few_objects():
    """Between cells a grid collects garbage: not among what the process holds by now."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def machine(monkeypatch):
    return simulate(monkeypatch)


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
def test_captured_pass_equals_decoder_forward(shape, still):
    decoder = random_decoder(shape, torch.float64, "cpu")
    for batch, start, width in ((1, 0, 1), (1, 9, 1), (1, 9, 5), (3, 0, 4), (3, 6, 3)):
        text = torch.randint(shape.vocab, (batch, start + width))
        token = text[:, start:].clone()
        function = rows_pass(decoder, filled(decoder, text, start, 16), token, start, still)
        replay = capture(function, decoder.device)
        assert torch.allclose(replay()[0], decoder(text)[:, start:], rtol=0, atol=1e-12)
        # the capture reads its tokens in place
        other = (text + 1) % shape.vocab
        other[:, :start] = text[:, :start]
        token.copy_(other[:, start:])
        assert torch.allclose(replay()[0], decoder(other)[:, start:], rtol=0, atol=1e-12)


@torch.inference_mode()
def test_control_pass_at_wrong_position_differs():
    decoder = random_decoder(TINY, torch.float64, "cpu")
    text = torch.randint(TINY.vocab, (2, 12))
    cache = filled(decoder, text, 9, 16)
    right, wrong = (rows_pass(decoder, cache, text[:, 9:], start)()[0].clone() for start in (9, 10))
    plain = decoder(text)[:, 9:]
    assert torch.allclose(right, plain, rtol=0, atol=1e-12)
    assert not torch.allclose(wrong, plain, rtol=0, atol=1e-6)


def test_every_pass_has_its_own_quantiles(machine):
    reported = []
    grid = small(machine, drafters=("medusa",), progress=lambda *call: reported.append(call))
    assert [c.key for c in grid.cells] == [
        (part, b, c, w)
        for c in (0, 8)
        for b in (1, 3)
        for part, w in ((TARGET, 1), (TARGET, 2), (TARGET, 4), ("medusa", 1))
    ]
    for n, c in enumerate(grid.cells):
        assert c.median_s == 0.5 * (n + 1)
        assert (c.p10_s, c.p90_s) == pytest.approx(
            ((0.25 + 0.2 * 0.25) * (n + 1), (0.5 + 0.8 * 3.5) * (n + 1))
        )
        assert c.distance == c.median_s / c.floor_s
    assert reported == [("timing", n, 16) for n in (4, 8, 12, 16)]
    assert grid.graphed
    assert not grid.fused
    assert grid.speeds == SPEEDS
    assert grid.dtype == "float32"


def test_control_swapped_times_are_detected(machine):
    machine.seconds[0], machine.seconds[1] = machine.seconds[1], machine.seconds[0]
    grid = small(machine)
    assert [c.median_s for c in grid.cells][:3] == [1.0, 0.5, 1.5]


def test_passes_are_reshuffled_every_repeat(machine):
    small(machine, widths=range(1, 13), batches=(1,), contexts=(4,))
    turns = [machine.ran[i : i + 12] for i in range(0, 48, 12)]
    assert all(sorted(turn) == list(range(12)) for turn in turns)
    assert len(set(map(tuple, turns))) == 4


def test_eager_passes_are_not_captured(monkeypatch, machine):
    monkeypatch.setattr(grid_timer, "capture", None)
    monkeypatch.setattr(
        grid_timer,
        "elapsed",
        lambda works, device, timer: [
            0.5 if work()[0].isfinite().all() else None for work in works
        ],
    )
    grid = small(graphs=False, drafters=DRAFTERS)
    assert not grid.graphed
    assert {c.median_s for c in grid.cells} == {0.5}


def test_projections_are_fused_for_captures_only(machine):
    for graphs in (True, False):
        timer = GridTimer(TINY, on_cpu(1, graphs=graphs, drafters=DRAFTERS), 4, machine.now)
        wholes = [
            timer.decoder,
            timer.drafters["eagle"].head,
            timer.drafters["early_exit:1"].lm,
            timer.drafters["model:1x8x1x24"].lm,
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
def test_every_pass_returns_logits_of_its_rows(machine):
    small(machine, drafters=DRAFTERS)
    sizes = [tuple(function()[0].shape) for function in machine.functions]
    assert sizes == [(b, w, 24) for _ in (0, 8) for b in (1, 3) for w in (1, 2, 4, 1, 1, 1, 1)]


def test_compiled_layers_need_captures_on_cuda():
    for changes in ({}, {"graphs": False}):
        with pytest.raises(ValueError, match="on a GPU only"):
            small(compiled=True, **changes)


def test_pass_beyond_device_memory_has_no_times(machine, monkeypatch, tmp_path):
    alone = GridTimer(TINY, on_cpu(3), 4)
    sized = replace(TINY, weight_bytes=4.0, cache_bytes=4.0)
    alone.shape = sized
    monkeypatch.setattr(grid_timer, "free", lambda device: alone._room(3, 16) / 0.9 * 1.01)
    grid = small(machine, batches=(1, 3, 5))
    assert {c.key[:3] for c in grid.cells if not c.fits} == {(TARGET, 5, 0), (TARGET, 5, 8)}
    assert all(
        (c.median_s, c.p10_s, c.p90_s, c.distance) == (None,) * 4 and c.floor_s > 0
        for c in grid.cells
        if c.batch == 5
    )
    grid.to_json(tmp_path / "l.json")
    assert LatencyGrid.from_json(tmp_path / "l.json") == grid
    table = grid_cost_table(grid, 0.1)
    assert table.batch == (1, 3)
    assert table.context == (0, 8)
    with pytest.raises(ValueError, match="batch 5, context 8: widths measured are \\[\\]"):
        grid_cost(grid, 5, 8, 0.1)


def short(chained):
    try:
        raise torch.OutOfMemoryError("no room")
    except torch.OutOfMemoryError:
        if not chained:
            raise
        raise RuntimeError("the capture could not be ended")  # noqa: B904


@pytest.mark.parametrize("chained", [False, True])
def test_passes_that_do_not_fit_together_are_timed_in_halves(machine, monkeypatch, chained):
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

    monkeypatch.setattr(grid_timer, "capture", capture)
    grid = small(machine, widths=(1, 2, 4, 8), batches=(1,), contexts=(0,))
    assert tried == [1, 2, 4, 1, 2, 4, 8, 4, 8]
    assert not held
    assert [c.fits for c in grid.cells] == [True, True, True, False]
    with pytest.raises(ValueError, match=r"widths measured are \[1, 2, 4\]"):
        grid_cost(grid, 1, 0, 0.1)
    with pytest.raises(ValueError, match="no cell of 2x16x2x24 fits"):
        grid_cost_table(grid, 0.1)


def test_layers_are_compiled_around_the_capture(machine, monkeypatch):
    output = []

    @contextmanager
    def compiled_layers():
        output.append("compiled")
        yield
        output.append("as they were")

    monkeypatch.setattr(grid_timer, "compiled_layers", compiled_layers)
    monkeypatch.setattr(
        grid_timer, "capture", lambda *_: output.append("captured") or (lambda: None)
    )
    monkeypatch.setattr(GridSettings, "__post_init__", lambda self: None)
    for compiled, expected in (
        (False, ["captured"]),
        (True, ["compiled", "captured", "as they were"]),
    ):
        output.clear()
        timer = GridTimer(TINY, on_cpu(1, compiled=compiled), 4, machine.now)
        assert (
            output == ["compiled", "as they were"] * 2 * compiled
        )  # sizes that differ, so that one compilation does for all
        output.clear()
        timer._work((TARGET, 1, 0, 2), timer.decoder.cache(2, 1, 8), None)
        assert output == expected


def test_other_capture_errors_are_raised(machine, monkeypatch):
    def capture(function, device, pool=None):
        raise RuntimeError("a captured pass read a number on the host")

    monkeypatch.setattr(grid_timer, "capture", capture)
    with pytest.raises(RuntimeError, match="on the host"):
        small(machine)


def test_interrupted_grid_continues_from_its_file(machine, monkeypatch, tmp_path):
    path = tmp_path / "l.json"
    whole = small(machine)

    def killed(label, done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        small(machine, save=lambda grid: grid.to_json(path), progress=killed)
    part = LatencyGrid.from_json(path)
    assert len(part.cells) == 3
    monkeypatch.setattr(time_grid, "device_speeds", None)
    before = len(machine.functions)
    again = small(machine, measured=part)
    assert again.cells[:3] == part.cells
    assert len(machine.functions) == before + 9
    assert [c.key for c in again.cells] == [c.key for c in whole.cells]
    larger = small(machine, measured=again, widths=(1, 3), contexts=(8,))
    assert len(machine.functions) == before + 9 + 2
    assert larger.axis("width") == [1, 2, 3, 4]
    monkeypatch.setattr(grid_timer, "random_decoder", None)
    assert small(machine, measured=larger) is larger


@pytest.mark.parametrize(
    "changes, name", [({"repeats": 4}, "repeats 3"), ({"graphs": False}, "graphed True")]
)
def test_cells_of_other_settings_are_refused(machine, changes, name):
    with pytest.raises(ValueError, match=f"the cells there have {name}.* write to another file"):
        small(machine, measured=small(machine), **changes)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"widths": ()}, "widths \\[\\] given"),
        ({"widths": (0, 1)}, "widths .0, 1. given"),
        ({"batches": (0,)}, "batches .0. given"),
        ({"contexts": (-1,)}, "contexts .-1. given"),
        ({"repeats": 0}, "repeats is 0"),
        ({"drafters": ("prompt_lookup",)}, "no pass to time"),
        ({"drafters": ("early_exit:2",)}, "an exit after 2 layers"),
    ],
)
def test_invalid_sizes_are_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        small(**changes)
