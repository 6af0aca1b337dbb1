"""A recording is what its definition says, whichever way it was made, and a killed one loses nothing."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_lm import DRAFTERS, END, RULES, toy_pair, toy_prompts

from real import record as module
from real.draft import Silent
from real.prompts import Prompt
from real.record import RecordError, Rows, Settings, chains, describe, one_bit, record, record_text, target_text
from simspec import load_trace

PAIRS = {name: toy_pair(name) for name in DRAFTERS}


@settings(deadline=None, max_examples=25)
@given(st.sampled_from(DRAFTERS), st.sampled_from(list(RULES)), st.integers(0, 500), st.integers(1, 7), st.integers(1, 20))
def test_the_one_bit_form_equals_the_definition(name, rule, seed, K, budget):
    target, drafter = PAIRS[name]
    prompt = toy_prompts(1, seed)[0]
    asked = Settings(K, budget, RULES[rule], END)
    text, _ = target_text(target, asked, prompt, seed)
    slow, fast = chains(target, drafter, asked, prompt, text, seed), one_bit(target, drafter, asked, prompt, text, seed)
    for name in Rows.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(slow, name), getattr(fast, name), err_msg=name)


@pytest.mark.parametrize("rule", RULES)
def test_rows_follow_the_definition_without_caches(rule):
    """run, depth and rank from whole forward passes of the drafter, position by position."""
    target, drafter = PAIRS["model"]
    asked, sequence = Settings(5, 16, RULES[rule], END), 3
    prompt = toy_prompts(1, 12)[0]
    rows = record_text(target, drafter, asked, prompt, sequence)
    text, scored = rows.token.tolist(), 0

    def scores(prefix, position):
        with torch.inference_mode():
            logits = drafter.lm(torch.tensor([prefix]))[0, -1:]
        return RULES[rule].scores(logits, sequence, [position])[0]

    for t in range(len(text)):
        draft = []
        while len(draft) < min(5, 16 - t) and (not draft or draft[-1] not in END):
            draft.append(int(scores([*prompt, *text[:t], *draft], t + len(draft)).argmax()))
        run = 0
        while run < len(draft) and t + run < len(text) and draft[run] == text[t + run]:
            run += 1
        assert rows.run[t] == run
        assert rows.depth[t] == (len(draft) if draft[-1] in END else 5)
        for i in range(min(5, len(text) - t)):
            s = scores([*prompt, *text[: t + i]], t + i)
            assert rows.rank[t, i] == int((s > s[text[t + i]]).sum())
            scored += 1
    assert scored > 20


def _prompts(count):
    return [Prompt(str(i), "toy", "random", p) for i, p in enumerate(toy_prompts(count))]


def _record(out, count=7, asked=None, drafter=None, **more):
    target, own = PAIRS["model"]
    asked = asked or Settings(4, 8, RULES["coupled"], END)
    drafter = drafter or own
    meta = describe("toy", drafter, asked, _prompts(count), "", "cpu", torch.float64)
    return record(target, drafter, asked, _prompts(count), out, meta, shard=2, **more)


def test_a_killed_recording_continues_and_loses_nothing(tmp_path, monkeypatch):
    whole = _record(tmp_path / "whole.parquet")
    made = []

    def counted(target, drafter, asked, prompt, sequence):
        if len(made) == 5:
            made.append(None)
            raise KeyboardInterrupt
        made.append(sequence)
        return record_text(target, drafter, asked, prompt, sequence)

    monkeypatch.setattr(module, "record_text", counted)
    out = tmp_path / "killed.parquet"
    with pytest.raises(KeyboardInterrupt):
        _record(out)
    assert not out.exists()
    resumed = _record(out)
    assert made == [0, 1, 2, 3, 4, None, 4, 5, 6]  # whole shards are kept, the broken one is made again
    assert resumed == whole == load_trace(out)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["killed.parquet", "whole.parquet"]


def test_other_settings_do_not_mix_into_a_half_done_recording(tmp_path, monkeypatch):
    out = tmp_path / "t.parquet"
    monkeypatch.setattr(module, "join", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        _record(out)
    with pytest.raises(RecordError, match="other settings"):
        _record(out, asked=Settings(4, 9, RULES["coupled"], END))
    (tmp_path / "t.parquet.parts" / "settings.json").write_text("{")
    with pytest.raises(RecordError, match="settings.json is damaged"):
        _record(out)


def test_a_damaged_shard_is_refused_by_name(tmp_path, monkeypatch):
    out = tmp_path / "t.parquet"
    monkeypatch.setattr(module, "join", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        _record(out)
    shard = tmp_path / "t.parquet.parts" / "000002.parquet"
    shard.write_bytes(shard.read_bytes()[:-40])
    with pytest.raises(ValueError, match="000002"):
        _record(out)


def test_a_drafter_with_a_history_is_refused():
    class Pool(Silent):
        history_free = False

    target, _ = PAIRS["model"]
    asked = Settings(4, 8, RULES["greedy"], END)
    with pytest.raises(RecordError, match="earlier rounds"):
        record_text(target, Pool(), replace(asked), [5, 6], 0)


def test_a_drafter_that_offers_nothing_records_depth_zero():
    target, _ = PAIRS["model"]
    rows = record_text(target, Silent(), Settings(4, 8, RULES["greedy"], END, features=()), [5, 6], 0, slow=True)
    assert (rows.depth == 0).all() and (rows.run == 0).all()


@pytest.mark.parametrize("K, budget", [(0, 8), (256, 8), (4, 0)])
def test_settings_refuse_what_cannot_be_recorded(K, budget):
    with pytest.raises(RecordError, match="expected"):
        Settings(K, budget, RULES["greedy"], END)
