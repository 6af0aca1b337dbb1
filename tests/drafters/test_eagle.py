"""EAGLE: pairing of tokens and features, its loss, and unrolled steps of training."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_catch_up import _begin, _round
from torch.nn import functional as F
from toy_lm import VOCAB, toy_target

from real.draft import TrainingBatch
from real.draft.losses import read_target
from real.drafters.eagle import INPUTS, EagleDrafter, EagleHead, eagle_loss, unrolled_estimates
from real.model.target import Target

EACH = pytest.mark.parametrize("inputs", INPUTS)


def part_of(decoder, inputs=INPUTS[0], seed=0, **changes):
    torch.manual_seed(seed)
    part = EagleHead(decoder, inputs, **changes).requires_grad_(False)
    for p in part.parameters():
        p.mul_(3 if p.ndim == 2 else 0.9).add_(0 if p.ndim == 2 else 0.05)
    return part


def pair_of(inputs=INPUTS[0], make=EagleDrafter, **changes):
    decoder = toy_target()
    return Target(decoder, capacity=32), make(decoder, part_of(decoder, inputs, **changes))


def text_of(count, seed=0):
    return torch.randint(4, VOCAB, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def features(decoder, text):
    return read_target(decoder, torch.tensor([text]), ["feature"])["feature"][0]


def along(target, drafter, text, start):
    """First proposals' estimates at every prefix of a true text, from `start` tokens on."""
    _begin(drafter, target, text[:start])
    hidden = []
    for m in range(start, len(text)):
        step = drafter.next()
        torch.testing.assert_close(step.logits, target.decoder.head(step.hidden))
        hidden.append(step.hidden)
        drafter.rollback(0)
        _round(target, drafter, text[:m], 0, 0, 0, text[m])
    return torch.stack(hidden)


@pytest.mark.parametrize(
    "changes", [{}, {"layers": 2, "first_norm": True}, {"layers": 2, "bias": False}]
)
@EACH
def test_teacher_forcing_equals_drafting_step_by_step(inputs, changes):
    target, drafter = pair_of(inputs, **changes)
    text, start = text_of(13), 3
    read, token = features(target.decoder, text)[:-1], torch.tensor([text])
    taught = drafter.head.teacher_forced(target.decoder, read[None], token)[0]
    drafted = along(target, drafter, text, start)
    torch.testing.assert_close(drafted, taught[start - 2 : -1], rtol=0, atol=1e-10)
    controls = [
        taught[start - 1 :],
        drafter.head.teacher_forced(target.decoder, read[None], token.roll(1, 1))[
            0, start - 2 : -1
        ],
    ]
    controls.append(
        drafter.head.teacher_forced(target.decoder, read.roll(1, 0)[None], token)[0, start - 2 : -1]
    )
    reads = [True, "token" in inputs, "feature" in inputs]
    for control, matters in zip(controls, reads, strict=True):
        assert ((drafted - control).abs().max() > 1e-3) == matters


def reference(decoder, part, text, steps, forced):
    """Feature estimates of a draft by the definition, every row recomputed without a cache.

    Row i is paired with t_{i+1}, t_i or no token.
    """
    line, feature = list(text), features(decoder, text[:-1])
    estimates = []
    for k in range(steps):
        rows = len(feature)
        token = {INPUTS[0]: line[1:], INPUTS[1]: line[:-1], "token": line[1:], "feature": line[1:]}[
            part.inputs
        ]
        assert len(token) == rows
        rotation = decoder.rotation(torch.arange(rows))
        estimates.append(
            part.estimate(decoder, feature[None], torch.tensor([token]), rotation)[0, -1]
        )
        feature = torch.cat((feature, estimates[-1][None]))
        line.append(forced[k])
    return torch.stack(estimates)


@settings(deadline=None, max_examples=25)
@given(st.sampled_from(INPUTS), st.integers(0, 99), st.integers(2, 9), st.integers(1, 6))
def test_drafting_feeds_estimates_and_drafted_tokens(inputs, seed, prompt, steps):
    target, drafter = pair_of(inputs)
    text, forced = text_of(prompt, seed), text_of(steps, seed + 1)
    _begin(drafter, target, text, lambda logits, slot, *_: forced[slot])
    drafted = [drafter.next() for _ in range(steps)]
    assert [step.token for step in drafted] == forced
    assert [step.parent for step in drafted] == list(range(steps))
    expected = reference(target.decoder, drafter.head, text, steps, forced)
    torch.testing.assert_close(
        torch.stack([step.hidden for step in drafted]), expected, rtol=0, atol=1e-10
    )


@EACH
def test_each_input_variant_reads_its_tokens(inputs):
    """Token d_j first affects step j + 1 (shifted, token), j + 2 (unshifted), none (feature)."""
    text, forced = text_of(6), text_of(5, 1)
    for j in range(4):
        drafts = []
        for token in (forced, forced[:j] + [forced[j] ^ 1] + forced[j + 1 :]):
            target, drafter = pair_of(inputs)
            _begin(drafter, target, text, lambda logits, slot, *_, token=token: token[slot])
            drafts.append(torch.stack([drafter.next().hidden for _ in range(5)]))
        felt = ((drafts[0] - drafts[1]).abs().amax(-1) > 1e-9).tolist()
        first = {INPUTS[0]: j + 1, "token": j + 1, INPUTS[1]: j + 2, "feature": 9}[inputs]
        assert felt == [i >= first for i in range(5)]


