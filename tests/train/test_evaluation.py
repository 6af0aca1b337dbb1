"""Accepted lengths of drafters and of trigram tables by their definition, and comparisons."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_lm import TOYS, toy_target
from toy_training import continuations

from real.model.target import Target
from real.record import Settings
from real.record.rows import record_stepwise
from real.sampling import Rule
from real.train.evaluation import (
    AcceptedLengths,
    accepted_lengths,
    compare,
    count_trigrams,
    lengths_of_hits,
    summary,
)


def toy_drafter(name):
    return TOYS[name](toy_target(), 0)


# "glide2" is of the kind "glide"; asked by name, so that no toy is trained when tests are collected
HELD = settings(deadline=None, max_examples=80, derandomize=True)


@pytest.mark.parametrize("name", TOYS)
def test_accepted_lengths_equal_recorded_ones(name):
    target, texts = toy_target(), continuations()
    drafter, K = TOYS[name](target, 0), 5
    lengths, shifted = accepted_lengths(target, drafter, texts, K), False
    for i, (prompt, text) in enumerate(texts):
        engine = Target(target, drafter.taps)
        rows = record_stepwise(
            engine, drafter, Settings(K, len(text), Rule(), (), ()), prompt,
            text.astype(np.int32), 0
        )  # fmt: skip
        assert lengths.accepted[i].tolist() == rows.run.tolist()
        # room is known where a draft came to its end
        reached = lengths.accepted[i] == np.minimum(lengths.offered[i], K)
        assert (lengths.offered[i] <= np.minimum(K, len(text) - np.arange(len(text)))).all()
        assert (lengths.offered[i][reached] <= rows.depth[reached]).all()
        shifted |= lengths.accepted[i][1:].tolist() != rows.run[:-1].tolist()
    assert shifted  # the control: one position off is another recording


hits = st.lists(st.booleans(), min_size=1, max_size=30)


@HELD
@given(hits, st.integers(1, 7))
def test_lengths_of_hits_count_leading_hits(hit, K):
    run, room = lengths_of_hits(np.array(hit), K)
    for t in range(len(hit)):
        ahead = [*hit[t : t + K], False]
        assert run[t] == ahead.index(False)
        assert room[t] == min(K, len(hit) - t)


@HELD
@given(st.lists(hits, min_size=1, max_size=4), st.integers(1, 5))
def test_acceptance_by_depth_counts_eligible_drafts(texts, K):
    lengths = AcceptedLengths(K, *zip(*(lengths_of_hits(np.array(t), K) for t in texts)))
    for j, alpha in enumerate(lengths.by_depth(), 1):
        fates = [
            t[i + j - 1] for t in texts for i in range(len(t) - j + 1) if all(t[i : i + j - 1])
        ]
        assert alpha == (round(sum(fates) / len(fates), 4) if fates else None)
    whole = [sum((*t[i : i + K], False).index(False) for i in range(len(t) - K + 1)) for t in texts]
    drafts = [max(0, len(t) - K + 1) for t in texts]
    assert lengths.mean() == sum(whole) / max(1, sum(drafts))


def random_accepted(seed, texts=20, rate=0.5, K=5):
    draw = np.random.default_rng(seed)
    return AcceptedLengths(
        K, *zip(*(lengths_of_hits(draw.random(30) < rate, K) for _ in range(texts)))
    )


def test_comparisons_are_paired_and_report_missing_intervals():
    low, high = random_accepted(0), random_accepted(1, rate=0.8)
    assert compare(high, low)["longer"] is True
    assert compare(low, high)["longer"] is False
    same = {"value": 0.0, "low": 0.0, "high": 0.0, "texts": 20, "longer": False}
    assert compare(low, low) == same
    difference = round(high.mean() - low.mean(), 4)
    assert compare(high, low)["value"] == -compare(low, high)["value"] == difference
    two = [random_accepted(i, texts=7) for i in range(2)]
    assert compare(*two)["low"] is None
    assert compare(*two)["longer"] is None
    assert summary(two[0])["accepted_length"]["high"] is None
    short = AcceptedLengths(5, *zip(*(lengths_of_hits(np.ones(3, bool), 5) for _ in range(9))))
    assert short.mean() == 0.0
    assert compare(short, short)["texts"] == 0


def naive_pick(rows, before, last, vocab):
    """The definition: counts in dictionaries, the smallest of the commonest."""

    def follow(size, key):
        return Counter(
            r[i + size] for r in rows for i in range(len(r) - size) if tuple(r[i : i + size]) == key
        )

    for counts in (
        follow(2, (before, last)),
        follow(1, (last,)),
        Counter(x for r in rows for x in r),
    ):
        if counts:
            return min(counts, key=lambda token: (-counts[token], token))


rows_of = st.integers(1, 12).flatmap(
    lambda n: st.lists(st.lists(st.integers(0, 4), min_size=n, max_size=n), min_size=1, max_size=5)
)


@HELD
@given(st.lists(rows_of, min_size=1, max_size=2))
def test_table_holds_the_most_frequent_next_token(parts):
    table, rows = count_trigrams([np.array(p) for p in parts], 5), sum(parts, [])
    for before in range(-1, 5):
        for last in range(5):
            assert table.picks(np.array([before]), np.array([last])) == naive_pick(
                rows, before, last, 5
            )


def test_counts_stay_within_rows_and_below_the_limit():
    pair = np.array([0]), np.array([1])
    assert count_trigrams([np.array([[0, 1, 2, 3]])], 5).picks(*pair) == 2
    assert count_trigrams([np.array([[0, 1], [2, 3]])], 5).picks(*pair) == 0
    text = np.array([0, 1, 2, 0, 1, 3, 0, 1, 3])
    assert count_trigrams([text], 5).picks(np.array([0]), np.array([1])) == 3
    assert count_trigrams([text], 5, most=4).picks(np.array([0]), np.array([1])) == 2
    with pytest.raises(ValueError, match="no tokens to count"):
        count_trigrams([], 5)
