"""Prompt lookup: its offers equal a full search, and its runs replay."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from naive_engine import lookup
from test_checkpoint import refused

from real.draft import Drafter
from real.drafters import BUILTIN
from real.drafters.prompt_lookup import PromptLookupDrafter

SIZES = st.tuples(st.integers(1, 4), st.integers(0, 3)).map(
    lambda pair: {"ngram_min": pair[0], "ngram_max": sum(pair)}
)
TEXT = st.lists(st.integers(0, 3), min_size=1, max_size=24)


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
    assert offer(drafter) == lookup(text, sizes["ngram_min"], sizes["ngram_max"], match)
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
    assert (
        offer(drafter)
        == offer(fresh)
        == lookup(text, sizes["ngram_min"], sizes["ngram_max"], match)
    )


def test_a_search_may_hold_what_it_searched(monkeypatch):
    held, found = [], PromptLookupDrafter._found
    monkeypatch.setattr(
        PromptLookupDrafter, "_found", lambda self, s: (held.append(s), found(self, s))[1]
    )
    drafter = started([1, 2, 3, 1, 2])
    assert offer(drafter) == [3, 1, 2]
    drafter.rollback(0)
    drafter.catch_up([4, 1, 2], None, [0])
    assert (offer(drafter), held[0].tolist()) == ([3, 1, 2, 4, 1, 2], [1, 2, 3, 1, 2])


WRONG = [
    {"ngram_max": 0}, {"ngram_min": 4}, {"ngram_min": 0}, {"match": "longest"},
    {"ngram_max": 2.0}, {"ngram_min": True},
]  # fmt: skip


@pytest.mark.parametrize("settings", WRONG)
def test_invalid_settings_are_refused(tmp_path, settings):
    with pytest.raises(ValueError, match="expected"):
        PromptLookupDrafter(**settings)
    for text in (json.dumps({"settings": settings}), "{", "[]", "{}", '{"settings": 3}'):
        (tmp_path / "prompt_lookup.json").write_text(text)
        refused(
            "prompt_lookup.json holds no settings", PromptLookupDrafter.load, tmp_path, None, {}
        )


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
