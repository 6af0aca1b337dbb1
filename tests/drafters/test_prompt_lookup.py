"""Prompt lookup: the incremental table equals a full search, and its runs replay."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_checkpoint import refused
from toy_lm import RULES, policy_from, run_all, toy_cost, toy_prompts, toy_target

from real.draft import Drafter
from real.drafters import BUILTIN
from real.drafters.prompt_lookup import PromptLookupDrafter
from real.model.target import Target
from real.prompts import Prompt
from real.record import Settings
from real.record.recorder import record_sequence
from real.record.rows import assemble
from real.record.settings import describe
from real.rerun import compare
from simspec import replay

SIZES = st.tuples(st.integers(1, 4), st.integers(0, 3)).map(
    lambda pair: {"ngram_min": pair[0], "ngram_max": sum(pair)}
)
TEXT = st.lists(st.integers(0, 3), min_size=1, max_size=24)


def naive(text, ngram_max, ngram_min, match):
    """The tokens after the first or last earlier occurrence of the longest suffix of `text`."""
    for n in range(min(ngram_max, len(text) - 1), ngram_min - 1, -1):
        starts = [i for i in range(len(text) - n) if text[i : i + n] == text[-n:]]
        if starts:
            return text[(starts[0] if match == "first" else starts[-1]) + n :]
    return []


def started(prompt, **settings):
    drafter = PromptLookupDrafter(**settings)
    drafter.begin(None, prompt, None, None)
    return drafter


def offer(drafter, limit=99):
    steps = [s for s in (drafter.next() for _ in range(limit)) if s]
    assert [s.parent for s in steps] == list(range(len(steps)))
    assert all(s.logits is None and s.hidden is None for s in steps)
    return [s.token for s in steps]


@given(SIZES, st.sampled_from(["first", "last"]), TEXT)
def test_offer_equals_a_search_of_the_whole_sequence(sizes, match, text):
    drafter = started(text, **sizes, match=match)
    assert offer(drafter) == naive(text, **sizes, match=match)
    assert drafter.next() is None


@given(
    SIZES,
    st.sampled_from(["first", "last"]),
    TEXT,
    st.lists(st.tuples(st.integers(0, 5), TEXT), max_size=6),
)
def test_offer_after_rounds_equals_a_fresh_one(sizes, match, text, rounds):
    drafter = started(text, **sizes, match=match)
    for drafted, committed in rounds:
        offer(drafter, drafted)
        drafter.rollback(0)  # given up unverified, then drafted again, as the recorder does
        offer(drafter, drafted)
        drafter.rollback(min(drafted, len(committed) - 1))
        drafter.catch_up(committed, None, [0])
        text = text + committed
    fresh = started(text, **sizes, match=match)
    assert drafter.follows == fresh.follows
    assert offer(drafter) == offer(fresh) == naive(text, **sizes, match=match)


def test_match_and_suffix_length_choose_the_occurrence():
    text = [1, 2, 5, 1, 2, 6, 9, 2, 7, 1, 2]
    assert offer(started(text, ngram_max=2)) == [5, 1, 2, 6, 9, 2, 7, 1, 2]
    assert offer(started(text, ngram_max=2, match="last")) == [6, 9, 2, 7, 1, 2]
    assert offer(started(text, ngram_max=1, match="last")) == [7, 1, 2]
    assert offer(started(text, ngram_min=3, ngram_max=5)) == []
    assert offer(started([4])) == []
    assert offer(started([4, 4])) == [4]


def test_one_search_per_round(monkeypatch):
    searches, find = [], PromptLookupDrafter._find
    monkeypatch.setattr(PromptLookupDrafter, "_find", lambda self: searches.append(1) or find(self))
    drafter = started([1, 2, 3, 4, 1, 2])
    for i in range(1, 5):
        assert len(offer(drafter, 3)) == 3
        assert len(searches) == i
        drafter.rollback(0)
        drafter.catch_up([3, 4, 1, 2], None, [0])


def test_not_prefix_only():
    """A chain's tail is not the chain redrafted after verification: another suffix may match."""
    drafter = started([3, 2, 7, 3, 1, 7], ngram_max=1)
    assert not drafter.prefix_only
    assert offer(drafter) == [3, 1, 7]
    drafter.rollback(0)
    drafter.catch_up([3], None, [0])
    assert offer(drafter) == [2, 7, 3, 1, 7, 3]


WRONG = [
    {"ngram_max": 0},
    {"ngram_min": 4},
    {"ngram_min": 0},
    {"match": "longest"},
    {"ngram_max": 2.0},
    {"ngram_min": True},
]


@pytest.mark.parametrize("settings", WRONG)
def test_invalid_settings_are_refused(tmp_path, settings):
    with pytest.raises(ValueError, match="expected"):
        PromptLookupDrafter(**settings)
    (tmp_path / "prompt_lookup.json").write_text(json.dumps({"settings": settings}))
    refused(
        "prompt_lookup.json holds no settings.*expected",
        PromptLookupDrafter.load,
        tmp_path,
        None,
        {},
    )


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"settings": 3}', '{"settings": {"depth": 1}}'])
def test_broken_settings_are_refused(tmp_path, text):
    (tmp_path / "prompt_lookup.json").write_text(text)
    refused("holds no settings", PromptLookupDrafter.load, tmp_path, None, {})


def test_folder_with_settings_is_optional(tmp_path):
    drafter = BUILTIN["prompt_lookup"].load(Path("nowhere"), None, {})
    assert isinstance(drafter, Drafter)
    assert not drafter.has_logits
    assert not drafter.prefix_only
    assert drafter.history_free
    assert drafter.predictors == {}
    assert drafter.settings == {"ngram_max": 3, "ngram_min": 1, "match": "first"}
    (tmp_path / "prompt_lookup.json").write_text('{"settings": {"ngram_max": 5, "match": "last"}}')
    assert PromptLookupDrafter.load(tmp_path, None, {}).settings == {
        "ngram_max": 5,
        "ngram_min": 1,
        "match": "last",
    }


@pytest.mark.parametrize("match", ["first", "last"])
@pytest.mark.parametrize("rule", RULES)
def test_runs_are_lossless_and_equal_their_replays(rule, match):
    decoder = toy_target()
    target, drafter = Target(decoder, capacity=32), PromptLookupDrafter(match=match)
    settings = Settings(6, 24, RULES[rule], (3,), features=())
    prompts = [Prompt(str(i), "toy", "random", p) for i, p in enumerate(toy_prompts(10))]
    rows = [record_sequence(target, drafter, settings, p.token, i) for i, p in enumerate(prompts)]
    meta = describe("toy", drafter, settings, prompts, "", "cpu", torch.float64)
    trace, cost = assemble(rows, prompts, 0, settings, meta), toy_cost()
    assert trace.depth.min() == 0
    assert trace.run.max() > 0
    assert (trace.run < trace.depth).any()
    for text in (
        "fixed:0",
        "fixed:1",
        "fixed:6",
        "beta_ts",
        "cost_ts",
        "hf_heuristic:3",
        "cali_ts:side=sampling",
        "oracle",
    ):
        policy = policy_from(text, trace, cost)
        results = run_all(target, drafter, trace, policy, cost)
        assert np.concatenate([r.token for r in results]).tolist() == trace.token.tolist()
        assert compare(trace, policy, replay(trace, policy, 0, cost=cost), results).exact, text
