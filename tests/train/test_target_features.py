"""Masked losses, and features that the target computes once."""

import errno
import os
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch
from toy_lm import toy_decoder, toy_prompts

from real.draft import TrainingBatch
from real.drafters import BUILTIN, trainable
from real.train import features as feature_store
from real.train.features import TOGETHER, FeatureStore, TrainingSet
from real.train.loop import TrainSchedule
from real.train.sequences import SHARD, LoadedTarget, Writing, _continued, joined
from real.train.settings import Training
from real.train.text import PromptSet
from real.train.train import new_head

TARGET = toy_decoder(2, spread=0.8)
SIZES = {"model": dict(width=8, layers=1, heads=1, head_dim=8, hidden=12)}
PLAN = TrainSchedule(steps=3, rows=5, length=40)
LOSS = {"medusa": {"stride": 1}, "hydra": {"stride": 1}, "eagle": {"noise": 0.0}}


def read_tokens(batch):
    """The sequences of a batch without their padding."""
    rows = zip(batch.token.numpy(), batch.learned.numpy())
    return [row[: int(np.flatnonzero(learned).max(initial=-1)) + 1] for row, learned in rows]


def learned_tokens(batch):
    return int(batch.learned.sum())


def number(value):
    return float(value.detach())


@lru_cache
def sequences(count=80, seed=0, length=14):
    """As a target writes them: two shards and the beginning of a third."""
    prompts = PromptSet(tuple(toy_prompts(count, seed)), (), {})
    loaded = LoadedTarget(TARGET, TARGET, None, {}, (3, 5))
    writing = Writing(loaded, prompts, 1, length, seed)
    shards = []
    for shard in range(-(-count // SHARD)):
        number = np.arange(shard * SHARD, min((shard + 1) * SHARD, count))
        asked = [prompts.training[n] for n in number]
        shards.append(_continued(writing, TARGET, asked, number, number % 2 == 0, length))
    return joined(shards)


def training_set(folder, dtype=torch.float64, **given):
    written = sequences(**given)
    return TrainingSet(written, FeatureStore(folder, TARGET, written, dtype))


def head_and_loss(name, soft, draft_vocab=None):
    chosen = tuple(f"{key}={value}" for key, value in SIZES.get(name, {}).items())
    training = Training(name, Path("out"), settings=chosen)
    head, recipe = new_head(training, TARGET), BUILTIN[name].recipe
    if draft_vocab is not None:
        head.restrict(TARGET, draft_vocab)

    def loss(batch):
        generator = torch.Generator().manual_seed(1)
        return recipe.loss(head, TARGET, batch, soft, generator, **LOSS.get(name, {}))

    return head, recipe, loss


def test_batches_hold_whole_sequences_and_learn_new_tokens(tmp_path):
    found = training_set(tmp_path)
    batch = found.batches(PLAN)(2)
    again = found.batches(PLAN)(2)
    assert torch.equal(batch.token, again.token)
    rows = read_tokens(batch)
    whole = {tuple(found.sequences.sequence(i).tolist()): i for i in range(len(found.sequences))}
    for row, tokens, learned in zip(batch.token, rows, batch.learned):
        i = whole[tuple(tokens.tolist())]
        _, new_tokens = found.sequences.pair(i)
        assert row[learned].tolist() == new_tokens.tolist()
        assert not learned[: found.sequences.prompt[i]].any()
    assert learned_tokens(batch) == int(batch.learned.sum())
    cut = found.batches(TrainSchedule(rows=9, length=15))(0)
    assert cut.token.shape == (9, 16)


def test_features_of_a_pass_are_those_of_the_files(tmp_path, monkeypatch):
    """A GPU stores none; rows after a sequence's end differ, and are not learned."""
    names = ("feature", "tap:1", "kv:0")
    stored = training_set(tmp_path).batches(PLAN, names)(1)
    monkeypatch.setattr(FeatureStore, "stores", False)
    passed = training_set(tmp_path / "none").batches(PLAN, names)(1)
    assert not (tmp_path / "none").exists()
    assert torch.equal(stored.token, passed.token)
    for name in names:
        for row, (a, b) in enumerate(zip(stored.stored[name], passed.stored[name])):
            size = len(read_tokens(stored)[row]) - 1
            torch.testing.assert_close(a[:size], b[:size], rtol=1e-12, atol=1e-12)


def test_features_held_in_memory_are_those_of_the_files(tmp_path, monkeypatch):
    """As on a GPU with room for them; a name that comes later is computed alone."""
    monkeypatch.setattr(feature_store, "HELD_TOKENS", 70)
    names = ("feature", "kv:0")
    draw = training_set(tmp_path).batches(PLAN, names)
    stored = [draw(step) for step in range(4)]
    monkeypatch.setattr(FeatureStore, "stores", False)
    monkeypatch.setattr(feature_store, "_room", lambda device: float("inf"))
    found = training_set(tmp_path / "none")
    held = found.batches(PLAN, names)
    calls = []
    inner = feature_store.read_target
    monkeypatch.setattr(
        feature_store, "read_target", lambda *given: calls.append(given[2]) or inner(*given)
    )
    for step, a in enumerate(stored):
        b = held(step)
        assert torch.equal(a.token, b.token)
        for name in names:
            torch.testing.assert_close(a.stored[name], b.stored[name], rtol=1e-12, atol=1e-12)
    assert not calls
    assert not (tmp_path / "none").exists()
    found.batches(PLAN, ("tap:1", "feature"))
    assert calls
    assert all(names == ["tap:1"] for names in calls)


def test_a_full_gpu_holds_no_features(tmp_path, monkeypatch):
    monkeypatch.setattr(FeatureStore, "stores", False)
    found = training_set(tmp_path)
    found.batches(PLAN, ("feature",))
    assert not found.features.held
    row = 8 * TARGET.config.width
    needed = len(found.sequences.token) * row
    for room, held in ((needed - 1, False), (needed, True)):
        monkeypatch.setattr(feature_store, "_room", lambda device, room=room: room)
        found.batches(PLAN, ("feature",))
        assert ("feature" in found.features.held) == held
    monkeypatch.setattr(feature_store, "_room", lambda device: needed)
    found.batches(PLAN, ("feature", "tap:1"))  # what is held needs no room
    assert "tap:1" in found.features.held


@pytest.mark.parametrize("length", [400, 15])
def test_what_was_seen_is_what_batches_held(tmp_path, length):
    found, plan = training_set(tmp_path), TrainSchedule(rows=3, length=length)
    draw = found.batches(plan)
    batches = [draw(step) for step in range(5)]
    rows, learned = found.seen(plan, 5)
    wanted = {tuple(row.tolist()) for batch in batches for row in read_tokens(batch) if len(row)}
    rows = [tuple(row.tolist()) for row in rows]
    assert len(rows) == len(set(rows)) < 15
    assert set(rows) == wanted
    assert learned == sum(learned_tokens(batch) for batch in batches) > 0
    assert found.seen(plan, 0)[1] == 0


def test_sequences_of_similar_lengths_meet(tmp_path):
    """TOGETHER batches hold what their common draw holds, and little padding."""
    found, plan = training_set(tmp_path), TrainSchedule(rows=6, length=400)
    draw = np.random.default_rng([0, 1]).integers(0, len(found.sequences), 6 * TOGETHER)
    wanted = [found.sequences.sequence(i) for i in draw]
    batches = [found.batches(plan)(step) for step in range(TOGETHER, 2 * TOGETHER)]
    rows = [row for batch in batches for row in read_tokens(batch)]
    assert sorted(row.tolist() for row in rows) == sorted(row.tolist() for row in wanted)
    longest = [max(map(len, wanted[i : i + 6])) for i in range(0, len(wanted), 6)]
    assert sum(batch.token.numel() for batch in batches) < 6 * sum(longest)


@pytest.mark.parametrize("restricted", [False, True])
@pytest.mark.parametrize("soft", [True, False])
@pytest.mark.parametrize("name", trainable())
def test_masked_losses_are_means_over_learned_tokens(tmp_path, name, soft, restricted):
    """A padded batch weighs each sequence by its learned rows; padding changes nothing."""
    vocabulary = torch.arange(0, 24, 2) if restricted else None
    if name == "sorted" and restricted:
        with pytest.raises(ValueError, match="sorted: its exits draft from the whole vocabulary"):
            head_and_loss(name, soft, vocabulary)
        return
    head, _, loss = head_and_loss(name, soft, vocabulary)
    token = torch.randint(0, 24, (2, 17), generator=torch.Generator().manual_seed(3))
    learned = torch.zeros(2, 17, dtype=torch.bool)
    learned[0, 6:], learned[1, 9:13] = True, True
    batch = TrainingBatch(token, learned)
    value = loss(batch)
    other = token.clone()
    other[1, 13:] = 7
    assert number(loss(TrainingBatch(other, learned))) == pytest.approx(number(value), rel=1e-6)
    both = TrainingBatch(torch.cat((token, token)), torch.cat((learned, learned)))
    assert number(loss(both)) == pytest.approx(number(value), rel=1e-5)
    fewer = learned.clone()
    fewer[0, 10:] = False
    assert abs(number(loss(TrainingBatch(token, fewer))) - number(value)) > 1e-4
    everything = TrainingBatch(token, torch.ones_like(learned))
    assert number(loss(everything)) == pytest.approx(number(loss(TrainingBatch(token))), rel=1e-6)
    nothing = loss(TrainingBatch(token, torch.zeros_like(learned)))
    assert number(nothing) == 0.0
    value.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in head.parameters())
    assert any(p.grad is not None and p.grad.abs().max() > 0 for p in head.parameters())


@pytest.mark.parametrize("soft", [True, False])
@pytest.mark.parametrize("name", trainable())
def test_stored_features_equal_those_on_the_fly(tmp_path, name, soft, monkeypatch):
    """Training reads files, and the target's layers run no more."""
    monkeypatch.setattr(feature_store, "BATCH_TOKENS", 60)
    found = training_set(tmp_path)
    head, recipe, loss = head_and_loss(name, soft)
    reads = recipe.reads(head, soft)
    assert (not reads) == (name in ("model", "sorted") and not soft)
    draw = found.batches(PLAN, reads)
    assert set(draw(0).stored) == set(reads)
    for step in range(3):
        fresh = loss(found.batches(PLAN)(step))
        runs: list[int] = []

        def note(*_, runs=runs):
            runs.append(1)

        hooks = [layer.register_forward_hook(note) for layer in TARGET.layers]
        stored = loss(draw(step))
        for hook in hooks:
            hook.remove()
        assert not runs
        assert number(stored) == pytest.approx(number(fresh), abs=1e-6)
        for feature, values in draw(step).stored.items():
            (read,) = found.batches(PLAN)(step).features(TARGET, feature)
            mask = torch.zeros(values.shape[:2], dtype=torch.bool)
            for row, tokens in zip(mask, read_tokens(draw(step))):
                row[: len(tokens)] = True
            assert (values - read)[mask].abs().max() < 1e-12
            assert read[mask].abs().max() > 1e-3


def made(folder, dtype=torch.float64, **given):
    """The file of the features of such sequences."""
    found = training_set(folder, dtype, **given)
    found.batches(PLAN, ("feature",))
    return found.features._place / "feature.npy"


def test_other_sequences_and_dtypes_have_other_files(tmp_path):
    first = made(tmp_path)
    kept = first.read_bytes()
    others = [made(tmp_path, seed=1), made(tmp_path, torch.bfloat16), made(tmp_path, count=70)]
    assert len({first, *others}) == 4
    assert made(tmp_path) == first
    assert first.read_bytes() == kept
    stored = np.load(first)
    assert stored.shape == (len(sequences().token), TARGET.config.width)
    rounded = torch.from_numpy(np.load(others[1])).view(torch.bfloat16)
    assert torch.equal(rounded, torch.from_numpy(stored).bfloat16())


def test_killed_features_go_on_behind_their_last_batch(tmp_path, monkeypatch):
    """A name that comes later is computed alone; both equal those of a call that nobody kills."""
    names, calls, inner = ("feature", "kv:0"), [], feature_store.read_target
    monkeypatch.setattr(feature_store, "BATCH_TOKENS", 60)

    def counted(*given):
        calls.append(given[2])
        if len(calls) == 7:
            raise KeyboardInterrupt
        return inner(*given)

    monkeypatch.setattr(feature_store, "read_target", counted)
    with pytest.raises(KeyboardInterrupt):
        training_set(tmp_path / "killed").batches(PLAN, names[:1])
    training_set(tmp_path / "killed").batches(PLAN, names[:1])
    whole = len(calls) - 1
    training_set(tmp_path / "killed").batches(PLAN, names)
    assert calls[-whole:] == [["kv:0"]] * whole
    training_set(tmp_path / "whole").batches(PLAN, names)
    assert len(calls) == 1 + 3 * whole
    assert len(calls) > 40
    for name in ("feature.npy", "kv-0.npy"):
        (one,), (other,) = ((tmp_path / x).rglob(name) for x in ("killed", "whole"))
        np.testing.assert_allclose(np.load(one), np.load(other), rtol=1e-12)


def test_unfit_features_are_refused(tmp_path, monkeypatch):
    path = made(tmp_path)
    whole = path.read_bytes()
    for damaged in (b"", whole[:-8], whole.replace(b"<f8", b"<i8"), whole.replace(b"<f8", b"|O8")):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="feature.npy is damaged: .*it is made anew"):
            made(tmp_path)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(ValueError, match="cannot be made: .*No space left.*lower --distil-tokens"):
        made(tmp_path / "new")
    assert not list((tmp_path / "new").rglob("feature*"))
