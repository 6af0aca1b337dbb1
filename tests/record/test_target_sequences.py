"""Sequences written many at a time equal those written one at a time."""

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_lm import RULES, VOCAB, toy_decoder, toy_pair, toy_prompts, toy_target

from real.model.captured_passes import CapturedPasses
from real.model.decoder import Decoder
from real.model.target import Target
from real.prompts import Prompt
from real.record import RecordError, Recording, RecordingFiles, Settings, record_all
from real.record import sequences as batch_writer
from real.record.sequences import blocks_of, default_batch, target_sequence, target_sequences
from real.record.settings import describe
from real.sampling import Rule, gumbel
from simspec import load_trace
from simspec.numerics import rng

ALL_RULES = RULES | {
    "truncated": Rule("coupled", 1.1, 7, 3, 0.9),
    "rejection": Rule("rejection", 0.9, 11),
}
ENDS = (3, 4, 5)


def written_singly(target, record_settings, prompts, addresses):
    """The definition: each sequence through the decode loop."""
    return [target_sequence(target, record_settings, p, s) for p, s in zip(prompts, addresses)]


def assert_equal(found, wanted):
    assert len(found) == len(wanted)
    for (token, evidence), (expected, other) in zip(found, wanted):
        np.testing.assert_array_equal(token, expected)
        assert token.dtype == expected.dtype
        assert evidence.dtype == other.dtype
        if evidence.dtype == np.uint8:
            np.testing.assert_array_equal(evidence, other)
        else:
            np.testing.assert_allclose(evidence, other, rtol=1e-9)


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from(list(ALL_RULES)), st.integers(0, 500), st.integers(1, 7), st.integers(2, 5),
    st.integers(1, 12), st.lists(st.integers(3, VOCAB - 1), max_size=4).map(tuple)
)  # fmt: skip
def test_sequences_equal_those_written_singly(rule, seed, count, batch, budget, ends):
    target = Target(toy_target(), capacity=32)
    record_settings = Settings(4, budget, ALL_RULES[rule], ends, (), (), batch)
    prompts, addresses = toy_prompts(count, seed), range(seed, seed + count)
    found = target_sequences(target, record_settings, prompts, addresses)
    assert_equal(found, written_singly(target, record_settings, prompts, addresses))


@pytest.mark.parametrize("rows", [1, 2, 7])
def test_prefill_in_pieces_is_equal(monkeypatch, rows):
    target, prompts = Target(toy_target()), toy_prompts(6, 8)
    record_settings = Settings(4, 8, Rule(), ENDS, (), (), 4)
    wanted = target_sequences(target, record_settings, prompts, range(6))
    monkeypatch.setitem(batch_writer.PREFILL_ROWS, "cpu", rows)
    assert_equal(target_sequences(target, record_settings, prompts, range(6)), wanted)


def test_prompts_that_enter_together_write_the_same(monkeypatch):
    """As on CUDA: places stay empty until they are half of the batch, and fewer passes prefill."""
    passes = []
    prefill = batch_writer.prefill
    monkeypatch.setattr(
        batch_writer, "prefill", lambda *asked: passes.append(len(asked[1])) or prefill(*asked)
    )
    target, prompts = Target(toy_target()), toy_prompts(23, 3)
    record_settings = Settings(4, 20, RULES["coupled"], (3, 4, 5, 6, 7, 8), (), (), 4)
    wanted = target_sequences(target, record_settings, prompts, range(23))
    singly = len(passes)
    monkeypatch.setitem(batch_writer.LEAST_FREE, "cpu", 0.5)
    assert_equal(target_sequences(target, record_settings, prompts, range(23)), wanted)
    assert len(passes) - singly < singly
    assert sum(passes) == 2 * len(prompts)


def test_passes_hold_only_unfinished_sequences(monkeypatch):
    """As many rows as tokens are written, and never more at a time than asked."""
    passes = []
    run = Decoder.run

    def counted(self, x, layers, rotation, mask=None, cache=None, start=0, tap=None):
        if isinstance(cache, batch_writer.RaggedKVCache):
            passes.append(len(x))
        return run(self, x, layers, rotation, mask, cache, start, tap)

    monkeypatch.setattr(Decoder, "run", counted)
    record_settings = Settings(4, 20, RULES["coupled"], (3, 4, 5, 6, 7, 8), (), (), 4)
    found = target_sequences(Target(toy_target()), record_settings, toy_prompts(11, 3), range(11))
    lengths = [len(token) for token, _ in found]
    assert len(set(lengths)) > 3
    assert sum(passes) == sum(lengths)
    assert passes[0] == max(passes) == 4


def test_control_a_wrong_row_is_detected(monkeypatch):
    """A batch whose sequences are swapped at a drop writes other tokens."""
    cache = batch_writer.RaggedKVCache
    drop = cache.drop

    def forgetful(self, slot):
        if slot < len(self.length) - 1:
            self.length[slot] = self.length.pop()  # the rows stay where they were
        else:
            drop(self, slot)

    record_settings = Settings(4, 20, RULES["coupled"], (3, 4, 5, 6, 7, 8), (), (), 4)
    target, prompts = Target(toy_target()), toy_prompts(11, 3)
    wanted = written_singly(target, record_settings, prompts, range(11))
    monkeypatch.setattr(cache, "drop", forgetful)
    found = target_sequences(target, record_settings, prompts, range(11))
    assert any(len(a) != len(b) or (a != b).any() for (a, _), (b, _) in zip(found, wanted))


