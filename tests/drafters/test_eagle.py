"""EAGLE: pairing of tokens and features, reuse of true features, and the training loss."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_checkpoint import refused
from torch.nn import functional as F
from toy_lm import VOCAB, toy_target

from real.drafters.eagle import INPUTS, EagleDrafter, EagleHead, eagle_loss
from real.model.draft_head import save_draft_head
from real.model.passes import chain
from real.model.target import Target

MADE_FOR = {"weights": "a" * 64, "config": "c" * 64, "tokenizer": "t" * 64}
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
    position = torch.arange(len(text))
    return decoder.norm(
        decoder.run(
            decoder.embed(torch.tensor([text])),
            range(len(decoder.layers)),
            decoder.rotation(position),
        )
    )[0]


def greedy(logits, slot, *_):
    return int(logits.argmax())


def begin(target, drafter, prompt, pick=greedy):
    drafter.begin(target, prompt, target.prefill(prompt[:-1]), pick)


def play(target, drafter, text, computed, accepted, miss):
    """One round in which so many drafted tokens are accepted; returns the tokens committed."""
    steps = [drafter.next() for _ in range(computed)]
    token = [step.token for step in steps if step]
    accepted = min(accepted, len(token))
    output = target.verify([text[-1], *token], chain(len(token) + 1), drafter.resume())
    path = list(range(accepted + 1))
    target.commit(path)
    drafter.rollback(accepted)
    drafter.catch_up([*token[:accepted], miss], output, path)
    return [*token[:accepted], miss]


def along(target, drafter, text, start):
    """First proposals' estimates at every prefix of a true text, from `start` tokens on."""
    begin(target, drafter, text[:start])
    hidden = []
    for m in range(start, len(text)):
        step = drafter.next()
        torch.testing.assert_close(step.logits, target.decoder.head(step.hidden))
        hidden.append(step.hidden)
        drafter.rollback(0)
        play(target, drafter, text[:m], 0, 0, text[m])
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
    begin(target, drafter, text, lambda logits, slot, *_: forced[slot])
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
            begin(target, drafter, text, lambda logits, slot, *_, token=token: token[slot])
            drafts.append(torch.stack([drafter.next().hidden for _ in range(5)]))
        felt = ((drafts[0] - drafts[1]).abs().amax(-1) > 1e-9).tolist()
        first = {INPUTS[0]: j + 1, "token": j + 1, INPUTS[1]: j + 2, "feature": 9}[inputs]
        assert felt == [i >= first for i in range(5)]


ROUND = st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(4, 20))


def differs(inputs, seed, prompt, rounds, make=EagleDrafter):
    """How far a drafter's next chain and cache are, after rounds, from those of a fresh one."""
    (target, drafter), (other, fresh) = pair_of(inputs, make), pair_of(inputs)
    text = text_of(prompt, seed)
    begin(target, drafter, text)
    for computed, accepted, miss in rounds:
        text += play(target, drafter, text, computed, accepted, miss)
    begin(other, fresh, text)
    far = []
    for a, b in [(drafter.next(), fresh.next()) for _ in range(3)]:
        far.append((a.logits - b.logits).abs().max())
    rows = len(text) - 1
    for x, y in ((drafter.cache.key, fresh.cache.key), (drafter.cache.value, fresh.cache.value)):
        far.append((x[:, :, :, :rows] - y[:, :, :, :rows]).abs().max())
    return float(torch.stack(far).max())


@settings(deadline=None, max_examples=50)
@given(
    st.sampled_from(INPUTS),
    st.integers(0, 99),
    st.integers(1, 8),
    st.lists(ROUND, min_size=1, max_size=8),
)
def test_cache_and_chain_after_rounds_equal_fresh_ones(inputs, seed, prompt, rounds):
    assert differs(inputs, seed, prompt, rounds) < 1e-12


class Lazy(EagleDrafter):
    """Keeps the rows of accepted drafts, with the features that it had guessed."""

    def rollback(self, accepted):
        if self.draft:
            self.rows = min(self.rows, len(self.committed) - 1 + min(accepted, len(self.draft) - 1))
        self.draft = []


@EACH
def test_control_accepted_rows_need_true_features(inputs):
    far = differs(inputs, 3, 4, [(4, 3, 9), (0, 0, 7)], Lazy)
    assert (
        far < 1e-12 if inputs == "token" else far > 1e-3
    )  # what reads no feature has nothing to correct


@EACH
def test_abandoned_drafts_can_be_repeated(inputs):
    """The recorder's way: a chain, the text's own tokens in its place, then no draft at all."""
    target, drafter = pair_of(inputs)
    text, forced = text_of(5), None
    begin(
        target,
        drafter,
        text[:4],
        lambda logits, slot, *_: greedy(logits, slot) if forced is None else forced[slot],
    )
    first = [drafter.next() for _ in range(4)]
    drafter.rollback(0)
    forced = text_of(4, 7)
    assert [drafter.next().token for _ in range(4)] == forced
    drafter.rollback(0)
    forced = None
    again = [drafter.next() for _ in range(4)]
    assert [s.token for s in again] == [s.token for s in first]
    torch.testing.assert_close(
        torch.stack([s.logits for s in again]),
        torch.stack([s.logits for s in first]),
        rtol=0,
        atol=1e-12,
    )


