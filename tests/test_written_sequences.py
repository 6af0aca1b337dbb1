"""Sequences that a target writes for its drafters: batches, shards, splits and the loss mask."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_lm import VOCAB, toy_decoder, toy_prompts

from real.train import continue_prompts as batched
from real.train.continue_prompts import continue_prompts, mixed_choice
from real.train.prompt_set import split_prompts
from real.train.sequence_shards import Sequences, Writing, is_greedy, read_shard, write_sequences
from simspec.rng import DRAFT, uniform

DECODER = toy_decoder(2, spread=0.8)
MADE_FOR = {"weights": "w", "config": "c", "tokenizer": "t"}


def alone(prompt, length, ends, greedy, seed, address):
    """One sequence from its definition: whole passes, an argmax or an inverse distribution."""
    tokens = list(prompt)
    for step in range(length):
        logits = DECODER(torch.tensor([tokens]))[0, -1]
        if greedy:
            token = int(logits.argmax())
        else:
            share = logits.softmax(-1).cumsum(-1)
            token = int((share <= uniform(seed, address, step, 0, DRAFT) * share[-1]).sum())
        tokens.append(token)
        if token in ends:
            break
    return tokens[len(prompt) :]


@settings(deadline=None, max_examples=12)
@given(st.integers(0, 99), st.integers(1, 9), st.sampled_from([(), (3, 7), tuple(range(4, 20))]))
def test_batches_of_any_lengths_equal_one_at_a_time(seed, count, ends):
    prompts, draw = toy_prompts(count, seed), np.random.default_rng(seed)
    greedy, address = draw.random(count) < 0.5, draw.integers(0, 999, count)
    choose = mixed_choice(greedy, seed, address)
    written = continue_prompts(DECODER, prompts, 8, choose, ends)
    expected = [alone(p, 8, ends, greedy[i], seed, int(address[i])) for i, p in enumerate(prompts)]
    assert [part.tolist() for part in written] == expected


def test_memory_bounds_the_batch_and_changes_nothing(monkeypatch):
    prompts = toy_prompts(7, 3)
    choose = mixed_choice(np.zeros(7, bool), 5, np.arange(7))
    whole = continue_prompts(DECODER, prompts, 6, choose, (3,))
    sizes, inner = [], batched._continue_batch
    monkeypatch.setattr(
        batched, "_continue_batch", lambda *given: sizes.append(len(given[1])) or inner(*given)
    )
    monkeypatch.setattr(batched, "MAX_BYTES", 2 * 2 * 4 * 8 * 8 * (8 + 6))
    parts = continue_prompts(DECODER, prompts, 6, choose, (3,))
    assert max(sizes) < 7
    assert [p.tolist() for p in parts] == [p.tolist() for p in whole]


def test_control_padding_that_is_seen_changes_sequences(monkeypatch):
    prompts = [[5, 6, 7, 8, 9], [4]]
    greedy = mixed_choice(np.ones(2, bool), 0, np.zeros(2, int))
    right = continue_prompts(DECODER, prompts, 8, greedy)
    inner = batched._rows
    monkeypatch.setattr(
        batched, "_rows", lambda d, token, pad, *given: inner(d, token, 0 * pad, *given)
    )
    wrong = continue_prompts(DECODER, prompts, 8, greedy)
    assert wrong[0].tolist() == right[0].tolist()
    assert wrong[1].tolist() != right[1].tolist()


def prompt_set(count=40, seed=0):
    return split_prompts(toy_prompts(count, seed), {}, seed)


def test_prompts_are_split_without_overlap():
    found = prompt_set(120)
    parts = [{tuple(p) for p in part} for part in (found.training, found.heldout)]
    assert not parts[0] & parts[1]
    assert parts[0] | parts[1] == {tuple(p) for p in toy_prompts(120)}
    assert len(found.heldout) == len(parts[0] | parts[1]) // 4
    assert len(found.training) == len(parts[0])
    assert prompt_set(120).sha256 == found.sha256 != prompt_set(120, 1).sha256
    with pytest.raises(ValueError, match="1 different prompts; expected at least 8"):
        split_prompts([[1, 2]] * 30, {}, 0)


def test_each_prompt_is_continued_greedily_once():
    number = np.arange(5 * 9)
    greedy = is_greedy(number, 9)
    assert np.bincount(number[greedy] % 9).tolist() == [1] * 9
    assert not greedy[18:].any()
    assert 4 <= greedy[:9].sum() <= 5


class Killed(Exception):
    pass


def test_writing_resumes_and_grows(tmp_path):
    prompts, writing = prompt_set(), Writing(900, 6, (3, 7), 4)

    def write(folder, tokens=900, stop=None):
        def progress(label, done, total, note=""):
            if stop is not None and done >= stop:
                raise Killed

        asked = Writing(tokens, 6, (3, 7), 4)
        return write_sequences(asked, prompts, DECODER, MADE_FOR, folder, progress)

    whole = write(tmp_path / "a")
    for stop in (1, 500):
        with pytest.raises(Killed):
            write(tmp_path / "b", stop=stop)
    held = {p: p.stat().st_mtime_ns for p in (tmp_path / "b").rglob("*.safetensors")}
    assert len(held) == 2
    resumed = write(tmp_path / "b")
    assert all(p.stat().st_mtime_ns == written for p, written in held.items())
    assert np.array_equal(resumed.token, whole.token)
    assert np.array_equal(resumed.offset, whole.offset)
    assert whole.new_tokens >= writing.tokens
    more = write(tmp_path / "b", tokens=2000)
    assert np.array_equal(more.token[: len(whole.token)], whole.token)
    assert more.new_tokens >= 2000
    again = write(tmp_path / "b")
    assert np.array_equal(again.token, whole.token)
    learned = np.concatenate([whole.pair(i)[1] for i in range(len(whole))])
    assert np.array_equal(whole.learned(), learned)
    assert all(whole.pair(i)[0] in prompts.training for i in range(len(whole)))
    for i in range(len(whole)):
        new_tokens = whole.pair(i)[1]
        assert not np.isin(new_tokens[:-1], (3, 7)).any()
        assert len(new_tokens) == 6 or new_tokens[-1] in (3, 7)


@pytest.mark.parametrize(
    "prompts, writing, made_for, name",
    [
        (prompt_set(seed=1), Writing(50, 6, (3,), 4), MADE_FOR, "prompts"),
        (prompt_set(), Writing(50, 5, (3,), 4), MADE_FOR, "length"),
        (prompt_set(), Writing(50, 6, (3,), 5), MADE_FOR, "seed"),
        (prompt_set(), Writing(50, 6, (4,), 4), MADE_FOR, "end_tokens"),
        (prompt_set(), Writing(50, 6, (3,), 4), MADE_FOR | {"weights": "x"}, "target"),
    ],
)
def test_sequences_of_another_making_are_refused(tmp_path, prompts, writing, made_for, name):
    write_sequences(Writing(50, 6, (3,), 4), prompt_set(), DECODER, MADE_FOR, tmp_path)
    with pytest.raises(ValueError, match=f"another {name}; choose another --work"):
        write_sequences(writing, prompts, DECODER, made_for, tmp_path)


def test_damaged_shards_are_named(tmp_path):
    write_sequences(Writing(50, 6, (3,), 4), prompt_set(), DECODER, MADE_FOR, tmp_path)
    path = tmp_path / "sequences" / "00000.safetensors"
    whole = path.read_bytes()
    for damaged in (b"", whole[:-4], whole[:8] + b"[" + whole[9:]):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="00000.safetensors is damaged") as caught:
            read_shard(path)
        assert "\n" not in str(caught.value)
    assert Sequences(np.array([1]), np.array([0, 1]), np.array([1])).longest < VOCAB