def test_a_batch_that_does_not_fit_is_halved(monkeypatch):
    tried, embed = [], batch_writer.RaggedKVCache.step

    def limited(self, decoder):
        tried.append(len(self.length))
        if len(self.length) > 3:
            raise torch.OutOfMemoryError("no room")
        return embed(self, decoder)

    record_settings = Settings(4, 6, Rule(), (), (), (), 8)
    target, prompts = Target(toy_target()), toy_prompts(9, 4)
    wanted = written_singly(target, record_settings, prompts, range(9))
    monkeypatch.setattr(batch_writer.RaggedKVCache, "step", limited)
    assert_equal(target_sequences(target, record_settings, prompts, range(9)), wanted)
    assert tried[:3] == [8, 4, 2]


def test_progress_counts_every_sequence():
    seen = []
    record_settings = Settings(4, 6, RULES["coupled"], ENDS, (), (), 3)
    target_sequences(
        Target(toy_target()), record_settings, toy_prompts(7), range(7),
        lambda *step: seen.append(step[:3])
    )  # fmt: skip
    assert seen == [("writing", i + 1, 7) for i in range(7)]


def test_noise_of_many_addresses_is_that_of_each():
    sequence, position = [4, 0, 4, 70000], [9, 0, 3, 1]
    rows = gumbel(5, sequence, position, VOCAB, "cpu")
    for row, s, t in zip(rows, sequence, position):
        assert torch.equal(row, torch.from_numpy(rng.gumbel(5, s, t, VOCAB)))


def test_default_batch_keeps_exact_passes_single():
    assert default_batch(Target(toy_target())) == 32
    assert default_batch(Target(toy_decoder(0).bfloat16())) == 1
    passes = CapturedPasses((1, 5), 64, compiled=False)
    target = Target(toy_target())
    target.passes = passes
    assert default_batch(target) == 1


def test_batch_of_the_strict_engine_is_refused():
    target = Target(toy_target())
    target.passes = CapturedPasses((5,), 64, False, smallest=64)
    with pytest.raises(RecordError, match="strict engine"):
        target_sequences(target, Settings(4, 6, Rule(), (), (), (), 2), [[5]], [0])


@pytest.mark.parametrize("batch", [0, -1, 1 << 20])
def test_invalid_batches_are_refused(batch):
    with pytest.raises(RecordError, match="sequences at a time"):
        Settings(4, 6, Rule(), (), (), (), batch)


# ---- recordings


@lru_cache
def prompts_of(count):
    return [Prompt(str(i), "toy", "random", p) for i, p in enumerate(toy_prompts(count, 9))]


def recorded(out, rule="coupled", batch=1, count=11, name="model"):
    target, drafter = toy_pair(name)
    features = () if rule == "rejection" else ("confidence", "entropy")
    record_settings = Settings(4, 8, ALL_RULES[rule], ENDS, features, (), batch)
    meta = describe("toy", drafter, record_settings, prompts_of(count), "", "cpu", torch.float64)
    files = RecordingFiles(out, shard_size=2)
    own = Recording(target, drafter, record_settings, files, replace(meta, argv=()))
    return record_all([own], prompts_of(count))[0]


@pytest.mark.parametrize("rule", ALL_RULES)
def test_recording_of_a_batch_is_equal_and_says_so(tmp_path, rule):
    one = recorded(tmp_path / "one.parquet", rule)
    many = recorded(tmp_path / "many.parquet", rule, 3)
    assert many.meta == replace(one.meta, batch=3)
    assert load_trace(tmp_path / "many.parquet").meta.batch == 3
    if rule == "rejection":  # probabilities are not rounded to codes
        np.testing.assert_allclose(many.ratio, one.ratio, rtol=1e-6)
        many = replace(many, ratio=one.ratio)
    assert replace(many, meta=one.meta) == one
    assert sorted(p.name for p in tmp_path.iterdir()) == ["many.parquet", "one.parquet"]


def test_blocks_cover_all_sequences_and_hold_whole_shards():
    record_settings = Settings(4, 8, Rule(), (), (), (), 3)
    assert blocks_of(record_settings, 8, 45) == [range(16), range(16, 32), range(32, 45)]


def test_killed_recording_does_not_write_its_block_again(tmp_path, monkeypatch):
    whole = recorded(tmp_path / "whole.parquet", batch=2)
    addresses_written = []

    def until_the_second_block(target, settings_, prompts, addresses, progress):
        if addresses_written == list(range(8)):
            raise KeyboardInterrupt
        return listed(target, settings_, prompts, addresses, progress)

    def listed(target, settings_, prompts, addresses, progress):
        addresses_written.extend(addresses)
        return target_sequences(target, settings_, prompts, addresses, progress)

    out = tmp_path / "killed.parquet"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("real.record.sequences.target_sequences", until_the_second_block)
        recorded(out, batch=2)
    addresses_written.clear()
    monkeypatch.setattr("real.record.sequences.target_sequences", listed)
    assert recorded(out, batch=2) == whole
    assert addresses_written == [8, 9, 10]  # the first block of 8 was saved
    with pytest.raises(RecordError, match="other settings"):
        (tmp_path / "killed.parquet.parts").mkdir()
        (tmp_path / "killed.parquet.parts" / "settings.json").write_text("{}")
        recorded(out, batch=2)