class Lazy(EagleDrafter):
    """Keeps the rows of accepted drafts, with the features that it had guessed."""

    def rollback(self, accepted):
        if self.draft:
            self.rows = min(self.rows, len(self.committed) - 1 + min(accepted, len(self.draft) - 1))
        self.draft = []


class FixedHead:
    """Replaces a head: keeps its inputs and returns a given function of the feature."""

    def __init__(self, answer):
        self.answer = answer

    def shared_output(self, target):
        return target.head

    def teacher_forced(self, target, feature, token):
        self.feature, self.token = feature, token
        return self.answer(feature)


def test_loss_of_true_features_is_the_targets_entropy():
    decoder = toy_target()
    token = torch.tensor([text_of(11, i) for i in range(3)])
    true = torch.stack([features(decoder, t[:-1].tolist()) for t in token])
    p = decoder.head(true[:, 1:]).softmax(-1)
    entropy = -(p * p.log()).sum(-1).mean()
    head = FixedHead(lambda feature: true[:, 1:])
    assert float(eagle_loss(head, decoder, TrainingBatch(token))) == pytest.approx(
        0.1 * float(entropy), rel=1e-5
    )
    assert float(eagle_loss(head, decoder, TrainingBatch(token), weight=2.0)) == pytest.approx(
        2 * float(entropy), rel=1e-5
    )
    text = F.nll_loss(p.log().flatten(0, 1), token[:, 2:].flatten())
    assert float(eagle_loss(head, decoder, TrainingBatch(token), soft=False)) == pytest.approx(
        0.1 * float(text), rel=1e-5
    )
    for late in (
        FixedHead(lambda feature: true[:, :-1]),
        FixedHead(lambda feature: true[:, 1:].roll(1, 1)),
    ):
        assert float(eagle_loss(late, decoder, TrainingBatch(token))) > 0.1 * float(entropy) + 0.05
    half = FixedHead(lambda feature: true[:, 1:] + 0.5)  # SmoothL1 is x^2 / 2 up to 1
    assert float(eagle_loss(half, decoder, TrainingBatch(token), weight=0.0)) == pytest.approx(
        0.125, rel=1e-5
    )
    both = float(eagle_loss(half, decoder, TrainingBatch(token), weight=1.0))
    tokens = float(eagle_loss(half, decoder, TrainingBatch(token), weight=1.0, regression=0.0))
    assert tokens == pytest.approx(both - 0.125, rel=1e-5)
    assert tokens > float(entropy)


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 99), st.sampled_from([0.0, 0.1, 0.5]))
def test_noise_is_uniform_and_on_inputs_alone(seed, noise):
    decoder = toy_target()
    token = torch.tensor([text_of(40, seed + i) for i in range(4)])
    true = torch.stack([features(decoder, t[:-1].tolist()) for t in token])
    drawn = []
    for _ in range(2):
        head = FixedHead(lambda feature: true[:, 1:])
        drawn.append(
            eagle_loss(
                head,
                decoder,
                TrainingBatch(token),
                True,
                torch.Generator().manual_seed(seed),
                noise=noise,
            )
        )
        shift = head.feature - true[:, :-1]
        drawn.append(shift)
        assert torch.equal(head.token, token[:, :-1])
    assert float(drawn[0]) == float(drawn[2])
    assert torch.equal(drawn[1], drawn[3])
    assert shift.abs().max() <= noise + 1e-12
    if noise:
        assert abs(float(shift.mean())) < 5 * noise / (3 * shift.numel()) ** 0.5
        assert 0.95 < float(shift.std()) * 3**0.5 / noise < 1.05
    clean = FixedHead(lambda feature: true[:, 1:])
    # the goal has none
    assert float(eagle_loss(clean, decoder, TrainingBatch(token), noise=0.0)) == float(drawn[0])


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
        return eagle_loss(head, decoder, TrainingBatch(token), noise=0.0, weight=1.0, unroll=3)

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
        eagle_loss(
            drafter.head, target.decoder, TrainingBatch(torch.tensor([text_of(9)])), unroll=unroll
        )
    with pytest.raises(ValueError, match="expected at least 5"):
        eagle_loss(
            drafter.head, target.decoder, TrainingBatch(torch.tensor([text_of(4)])), unroll=3
        )


def test_control_a_later_step_reads_estimates():
    """True features in place of estimates give other second steps."""
    target, drafter = pair_of(INPUTS[0])
    text = text_of(12)
    _, second = unrolled(target, drafter, [text], 2)
    read = features(target.decoder, text)[:-1]
    taught = drafter.head.teacher_forced(target.decoder, read[None], torch.tensor([text]))
    assert (second[0, :-1] - taught[0, 1:]).abs().max() > 1e-3
