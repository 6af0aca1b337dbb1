"""Leakage of bundled prompts: none repeats words of training prompts, and none loops."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from leakage import SAMPLE, WORDS, leaks, sampled_hashes, set_instruction, word_runs, words

from real.prompts.prompt import repeated_ngrams
from simspec import load_trace

REAL = Path(__file__).parents[1] / "traces/smollm2"
MOST_REPEATED = 0.2
"""Share of repeated 8-grams of a task's outputs that a headline figure may rest on."""
SCHEMA = """Given this database schema:
CREATE TABLE Student ( StuID NUMBER PRIMARY KEY, LName TEXT, Fname TEXT, Age NUMBER, Sex TEXT,
Major NUMBER, Advisor NUMBER, city_code TEXT ); CREATE TABLE Has_Pet ( StuID NUMBER, PetID NUMBER,
FOREIGN KEY (StuID) REFERENCES Student(StuID), FOREIGN KEY (PetID) REFERENCES Pets(PetID) );
CREATE TABLE Pets ( PetID NUMBER PRIMARY KEY, PetType TEXT, pet_age NUMBER, weight NUMBER );"""
"""Of the Spider set, whose other questions are training prompts."""


def bundled():
    lines = (REAL / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def shared(turns, learned):
    return np.isin(sampled_hashes(word_runs(turns)), learned).sum()


def test_no_bundled_prompt_repeats_words_of_a_training_prompt():
    """One in SAMPLE runs of 13 words is kept; the control, a schema of the Spider set, is found."""
    learned = np.load(REAL / "training_runs.npy", allow_pickle=False)
    assert len(learned) > 10_000
    assert {row["id"]: shared(row["turns"], learned) for row in bundled() if
            shared(row["turns"], learned)} == {}  # fmt: skip
    assert shared([SCHEMA], learned) > 0


@pytest.mark.parametrize("rule", ["greedy", "coupled", "rejection"])
def test_no_bundled_recording_loops_or_holds_other_prompts(rule):
    ids = [row["id"] for row in bundled()]
    for path in sorted((REAL / rule).glob("*.parquet")):
        trace = load_trace(path)
        assert list(trace.meta.ids) == ids, path
        texts = [trace.token[a:b] for a, b in zip(trace.offset, trace.offset[1:])]
        for task in set(trace.meta.tasks):
            of = [text for text, name in zip(texts, trace.meta.tasks) if name == task]
            assert repeated_ngrams(of) < MOST_REPEATED, (path, task)


WORD = st.sampled_from(["a", "b", "c", "d"])


@given(st.lists(WORD, max_size=40), st.lists(WORD, max_size=40))
def test_runs_and_leaks_follow_their_definition(first, second):
    def slow(text):
        return {tuple(text[i : i + WORDS]) for i in range(len(text)) if i + WORDS <= len(text)}

    turns = [" ".join(first), " ".join(second)]
    assert word_runs(turns) == slow(first) | slow(second)
    assert word_runs(turns, 5) == slow(first[5:]) | slow(second)
    assert leaks([turns[0]], word_runs([turns[1]])) == bool(slow(first) & slow(second))


def test_case_and_punctuation_do_not_hide_a_leak():
    text = "One, two three-four. " * 6
    assert words(text)[:4] == ["one", "two", "three", "four"]
    assert leaks([text.upper()], word_runs([text.replace(",", ";")]))


def test_the_instruction_of_a_set_is_what_half_of_its_prompts_begin_with():
    prompts = [f"Sum up this text now {i} and more" for i in range(9)]
    assert set_instruction(prompts) == 5
    assert set_instruction([*prompts[:4], *(f"{i} other" for i in range(5))]) == 0
    assert set_instruction(["alone in its set"]) == 0
    assert set_instruction([]) == 0


def test_one_in_so_many_hashes_is_kept_and_the_same_of_every_text():
    runs = {(str(i),) * WORDS for i in range(4000)}
    kept = sampled_hashes(runs)
    assert 4000 / SAMPLE * 0.8 < len(kept) < 4000 / SAMPLE * 1.2
    assert set(sampled_hashes(list(runs)[:100])) <= set(kept)
