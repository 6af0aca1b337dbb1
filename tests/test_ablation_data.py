"""What ablations share: features of training windows, and accepted lengths along a recording."""

import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from ablation_data import (
    TextWindows,
    exits_along,
    lengths_of,
    record_along,
    recorded_summary,
    whole_step,
)
from safetensors.torch import load_file
from toy_lm import TOYS, toy_recording
from toy_training import PLAN, continuations, drafter_data

from real.draft import TrainingBatch
from real.train.accepted_length import accepted_lengths, summary
from real.train.config import drafter_training, recipe_of
from real.train.drafter_data import prepared_head
from real.train.train_drafter import train_drafter
from simspec import replay
from simspec.policies.fixed import fixed
from simspec.trace.exits import cascade

pytestmark = pytest.mark.usefixtures("bare_axes")
NAMES = "own", "shared"


def windows_of(data, folder, mixed=False):
    return TextWindows.of(data.batches(PLAN), PLAN.steps, data.target, folder, mixed)


@pytest.mark.parametrize("drafter", ["early_exit", "eagle", "glide", "medusa"])
def test_shared_features_are_those_that_a_drafter_computes(tmp_path, drafter):
    data, training = drafter_data(), drafter_training(drafter, PLAN)
    reads = recipe_of(drafter).reads(prepared_head(training, data), training.soft)
    windows = windows_of(data, tmp_path)
    windows.compute(reads)
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")}
    shared, alone = windows.batches(PLAN, reads), data.batches(PLAN)
    for step in range(PLAN.steps):
        batch, own = shared(step), TrainingBatch.of(alone(step))
        assert torch.equal(batch.token, own.token)
        assert set(batch.stored) == set(reads)
        for name in reads:
            (value,), (expected,) = (b.features(data.target, name) for b in (batch, own))
            assert torch.allclose(value, expected, rtol=0, atol=1e-12)
    # none was computed twice
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*.safetensors")} == written


def test_drafters_train_alike_with_shared_features(tmp_path):
    data, training = drafter_data(), drafter_training("eagle", PLAN)
    windows = windows_of(data, tmp_path / "features")
    cards = [
        train_drafter(training, source, tmp_path / name, tmp_path / f"{name}-work")
        for name, source in zip(NAMES, (data, replace(data, batches=windows.batches)))
    ]
    assert cards[0]["tokens"] == cards[1]["tokens"]
    assert cards[0]["evaluation"] == cards[1]["evaluation"]
    own, shared = (load_file(tmp_path / name / "eagle" / "eagle.safetensors") for name in NAMES)
    assert own.keys() == shared.keys()
    for name, weights in own.items():
        assert torch.allclose(weights, shared[name], rtol=0, atol=1e-9)


def test_a_step_without_stored_features_holds_the_layers_that_it_reads():
    data = drafter_data()
    steps = {
        (drafter, *settings.values()): whole_step(
            drafter_training(drafter, PLAN, settings=settings), data
        )
        for drafter, settings in (
            ("early_exit", {"depth": 1}),
            ("early_exit", {"depth": 2}),
            ("medusa", {}),
        )
    }
    layer = sum(p.numel() for p in data.target.layers[0].parameters())
    one, two, medusa = (step["loaded"] for step in steps.values())
    assert two - one == layer
    assert medusa > sum(p.numel() for p in data.target.layers.parameters())
    assert all(step["seconds"] > 0 for step in steps.values())


def test_windows_of_another_size_are_refused(tmp_path):
    windows = windows_of(drafter_data(), tmp_path)
    with pytest.raises(ValueError, match="windows are 4 x 15; expected 3 x 15"):
        windows.batches(replace(PLAN, rows=3))


# `make test-slow`: each drafter under both rules on all texts, else under one, in turn, on half
SLOW = os.environ.get("SIMSPEC_SLOW")
EACH = [
    (name, rule)
    for i, name in enumerate(TOYS)
    for j, rule in enumerate(("greedy", "coupled"))
    if SLOW or i % 2 == j
]


