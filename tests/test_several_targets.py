"""Targets of three sizes and a sorted one: how they are made, and the tables of them."""

import json

import numpy as np
import pytest
import torch
from documents import ROOT
from several_targets import exits_of, resized
from task_target import SOURCE, texts
from toy_lm import VOCAB, toy_target

from simspec import CostModel, load_trace, replay
from simspec.cost.roofline import SHAPES, matrix_weights
from simspec.papers import s2d_targets
from simspec.papers.catalogue import TABLES
from simspec.papers.claim import Inputs
from simspec.papers.recorded import MEASURED, Recordings
from simspec.papers.s2d import alone, cascades
from simspec.papers.s2d_targets import (
    LEARNED,
    PAPER_TARGETS,
    PRINTED,
    TUNED,
    across_targets,
    by_size,
    on_itself,
    on_target,
    task_recordings,
)
from simspec.policies.fixed import fixed
from simspec.trace.exits import cascade


def test_resized_target_starts_from_the_function_of_its_layers():
    token = torch.arange(12)[None] % VOCAB
    whole = toy_target()
    layers = len(whole.layers)
    wide = resized(toy_target(), 2 * layers)
    assert len(wide.layers) == wide.config.layers == 2 * layers
    assert torch.equal(wide(token), whole(token))
    wide.layers[1].down.weight.data += 0.1  # the copies are parts of the model
    assert not torch.allclose(wide(token), whole(token))
    assert len(whole.layers) == layers  # the model itself is as it was
    short = resized(toy_target(), layers - 1)
    x = whole.embed(token)
    rotation = whole.rotation(torch.arange(12))
    assert torch.equal(short(token), whole.logits(whole.run(x, range(layers - 1), rotation)))
    with pytest.raises(ValueError, match="expected fewer, or twice as many"):
        resized(toy_target(), 2 * layers + 1)


def by_hand(size, thresholds, k):
    """Seconds by sequence, one drafted token at a time."""
    own, _ = on_target(ROOT / "traces", size)
    derived, exits = cascade(own.trace, own.drafts, thresholds)
    small, target = SHAPES["llama-2-7b"], SHAPES[PAPER_TARGETS[size]]
    unit = matrix_weights(target)
    rounds = replay(derived, fixed(k), cost=CostModel.from_ratio(0.0, own.trace.K))
    seconds = np.zeros(own.trace.sequences)
    for s in range(own.trace.sequences):
        for r in range(rounds.offset[s], rounds.offset[s + 1]):
            seconds[s] += 1
            for slot in range(rounds.computed[r]):
                exit = int(exits[rounds.row[r], slot])
                opened = sum(value < 1 for value in thresholds[: exit + 1]) + (exit == 2)
                layers = matrix_weights(small, (6, 9, 12)[exit], head=False)
                seconds[s] += (layers + opened * matrix_weights(small, 0)) / unit
    return seconds


@pytest.mark.parametrize("thresholds", [(1.0, 1.0), (0.0, 0.0), (0.6, 0.6)])
def test_seconds_are_the_weights_that_passes_read(thresholds):
    for size in ("small", "large"):
        own, _ = on_target(ROOT / "traces", size)
        found, _ = own.run(thresholds, 3)
        assert found == pytest.approx(by_hand(size, thresholds, 3), rel=1e-12)


def test_table_holds_each_method_on_each_target():
    inputs = Inputs(Recordings(ROOT / "traces"), ())
    table = TABLES["s2d-2"](inputs)
    assert [row[0] for row in table.rows] == list(PRINTED)
    own, _ = on_target(ROOT / "traces", "large")
    best = [by_hand("large", (0.0, 0.0), k).sum() for k in range(1, own.trace.K + 1)]
    (row,) = (row for row in table.rows if row[0] == "SoFT L2 + SD")
    speed = row[table.headings.index("large")]
    assert speed.estimate.value == pytest.approx(own.trace.rows / min(best), rel=0.02)
    ratios = {
        size: matrix_weights(SHAPES["llama-2-7b"], 12) / matrix_weights(SHAPES[target])
        for size, target in PAPER_TARGETS.items()
    }
    assert ratios == pytest.approx({"small": 0.387, "middle": 0.199, "large": 0.0373}, rel=0.01)


