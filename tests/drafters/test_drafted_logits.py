"""Logits without the columns that no row drafts from: picks, margins, ranks and scores stay."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from real.draft.kind import DraftedLogits, rank_of
from real.record.rows import SequenceScores, picks
from real.sampling import Rule, margin

VOCAB = 24
RULES = [
    Rule(),
    Rule("coupled", 0.8, 3),
    Rule("coupled", 0.8, 3, top_k=3),
    Rule("coupled", 1.2, 5, top_p=0.7),
]


def restricted(seed, size, ties):
    """Logits `[5, VOCAB]` that are -inf outside `size` tokens; with `ties` of few values."""
    rng = np.random.default_rng(seed)
    token = np.sort(rng.choice(VOCAB, size, replace=False))
    values = rng.integers(0, 3, (5, size)) if ties else rng.normal(size=(5, size))
    logits = np.full((5, VOCAB), -np.inf)
    logits[:, token] = values
    return torch.from_numpy(logits), torch.from_numpy(token)


@given(st.integers(0, 2**32), st.integers(2, VOCAB), st.booleans(), st.sampled_from(RULES))
def test_all_figures_equal_those_of_the_whole_vocabulary(seed, size, ties, rule):
    logits, token = restricted(seed, size, ties)
    drafted = DraftedLogits.of(logits)
    if size <= VOCAB // 2:
        assert torch.equal(drafted.token, token)
    else:
        assert drafted.token is None
    position = torch.arange(5)
    whole = SequenceScores(rule, 1, 9)(DraftedLogits(logits, VOCAB, None), position)
    compact = SequenceScores(rule, 1, 9)(drafted, position)
    pick, gap = picks(drafted, compact)
    assert torch.equal(pick, whole.argmax(-1))
    assert torch.allclose(gap, margin(whole), rtol=1e-12)
    for wanted in range(VOCAB):
        wanted = torch.full((5,), wanted)
        assert torch.equal(drafted.rank(compact, wanted), rank_of(whole, wanted))
    column, inside = drafted.place(pick)
    assert inside.all()
    assert torch.equal(compact.gather(-1, column[:, None])[:, 0], whole.amax(-1))


def test_control_a_rank_among_columns_alone_is_wrong():
    logits, token = restricted(0, 4, False)
    drafted = DraftedLogits.of(logits)
    outside = torch.tensor([t for t in range(VOCAB) if t not in token][-1:]).repeat(5)
    column, _ = drafted.place(outside)
    assert not torch.equal(rank_of(drafted.logits, column), rank_of(logits, outside))


@pytest.mark.parametrize("size", [0, 1])
def test_a_row_without_a_choice_keeps_the_whole_vocabulary(size):
    logits = torch.full((3, VOCAB), -torch.inf)
    logits[:, :size] = 1.0
    assert DraftedLogits.of(logits).token is None
