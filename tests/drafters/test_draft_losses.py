"""Logits of a draft vocabulary and losses of vocabulary heads equal those of whole logits."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from real.draft import losses
from real.draft.kind import DraftedLogits, rank_of
from real.draft.losses import head_distillation_loss, soft_loss
from real.model.draft_head import DraftVocabularyHead
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


ROWS, WIDTH, WIDE, TOKENS = 11, 6, 5, 17


def inputs(dtype, bias, seed=0):
    """(hidden, weight, bias) that train, and (feature, weight, bias) of the target."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=generator).to(dtype)

    own = draw(ROWS, WIDTH), draw(TOKENS, WIDTH), draw(TOKENS) if bias else None
    given = draw(ROWS, WIDE), draw(TOKENS, WIDE), draw(TOKENS) if bias else None
    return [None if x is None else x.requires_grad_() for x in own], given


def whole(own, given):
    """By the definition."""
    logq = F.linear(own[0], *own[1:]).log_softmax(-1)
    p = F.linear(given[0], *given[1:]).softmax(-1)
    return -(p * logq).sum(-1).mean()


@pytest.mark.parametrize("chunk", [1, 4, 11, 256])
@pytest.mark.parametrize("bias", [False, True])
def test_loss_and_gradients_equal_those_of_whole_logits(monkeypatch, chunk, bias):
    monkeypatch.setitem(losses.CHUNK, "cpu", chunk)
    own, given = inputs(torch.float64, bias)
    trained = [x for x in own if x is not None]
    wanted = whole(own, given)
    found = head_distillation_loss(own[0], own[1:], given[0], given[1:])
    assert abs((found - wanted).item()) < 1e-12
    pairs = zip(torch.autograd.grad(3 * found, trained), torch.autograd.grad(3 * wanted, trained))
    for ours, theirs in pairs:
        assert (ours - theirs).abs().max() < 1e-12
        assert theirs.abs().max() > 1e-3


def test_the_loss_is_stationary_at_agreement():
    _, given = inputs(torch.float32, True)
    same = given[0].clone().requires_grad_()
    head_distillation_loss(same, given[1:], given[0], given[1:]).backward()
    assert same.grad.abs().max() < 1e-7


def test_autocast_multiplies_in_bfloat16_and_sums_in_float32():
    own, given = inputs(torch.float32, False)
    exact = whole(own, given)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = head_distillation_loss(own[0], own[1:], given[0], given[1:])
    assert found.dtype == torch.float32
    assert 0 < abs((found - exact).item()) < 0.05
    (gradient,) = torch.autograd.grad(found, own[0])
    assert gradient.dtype == torch.float32


@torch.no_grad()
def test_a_draft_vocabulary_learns_the_distribution_over_its_tokens():
    torch.manual_seed(0)
    token, wide = torch.tensor([0, 3, 4, 9, 16]), nn.Linear(WIDE, TOKENS)
    hidden, feature = torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDE)
    head = DraftVocabularyHead(nn.Linear(WIDTH, TOKENS), token)
    found = soft_loss(head, hidden, SimpleNamespace(head=wide), feature)
    p = wide(feature).softmax(-1)[:, token]
    p = p / p.sum(-1, keepdim=True)
    assert abs(found + (p * head.compact(hidden).log_softmax(-1)).sum(-1).mean()) < 1e-5