def test_effects_are_ratios_of_the_tables_seconds(monkeypatch):
    """18b is none where one target is in both places: the control. Its sign is that of prices."""
    inputs = Inputs(Recordings(ROOT / "traces"), ())
    (effect,) = by_size(inputs, MEASURED)
    assert effect.interval.low > 0
    across = across_targets(inputs, MEASURED)
    table = TABLES["s2d-2"](inputs)
    speeds = {row[0]: row for row in table.rows}
    for one, size in zip(across, PAPER_TARGETS, strict=True):
        column = table.headings.index(size)
        cascade_, single = (
            speeds[name][column].estimate.value for name in ("SoFT + S2D", "SFT L4 + SD")
        )
        assert one.interval.value == pytest.approx(cascade_ / single - 1)
    real = s2d_targets.on_target
    monkeypatch.setattr(s2d_targets, "on_target", lambda folder, size: real(folder, "middle"))
    (none,) = by_size(inputs, MEASURED)
    assert abs(none.interval.value) < 1e-12


def test_single_exit_pays_all_twelve_layers_for_every_token():
    own, single = on_target(ROOT / "traces", "small")
    seconds, counts = own.last_exit(single)
    rounds = replay(single, fixed(2), cost=CostModel.from_ratio(0.0, single.K))
    ratio = matrix_weights(SHAPES["llama-2-7b"], 12) / matrix_weights(SHAPES["llama-2-7b"])
    assert counts[1].sum() == len(rounds.computed)
    assert seconds[1].sum() == pytest.approx(len(rounds.computed) + ratio * rounds.computed.sum())


def test_single_exits_are_the_thresholds_that_open_one():
    own, _ = on_target(ROOT / "traces", "middle")
    for exit in range(3):
        _, exits = cascade(own.trace, own.drafts, alone(3, exit))
        assert set(exits[exits < 255].tolist()) == {exit}


def test_each_target_wrote_its_own_outputs_and_the_middle_those_of_the_bundled_recording():
    source = load_trace(ROOT / "traces" / "tiny-model-coupled.parquet")
    source = source.select(np.arange(0, source.sequences, 3))
    recorded = {size: on_target(ROOT / "traces", size) for size in PAPER_TARGETS}
    assert np.array_equal(recorded["middle"][0].trace.token, source.token)
    assert len({own.trace.meta.target for own, _ in recorded.values()}) == 3
    for size, (own, single) in recorded.items():
        assert np.array_equal(own.trace.token, single.token)
        assert np.array_equal(own.trace.sequence, source.sequence)
        same = np.array_equal(own.trace.token, source.token)
        assert same == (size == "middle")


def test_exits_of_a_sorted_target_are_its_own_layers():
    """A drafter of its first layers gives, at each exit, what the target's own exit gives."""
    target = resized(toy_target(), 2 * len(toy_target().layers))
    for layer in target.layers[1::2]:  # copies add nothing until they are trained
        layer.down.weight.data += 0.1
    exits = (3, 5, 8)
    drafter = exits_of(target, exits[:-1])
    assert drafter.cascade.exits == exits[:-1]
    token = torch.arange(9)[None] % VOCAB
    x, rotation = target.embed(token), target.rotation(torch.arange(9))
    own = drafter.decoder.through_exits(x, rotation)
    for rows, layers in zip(own, exits[:-1], strict=True):
        assert torch.equal(rows, target.run(x, range(layers), rotation))


def test_sorted_target_is_priced_by_the_weights_of_13b():
    inputs = Inputs(Recordings(ROOT / "traces"), ())
    rows = {row[0]: row for row in TABLES["s2d-1"](inputs).rows}
    losses = json.loads((ROOT / "traces" / "s2d" / "targets.json").read_text())
    for name, kind in (("plain decoding", "middle"), ("sorted target, its exits draft", "sorted")):
        assert rows[name][2].estimate.value == losses[kind]["heldout_loss"]
    own, shape = on_itself(ROOT / "traces"), SHAPES["llama-2-13b"]
    worse = losses["sorted"]["heldout_loss"] - losses["middle"]["heldout_loss"]
    speed = rows["sorted target, its exits draft"][1].estimate.value
    page = (ROOT / "docs" / "lookahead_and_sorted.md").read_text(encoding="utf-8")
    assert f"middle target is {speed:.2f} times as fast and {worse:.2f} nats worse" in page
    seconds, _ = own.run((1.0,), 2)
    derived, _ = cascade(own.trace, own.drafts, (1.0,))
    rounds = replay(derived, fixed(2), cost=CostModel.from_ratio(0.0, own.trace.K))
    step = matrix_weights(shape, 20) / matrix_weights(shape)
    assert seconds.sum() == pytest.approx(len(rounds) + step * rounds.computed.sum())
    every = own.all_lengths(cascades(2))[0].sum(axis=1)
    found = rows["sorted target, its exits draft"][1].estimate.value
    assert found == pytest.approx(own.trace.rows / every.min(), rel=0.05)
    (same,) = (row for row in TABLES["s2d-2"](inputs).rows if row[0] == "SoFT + S2D")
    assert rows["sorted drafter"][1].estimate.value == same[4].estimate.value


