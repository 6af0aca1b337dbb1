"""Matching rules of n-gram drafting: compiled search, whole texts, and the slow twin."""

from pathlib import Path

import naive_engine
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simspec import load_trace
from simspec.engines.ngram import MOST_NGRAM, RULES, NgramRule, drafted_text, drafts, ngram_rule
from simspec.engines.text import WrittenText, record_texts

ROOT = Path(__file__).parents[2]
K, END = 5, 3
TEXT = st.lists(st.integers(0, 3), min_size=1, max_size=40)


@st.composite
def rules(draw):
    name = draw(st.sampled_from(sorted(RULES)))
    most = draw(st.integers(1, 4))
    least = most if RULES[name].simple else draw(st.integers(1, most))
    return ngram_rule(f"{name}:{least},{most}")


@given(TEXT, rules(), st.integers(1, 8))
def test_draft_equals_the_twin_at_every_position(text, rule, k):
    for position in range(len(text) + 1):
        expected = naive_engine.draft(text[:position], k, rule)
        assert drafts(np.array(text), position, k, rule).tolist() == expected


@given(TEXT, TEXT, rules(), st.integers(0, 9))
@settings(max_examples=300)
def test_a_text_equals_the_twin_at_every_position(prompt, output, rule, more):
    output = output[: output.index(END) + 1] if END in output else output
    budget = len(output) + more
    depths, runs = drafted_text(prompt, output, rule, K, budget, [END])
    for row in range(len(output)):
        reach = min(K, budget - row) if rule.at_budget else K
        whole = naive_engine.draft(prompt + output[:row], K, rule)
        shown = naive_engine.ended_draft(whole[:reach], [END], rule.draft_end)
        ended = rule.draft_end != "kept" and END in whole[:reach]
        depth = len(shown) if ended or len(whole) < reach else K
        pairs = list(zip(shown, output[row:]))
        agreed = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
        assert (depths[row], runs[row]) == (depth, agreed), row


def texts_of(trace):
    """The prompts and outputs of a recording."""
    parts = zip(trace.prompt_offset, trace.prompt_offset[1:], trace.offset, trace.offset[1:])
    return [
        WrittenText(
            trace.meta.ids[s], trace.meta.tasks[s], trace.prompt[a:b], trace.token[c:d],
            int(trace.budget[s]), trace.meta.temperature,
        )
        for s, (a, b, c, d) in enumerate(parts)
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["greedy", "coupled"])
def test_depths_and_runs_equal_those_of_the_recorder(name):
    """The bundled recordings were written by real.drafters.prompt_lookup with a target."""
    trace = load_trace(ROOT / f"traces/smollm2/{name}/prompt_lookup.parquet")
    again = record_texts(
        texts_of(trace), RULES["prompt_lookup"], trace.K, trace.meta.end_tokens, sampled=True
    )
    assert np.array_equal(again.depth, trace.depth)
    assert np.array_equal(again.run, trace.run)
    assert np.array_equal(again.token, trace.token)
    assert (again.meta.rule, again.meta.temperature) == (trace.meta.rule, trace.meta.temperature)


@pytest.mark.parametrize("wrong", ["vllm:1,3", "prompt_lookup:1,2", "transformers:1,3"])
def test_control_another_rule_gives_another_recording(wrong):
    trace = load_trace(ROOT / "traces/smollm2/greedy/prompt_lookup.parquet")
    again = record_texts(texts_of(trace), ngram_rule(wrong), trace.K, trace.meta.end_tokens)
    assert not np.array_equal(again.depth, trace.depth)


def test_occurrence_and_padding_by_example():
    text = np.array([1, 2, 5, 1, 2, 6, 9, 2, 7, 1, 2])
    given_ = {"vllm:1,2": [5, 1, 2], "vllm_v2:1,2": [6, 9, 2], "vllm_v2:1,1": [7, 1, 2]}
    for rule, expected in given_.items():
        assert drafts(text, 11, 3, ngram_rule(rule)).tolist() == expected
    assert drafts(text, 11, 3, ngram_rule("vllm:3,5")).tolist() == []
    assert drafts(text, 11, 3, ngram_rule("vllm_v2:3,5")).tolist() == [2, 2, 2]
    assert drafts(text, 9, 4, ngram_rule("vllm_v2:1,1")).tolist() == [7, 7, 7, 7]


def test_llamacpp_drafts_nothing_below_its_length():
    """With K = 1 and n = 2 a copy is shorter than n, so that it never drafts."""
    text = np.array([7, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2])
    assert drafts(text, 15, 1, RULES["llamacpp"]).tolist() == []
    assert drafts(text, 15, 3, RULES["llamacpp"]).tolist() == [3, 4, 1]
    # the only earlier [7, 1] starts at 0, where llama.cpp does not look
    assert drafts(np.append(text, [7, 1]), 17, 3, RULES["llamacpp"]).tolist() == []


WRONG = ["vllm:0", "vllm:2,1,3", "vllm:a", "vllm:3,2x", f"vllm:{MOST_NGRAM + 1}", "eagle", "vllm:"]


@pytest.mark.parametrize("text", WRONG)
def test_other_rules_are_refused(text):
    with pytest.raises(ValueError, match="expected"):
        ngram_rule(text)


def test_invalid_settings_are_refused():
    with pytest.raises(ValueError, match="one length"):
        NgramRule("mine", 1, 2, "last", simple=True)
    with pytest.raises(ValueError, match="position is 4"):
        drafts(np.array([1, 2]), 4, 1, RULES["vllm"])


def test_each_rule_is_read_from_its_text():
    for rule in RULES.values():
        assert ngram_rule(rule.text) == rule


def test_llamacpp_does_not_search_the_last_token():
    """In a run of one token the copy is that of a match two tokens back, one token long."""
    rule = ngram_rule("llamacpp:1")
    held, _ = drafted_text([], [1] * 12, rule, 3, 12)
    assert held.tolist() == [len(naive_engine.draft([1] * i, 3, rule)) for i in range(12)]
    assert held.tolist() == [0] * 7 + [1] * 5
