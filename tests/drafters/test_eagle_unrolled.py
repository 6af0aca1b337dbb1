"""Unrolled training steps: the estimates that drafts make, and a loss that reaches them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_eagle import features, pair_of, reference, text_of

from real.draft import TrainingBatch
from real.drafters.eagle import INPUTS, eagle_loss, unrolled_estimates


def unrolled(target, drafter, texts, steps):
    token = torch.tensor(texts)
    feature = torch.stack([features(target.decoder, text)[:-1] for text in texts])
    return unrolled_estimates(drafter.head, target.decoder, feature, token, steps)


@settings(deadline=None, max_examples=15)
@given(st.sampled_from(INPUTS), st.integers(1, 2), st.integers(0, 99), st.integers(1, 4))
def test_every_row_is_the_draft_that_starts_there(inputs, layers, seed, steps):
    """Against drafts of the definition, which recompute every row without a cache."""
    target, drafter = pair_of(inputs, layers=layers)
    texts = [text_of(9, seed), text_of(9, seed + 1)]
    found = unrolled(target, drafter, texts, steps)
    for b, text in enumerate(texts):
        for i in range(len(text) - 1 - steps):
            twin = reference(target.decoder, drafter.head, text[: i + 2], steps, text[i + 2 :])
            own = torch.stack([estimate[b, i] for estimate in found])
            torch.testing.assert_close(own, twin, rtol=0, atol=1e-10)


def test_one_step_is_teacher_forcing():
    target, drafter = pair_of(INPUTS[0])
    text = text_of(12)
    (first,) = unrolled(target, drafter, [text], 1)
    read = features(target.decoder, text)[:-1]
    taught = drafter.head.teacher_forced(target.decoder, read[None], torch.tensor([text]))
    torch.testing.assert_close(first, taught, rtol=0, atol=1e-10)


def test_control_a_later_step_reads_estimates():
    """True features in place of estimates give other second steps."""
    target, drafter = pair_of(INPUTS[0])
    text = text_of(12)
    _, second = unrolled(target, drafter, [text], 2)
    read = features(target.decoder, text)[:-1]
    taught = drafter.head.teacher_forced(target.decoder, read[None], torch.tensor([text]))
    assert (second[0, :-1] - taught[0, 1:]).abs().max() > 1e-3


def test_loss_is_the_weighted_sum_over_steps_of_what_each_row_learns():
    target, drafter = pair_of(INPUTS[0])
    head, decoder = drafter.head, target.decoder
    texts = [text_of(11, i) for i in range(3)]
    token = torch.tensor(texts)
    learned = torch.rand(token.shape, generator=torch.Generator().manual_seed(1)) < 0.6
    batch = TrainingBatch(token, learned)
    settings_of = {"soft": False, "weight": 0.5, "noise": 0.0}
    loss = eagle_loss(head, decoder, batch, unroll=3, fade=0.5, **settings_of)
    true = torch.stack([features(decoder, text[:-1]) for text in texts])
    estimates = unrolled_estimates(head, decoder, true[:, :-1], token[:, :-1], 3)
    total = 0.0
    for s, estimate in enumerate(estimates):
        smooth, entropy, rows = 0.0, 0.0, 0
        for b in range(3):
            for i in range(token.shape[1] - 2 - s):
                if not learned[b, i + 2 + s]:
                    continue
                gap = (estimate[b, i] - true[b, i + 1 + s]).abs()
                smooth += float(torch.where(gap < 1, gap**2 / 2, gap - 0.5).mean())
                logits = decoder.head(estimate[b, i])
                entropy -= float(logits.log_softmax(-1)[token[b, i + 2 + s]])
                rows += 1
        total += 0.5**s * (smooth + 0.5 * entropy) / rows
    assert float(loss) == pytest.approx(total, rel=1e-5)
    once = eagle_loss(head, decoder, batch, **settings_of)
    assert float(once) == pytest.approx(
        float(eagle_loss(head, decoder, batch, unroll=1, **settings_of))
    )
    assert float(once) != pytest.approx(float(loss))


def test_gradients_reach_through_the_steps():
    """Numerical derivatives in float64, along one direction of all weights."""
    target, drafter = pair_of(INPUTS[0])
    head, decoder = drafter.head, target.decoder
    head.requires_grad_(True)
    token = torch.tensor([text_of(10, i) for i in range(2)])
    direction = [torch.randn_like(p) for p in head.parameters()]

    def value():
        return eagle_loss(head, decoder, token, noise=0.0, weight=1.0, unroll=3)

    value().backward()
    slope = sum(float((p.grad * d).sum()) for p, d in zip(head.parameters(), direction))
    step, ends = 1e-4, []
    for sign in (1, -2):
        with torch.no_grad():
            for p, d in zip(head.parameters(), direction):
                p += sign * step * d
        ends.append(float(value().detach()))
    assert slope == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=2e-3)


@pytest.mark.parametrize("unroll", [0, 17])
def test_other_numbers_of_steps_are_refused(unroll):
    target, drafter = pair_of(INPUTS[0])
    with pytest.raises(ValueError, match="expected 1 to 16 draft steps"):
        eagle_loss(drafter.head, target.decoder, torch.tensor([text_of(9)]), unroll=unroll)
    with pytest.raises(ValueError, match="expected at least 5"):
        eagle_loss(drafter.head, target.decoder, torch.tensor([text_of(4)]), unroll=3)