@pytest.mark.parametrize("name, rule", EACH)
def test_a_drafter_is_recorded_along_a_recording_as_it_was(name, rule):
    trace, target, drafter = toy_recording(name, rule)
    trace = trace if SLOW else trace.select(range(0, trace.sequences, 2))
    again = record_along(target.decoder, drafter, trace, trace.K)
    assert again.run.tolist() == trace.run.tolist()
    assert again.depth.tolist() == trace.depth.tolist()
    assert again.run[1:].tolist() != trace.run[:-1].tolist()  # the control
    assert replay(again, fixed(3)) == replay(trace, fixed(3))
    lengths = lengths_of(again, trace.K)
    assert np.concatenate(lengths.accepted).tolist() == trace.run.tolist()
    assert all((a <= b).all() for a, b in zip(lengths.accepted, lengths.offered))


@pytest.mark.parametrize("name", ["glide", "self_skip"])
def test_trees_along_a_recording_are_those_recorded_with_it(name):
    trace, target, drafter = toy_recording(name, "coupled", tree=(3, 4))
    again = record_along(target.decoder, drafter, trace, trace.K, tree=(3, 4))
    assert again.meta.tree == (3, 4)
    for array in ("run", "order", "beam"):
        assert np.array_equal(getattr(again, array), getattr(trace, array))
    assert again.beam.any()
    narrow = record_along(target.decoder, drafter, trace, trace.K, tree=(2, 4))
    assert not np.array_equal(narrow.beam, again.beam)  # the control


def test_exits_along_a_recording_give_it_at_all_thresholds():
    trace, target, drafter = toy_recording("sorted", "coupled")
    kept = record_along(target.decoder, drafter, trace, 4).select(np.arange(0, 10, 3))
    exits = exits_along(target.decoder, drafter, trace, kept)
    own, _ = cascade(kept, exits, drafter.cascade.threshold)
    assert own.run.tolist() == kept.run.tolist()
    assert own.depth.tolist() == kept.depth.tolist()
    other = drafter.with_thresholds((0.2, 0.9))
    again = record_along(target.decoder, other, trace, 4).select(np.arange(0, 10, 3))
    derived, _ = cascade(kept, exits, (0.2, 0.9))
    assert derived.run.tolist() == again.run.tolist()
    assert derived.run.tolist() != kept.run.tolist()


@pytest.mark.parametrize("K", [1, 4])
def test_lengths_of_shorter_drafts_are_those_recorded_for_them(K):
    trace, target, drafter = toy_recording("eagle", "coupled")
    short = lengths_of(record_along(target.decoder, drafter, trace, K), K)
    cut = lengths_of(record_along(target.decoder, drafter, trace, 6), K)
    for name in ("accepted", "offered"):
        rows = (np.concatenate(getattr(lengths, name)).tolist() for lengths in (short, cut))
        assert next(rows) == next(rows)


def test_cards_hold_accepted_lengths_by_sequence(tmp_path):
    data = drafter_data()
    card = train_drafter(drafter_training("eagle", PLAN), data, tmp_path / "a", tmp_path / "b")
    evaluation = card["evaluation"]
    rows = evaluation["trained"]["by_sequence"]
    assert len(rows["accepted"]) == len(rows["drafts"]) == evaluation["texts"]
    mean = sum(rows["accepted"]) / sum(rows["drafts"])
    assert round(mean, 4) == evaluation["trained"]["accepted_length"]["value"]
    assert 0 <= evaluation["repeated_8grams"] <= 1


def test_the_summary_along_a_recording_names_it():
    trace, _, _ = toy_recording("model", "coupled")
    found, lengths = recorded_summary(trace, "toy", 4), lengths_of(trace, 4)
    assert {key: found[key] for key in summary(lengths)} == summary(lengths)
    assert (found["recording"], found["rule"], found["texts"]) == ("toy", "coupled", 10)
    assert found["by_sequence"] == lengths.by_sequence()


def test_sums_by_sequence_are_of_whole_drafts():
    texts = continuations(3, 9)
    trace, target, drafter = toy_recording("model", "greedy")
    lengths = accepted_lengths(target.decoder, drafter, texts, 4)
    assert lengths.by_sequence()["drafts"] == [max(0, len(new) - 3) for _, new in texts]