def test_task_is_the_documents_of_one_source(tmp_path):
    path = tmp_path / "text.jsonl"
    sources = (SOURCE + "train", "math/eth-nlped/mathdial:test", "prose/x:y", SOURCE + "train")
    rows = [{"text": f"document {i}", "source": s} for i, s in enumerate(sources)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert texts([path], SOURCE) == ["document 0", "document 3"]
    with pytest.raises(ValueError, match="no document's source begins with code/"):
        texts([path], "code/")


def test_task_recordings_are_of_two_targets_and_two_drafters_on_the_same_prompts():
    own = task_recordings(ROOT / "traces")
    assert set(own) == {(learned, target) for learned in LEARNED for target in TUNED}
    prompts = {tuple(of.trace.sequence.tolist()) for of in own.values()}
    assert len(prompts) == 1
    assert {task for of in own.values() for task in of.trace.meta.tasks} == {"math"}
    middle, _ = on_target(ROOT / "traces", "middle")
    written = {}
    for (_, target), of in own.items():
        assert (of.trace.meta.target == middle.trace.meta.target) == (target == "vanilla")
        written.setdefault(target, []).append(of.trace.token)
    for pair in written.values():
        assert np.array_equal(*pair)
    assert not np.array_equal(written["vanilla"][0], written["tuned"][0])


def best_by_hand(own):
    """Tokens a second at the best setting of all prompts: thresholds in a grid, every length."""
    seconds = [
        own.run(thresholds, k)[0].sum()
        for thresholds in cascades(own.drafts.exits)
        for k in range(1, own.trace.K + 1)
    ]
    return own.trace.rows / min(seconds)


def test_tuning_is_the_ratio_of_the_speeds_of_both_targets():
    inputs = Inputs(Recordings(ROOT / "traces"), ())
    table, own = TABLES["s2d-5"](inputs), task_recordings(ROOT / "traces")
    losses = json.loads((ROOT / "traces" / "s2d" / "gsm8k-targets.json").read_text())
    rows = {row[:2]: row for row in table.rows}
    for learned in LEARNED:
        speeds = []
        for target in TUNED:
            row = rows[learned, target]
            assert row[2].estimate.value == pytest.approx(
                best_by_hand(own[learned, target]), rel=0.03
            )
            assert row[4].estimate.value == losses[target]["heldout_loss"]
            speeds.append(row[2].estimate.value)
        ratio = rows[learned, "tuned / vanilla"][2].estimate
        assert ratio.value == pytest.approx(speeds[1] / speeds[0])
        assert ratio.low < ratio.value < ratio.high


@pytest.mark.docs
def test_page_tells_what_training_on_the_task_changes():
    table = TABLES["s2d-5"](Inputs(Recordings(ROOT / "traces"), ()))
    rows = {row[:2]: row[2].estimate for row in table.rows}
    losses = {row[1]: row[4].estimate.value for row in table.rows if row[1] in TUNED}
    ratio = rows["gsm8k", "tuned / vanilla"]
    page = (ROOT / "docs" / "lookahead_and_sorted.md").read_text(encoding="utf-8")
    before, after = (rows[learned, "vanilla"].value for learned in ("text", "gsm8k"))
    assert f"raises the speedup from {before:.2f} to {after:.2f} on the target" in page
    told = f"from {losses['vanilla']:.2f} to {losses['tuned']:.2f} nats and the speedup to "
    told += f"{ratio.value:.2f} [{ratio.low:.2f}, {ratio.high:.2f}] of that"
    assert told in " ".join(page.split())


def test_tables_without_recordings_say_so(tmp_path):
    for name in ("s2d-1", "s2d-2", "s2d-5"):
        table = TABLES[name](Inputs(Recordings(tmp_path), ()))
        assert any("no card" in row for row in table.rows), name
