"""The trigram table and the drafter that reads it."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_lm import VOCAB, toy_target, toy_texts
from toy_training import continuations

from real.train.accepted_length import accepted_lengths, lengths_of_hits
from real.train.trigram import TrigramDrafter, TrigramTable, count_trigrams

HELD = settings(deadline=None, max_examples=80, derandomize=True)


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
    joined, apart = (
        count_trigrams([np.array([[0, 1, 2, 3]])], 5),
        count_trigrams([np.array([[0, 1], [2, 3]])], 5),
    )
    assert (
        joined.picks(np.array([0]), np.array([1]))
        == 2
        != apart.picks(np.array([0]), np.array([1]))
        == 0
    )
    text = np.array([0, 1, 2, 0, 1, 3, 0, 1, 3])
    assert count_trigrams([text], 5).picks(np.array([0]), np.array([1])) == 3
    assert count_trigrams([text], 5, most=4).picks(np.array([0]), np.array([1])) == 2
    with pytest.raises(ValueError, match="no tokens to count"):
        count_trigrams([], 5)


def test_trigram_drafter_follows_its_table():
    target, texts = toy_target(), continuations()
    table = count_trigrams([toy_texts().numpy()], VOCAB)
    drafter = TrigramDrafter(table)
    lengths = accepted_lengths(target, drafter, texts, 5)
    for (prompt, text), run in zip(texts, lengths.accepted):
        assert run.tolist() == lengths_of_hits(table.hits(prompt, text), 5)[0].tolist()
    assert 0.2 < lengths.mean() < 4.8
    assert isinstance(table, TrigramTable)
    assert not drafter.has_logits
    assert drafter.prefix_only
