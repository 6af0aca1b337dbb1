"""The loss of two vocabulary heads in chunks: equal to that of whole logits, gradients too."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from real.draft import losses
from real.draft.losses import distillation_loss, head_distillation_loss, soft_loss
from real.model.draft_head import DraftVocabularyHead

ROWS, WIDTH, WIDE, VOCAB = 11, 6, 5, 17


def inputs(dtype, bias, seed=0):
    """(hidden, weight, bias) that train, and (feature, weight, bias) of the target."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=generator).to(dtype)

    own = draw(ROWS, WIDTH), draw(VOCAB, WIDTH), draw(VOCAB) if bias else None
    given = draw(ROWS, WIDE), draw(VOCAB, WIDE), draw(VOCAB) if bias else None
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


def test_frozen_parts_get_no_gradient_and_a_trained_one_does():
    own, given = inputs(torch.float32, False)
    own[1].requires_grad_(False)
    head_distillation_loss(own[0], own[1:], given[0], given[1:]).backward()
    assert own[1].grad is None
    assert own[0].grad.abs().max() > 1e-3


def test_equal_to_the_loss_of_logits_and_stationary_at_agreement():
    own, given = inputs(torch.float32, True)
    logits, wanted = F.linear(own[0], *own[1:]), F.linear(given[0], *given[1:])
    found = head_distillation_loss(own[0], own[1:], given[0], given[1:])
    assert abs((found - distillation_loss(logits, wanted)).item()) < 1e-5
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
    token, wide = torch.tensor([0, 3, 4, 9, 16]), nn.Linear(WIDE, VOCAB)
    hidden, feature = torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDE)
    head = DraftVocabularyHead(nn.Linear(WIDTH, VOCAB), token)
    found = soft_loss(head, hidden, SimpleNamespace(head=wide), feature)
    p = wide(feature).softmax(-1)[:, token]
    p = p / p.sum(-1, keepdim=True)
    assert abs(found + (p * head.compact(hidden).log_softmax(-1)).sum(-1).mean()) < 1e-5