def test_one_token_prompts_have_no_draft():
    target, drafter = pair_of()
    begin(target, drafter, [5])
    assert drafter.next() is None
    assert drafter.resume() is None
    play(target, drafter, [5], 3, 0, 8)
    assert drafter.next() is not None


@EACH
@pytest.mark.parametrize("accepted", [0, 2])
def test_only_token_inputs_are_prefix_only(inputs, accepted):
    target, drafter = pair_of(inputs)
    text = text_of(5)
    begin(target, drafter, text)
    steps = [drafter.next() for _ in range(6)]
    drafter.rollback(0)
    play(target, drafter, text, accepted, accepted, steps[accepted].token)
    gap = max(float((a.logits - drafter.next().logits).abs().max()) for a in steps[accepted + 1 :])
    assert drafter.prefix_only == (inputs == "token") == (gap < 1e-12)


class FixedHead:
    """Replaces a head: keeps its inputs and returns a given function of the feature."""

    def __init__(self, answer):
        self.answer = answer

    def output(self, target):
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
    assert float(eagle_loss(head, decoder, token)) == pytest.approx(0.1 * float(entropy), rel=1e-5)
    assert float(eagle_loss(head, decoder, token, weight=2.0)) == pytest.approx(
        2 * float(entropy), rel=1e-5
    )
    text = F.nll_loss(p.log().flatten(0, 1), token[:, 2:].flatten())
    assert float(eagle_loss(head, decoder, token, soft=False)) == pytest.approx(
        0.1 * float(text), rel=1e-5
    )
    for late in (
        FixedHead(lambda feature: true[:, :-1]),
        FixedHead(lambda feature: true[:, 1:].roll(1, 1)),
    ):
        assert float(eagle_loss(late, decoder, token)) > 0.1 * float(entropy) + 0.05
    half = FixedHead(lambda feature: true[:, 1:] + 0.5)  # SmoothL1 is x^2 / 2 up to 1
    assert float(eagle_loss(half, decoder, token, weight=0.0)) == pytest.approx(0.125, rel=1e-5)
    both = float(eagle_loss(half, decoder, token, weight=1.0))
    tokens = float(eagle_loss(half, decoder, token, weight=1.0, regression=0.0))
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
            eagle_loss(head, decoder, token, True, torch.Generator().manual_seed(seed), noise=noise)
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
    assert float(eagle_loss(clean, decoder, token, noise=0.0)) == float(
        drawn[0]
    )  # the goal has none


@EACH
@pytest.mark.parametrize("soft", [True, False])
def test_training_lowers_the_loss_and_keeps_the_target(inputs, soft):
    decoder = toy_target()
    token = torch.tensor([text_of(16, i) for i in range(8)])
    before = {k: v.clone() for k, v in decoder.state_dict().items()}
    torch.manual_seed(1)
    part = EagleHead(decoder, inputs)
    optimiser = torch.optim.AdamW(part.parameters(), 5e-3)
    generator, losses = torch.Generator().manual_seed(0), []
    for _ in range(40):
        loss = eagle_loss(part, decoder, token, soft, generator)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.8 * losses[0]
    assert all(torch.equal(v, before[k]) for k, v in decoder.state_dict().items())


def test_short_sequences_are_refused():
    decoder = toy_target()
    with pytest.raises(ValueError, match="2 tokens; expected at least 3"):
        eagle_loss(part_of(decoder), decoder, torch.tensor([[4, 5]]))


@pytest.mark.parametrize(
    "changes", [{}, {"layers": 2, "bias": False, "first_norm": True, "norm_eps": 1e-3}]
)
@EACH
def test_saved_head_loads(tmp_path, inputs, changes):
    target, drafter = pair_of(inputs, **changes)
    part = drafter.head
    assert any("layers.0.attention_norm" in k for k in part.state_dict()) == (
        "first_norm" in changes
    )
    assert EagleHead(target.decoder, **part.settings).settings == part.settings
    save_draft_head(part, tmp_path, "eagle", MADE_FOR, torch.float64)
    loaded = EagleDrafter.load(tmp_path, target.decoder, MADE_FOR).head
    assert loaded.settings == part.settings
    assert not any(p.requires_grad for p in loaded.parameters())
    text = torch.tensor([text_of(9)])
    read = features(target.decoder, text[0].tolist())[None, :-1]
    assert torch.equal(
        loaded.teacher_forced(target.decoder, read, text),
        part.teacher_forced(target.decoder, read, text),
    )


def test_head_of_another_target_is_refused(tmp_path):
    target, drafter = pair_of()
    save_draft_head(drafter.head, tmp_path, "eagle", MADE_FOR)
    for what in MADE_FOR:
        refused(
            f"made for a target with {what}",
            EagleDrafter.load,
            tmp_path,
            target.decoder,
            MADE_FOR | {what: "b" * 64},
        )
    refused(
        "holds no drafter 'eagle'",
        EagleDrafter.load,
        tmp_path / "nowhere",
        target.decoder,
        MADE_FOR,
    )


@pytest.mark.parametrize(
    "wrong",
    [{"inputs": "tokens"}, {"layers": 0}, {"layers": 1.5}, {"norm_eps": -1.0}, {"norm_eps": "x"}],
)
def test_invalid_settings_are_refused(wrong):
    with pytest.raises(ValueError, match="expected"):
        EagleHead(toy_target(), **wrong)
