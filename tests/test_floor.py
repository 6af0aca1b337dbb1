"""The tests of sampled text: their figures by definition, the faults they find, and both error rates."""

import math

import numpy as np
import pytest
import torch
from emitter import PROMPT, SAMPLED, decoded, drawn, law
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_lm import policy_from, stepper, toy_cost, toy_pair, toy_target

from real.audit.drafter_bias import BIAS_TILTS, drafter_bias, drafter_distributions
from real.audit.auditor import audit
from real.audit.report import figures
from real.audit.sampling_tests import floor
from real.audit.teacher_forcing import TEMPERATURE_TILTS, score_gaps, kept, odds, spacing
from real.decode.loop import decode
from real.sampling import Rule
from simspec import rng

HELD = settings(deadline=None, max_examples=60, derandomize=True)


def blended(clip):
    """What single-draft rejection emits if the residual is handled so."""

    def made(p, q):
        p, q = SAMPLED.probs(p), SAMPLED.probs(q)
        both = torch.minimum(p, q)
        rest = clip(p, q)
        return both + (1 - both.sum(-1, keepdim=True)) * rest / rest.sum(-1, keepdim=True)

    return made


FAULTS = {
    "temperature": (law(Rule("rejection", 0.9)), "temperature"),
    "bonus from q": (blended(lambda p, q: q), "drafter"),
    "residual not clipped": (blended(lambda p, q: (p - q).abs()), "drafter"),
    "accepts whatever is drafted": (lambda p, q: SAMPLED.probs(q), "drafter"),
}


def test_draws_from_the_target_pass_and_so_does_the_right_residual():
    target, drafter = toy_pair("model")
    for made in (law(SAMPLED), blended(lambda p, q: (p - q).clamp(min=0))):
        found = audit(target, drawn(made), drafter=drafter)
        assert found.clean and found.floor.tokens == 4000, found.alarms
        assert found.floor.detectable_temperature < 0.13
        assert found.floor.detectable_variation < 0.08
        assert found.floor.detectable_bias < 0.2


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_sampling_is_found(fault):
    target, drafter = toy_pair("model")
    made, sign = FAULTS[fault]
    found = audit(target, drawn(made), drafter=drafter)
    assert not found.clean
    assert sign in found.floor.alarms
    if fault == "temperature":
        assert found.floor.temperature_ratio == pytest.approx(0.9 / 0.8, rel=0.05)


@pytest.mark.parametrize(
    "rule", [Rule("rejection", 0.8, 0, 0, 0.9), Rule("rejection", 0.8, 0, 3)], ids=str
)
def test_top_k_or_top_p_left_out_shows_tokens_of_probability_0(rule):
    target = toy_pair("model")[0]
    assert audit(target, drawn(law(rule), 30, rule=rule)).clean
    found = audit(target, drawn(law(SAMPLED), 30, rule=rule))
    assert not found.clean
    assert "have probability 0" in found.alarms[0]
    assert not any(d.excused for d in found.impossible)


def test_top_p_that_the_header_does_not_name_is_found():
    found = audit(toy_pair("model")[0], drawn(law(Rule("rejection", 0.8, 0, 0, 0.9))))
    assert not found.clean
    assert not found.impossible
    assert "temperature" in found.floor.alarms


# --- figures against their definitions


def logits_like(data, rows=3, vocab=6):
    row = st.lists(st.floats(-4, 4).map(lambda x: round(x, 1)), min_size=vocab, max_size=vocab)
    return torch.tensor(data.draw(st.lists(row, min_size=rows, max_size=rows)), dtype=torch.float64)


CUTS = st.tuples(st.integers(0, 6), st.sampled_from([1.0, 0.95, 0.7, 0.3, 0.05]))


@HELD
@given(data=st.data(), cuts=CUTS, temperature=st.sampled_from([0.5, 1.0, 1.7]))
def test_gaps_by_definition(data, cuts, temperature):
    rule, logits = Rule("coupled", temperature, 7, *cuts), logits_like(data)
    token = tuple(data.draw(st.lists(st.integers(0, 5), min_size=3, max_size=3)))
    found = score_gaps(rule, logits, token, 4, 10, torch.float64, 1e-9)
    for i, y in enumerate(token):
        p = rule.probs(logits)[i].numpy()
        with np.errstate(divide="ignore"):
            score = np.log(p) + rng.gumbel(7, 4, 10 + i, 6)
        assert found.best[i] == score.argmax()
        assert found.gap[i] == (
            pytest.approx(score.max() - score[y], abs=1e-9) if p[y] else math.inf
        )
        assert found.near[i] <= found.gap[i]
        if math.isfinite(found.near[i]):
            unit = float(spacing(logits[i, [y, int(found.best[i])]].abs().max(), torch.float64))
            assert found.ulps[i] == pytest.approx(found.near[i] * temperature / unit)


@HELD
@given(data=st.data(), cuts=CUTS)
def test_odds_by_definition(data, cuts):
    rule, logits = Rule("rejection", 0.8, 7, *cuts), logits_like(data)
    token = tuple(data.draw(st.lists(st.integers(0, 5), min_size=3, max_size=3)))
    found = odds(rule, logits, token, 4, 10, 1e-9)
    for i, y in enumerate(token):
        p = rule.probs(logits)[i].numpy()
        some = p[p > 0]
        assert found.entropy[i] == pytest.approx(-(some * np.log(some)).sum(), abs=1e-12)
        for power, moment in ((2, found.variance), (3, found.third_moment)):
            assert moment[i] == pytest.approx(
                (some * (-np.log(some) - found.entropy[i]) ** power).sum(), abs=1e-9
            )
        if not p[y]:
            assert found.surprisal[i] == math.inf
            continue
        ahead = sum(p[v] for v in range(6) if p[v] > p[y] or (p[v] == p[y] and v < y))
        assert found.pit[i] == pytest.approx(
            ahead + rng.uniform(7, 4, 10 + i, 0, 1 << 16) * p[y], abs=1e-12
        )
        for h, tilt in zip(TEMPERATURE_TILTS, found.tilt[i]):
            assert tilt == pytest.approx(
                math.log(p[y] ** (1 - h) / (some ** (1 - h)).sum() / p[y]), abs=1e-9
            )


@HELD
@given(data=st.data(), cuts=CUTS, slack=st.sampled_from([1e-9, 0.05, 0.5]))
def test_what_top_k_and_top_p_may_keep(data, cuts, slack):
    rule, logits = Rule("rejection", 0.8, 0, *cuts), logits_like(data)
    stays, may, must = rule.probs(logits) > 0, kept(rule, logits, slack), kept(rule, logits, -slack)
    assert (may | ~stays).all()
    assert (stays | ~must).all()
    for _ in range(5):  # whatever the rounding, between the two
        noise = (
            torch.from_numpy(
                np.random.default_rng(data.draw(st.integers(0, 99))).uniform(-1, 1, logits.shape)
            )
            * slack
            * 0.8
            / 4
        )
        moved = rule.probs(logits + noise) > 0
        assert (may | ~moved).all()
        assert (moved | ~must).all()


def test_a_token_at_the_edge_of_top_p_is_excused_in_the_dtype_that_may_have_kept_it():
    rule = Rule("rejection", 1.0, 0, 0, 0.75)
    logits = torch.tensor([[0.5, 0.25, 0.25 - 1e-6, 1e-6]], dtype=torch.float64).log() + 1
    p = rule.probs(logits)
    assert (p > 0).tolist() == [[True, True, False, False]] or (p > 0).tolist() == [
        [True, True, True, False]
    ]
    logits[0, 0] += 1e-5  # now 0.75 is reached by two
    assert odds(rule, logits, (2,), 0, 0, 1e-4).at_cutoff.all()
    assert not odds(rule, logits, (2,), 0, 0, 1e-9).at_cutoff.any()
    assert not odds(rule, logits, (3,), 0, 0, 1e-4).at_cutoff.any()
    coupled = Rule("coupled", 1.0, 1, 0, 0.75)
    found = score_gaps(coupled, logits, (2,), 0, 0, torch.float32, 1e-4)
    assert found.gap[0] in (0, math.inf)
    assert math.isfinite(found.near[0])


@HELD
@given(data=st.data())
def test_leaning_laws_are_laws(data):
    p, q = (Rule("rejection", 1.0, 0, *data.draw(CUTS)).probs(logits_like(data)) for _ in range(2))
    columns = [drafter_bias(p, q, (v, v, v)) for v in range(6)]
    for i in range(3):
        score = np.array([c.score[i] for c in columns])
        own, theirs = p[i].numpy(), q[i].numpy()
        assert own @ score == pytest.approx(0, abs=1e-12)
        assert own @ score**2 == pytest.approx(columns[0].variance[i])
        assert theirs @ score == pytest.approx(columns[0].pull[i])
        assert columns[0].pull[i] > -1e-12
        assert theirs @ score**2 == pytest.approx(columns[0].square[i])
        assert own @ np.exp(np.array([c.step[i] for c in columns])) == pytest.approx(
            np.ones(len(BIAS_TILTS))
        )


@pytest.mark.parametrize(
    "drafter", ["model", "early_exit", "eagle", "medusa", "glide", "self_skip"]
)
def test_what_a_drafter_offers_along_a_text_is_what_its_first_step_shows(drafter):
    target, made = toy_pair(drafter)
    (text,) = decoded(SAMPLED, 1, 6).texts
    q = drafter_distributions(target, made, SAMPLED, text)
    for n in range(len(text.token)):
        shown = []
        decode(
            target, made, stepper(policy_from("fixed:1", None, None), 1, 0, toy_cost()), SAMPLED, [*text.prompt, *text.token[:n]], 2,
            listen=lambda r: None, draws=Peek(shown),
        )  # fmt: skip
        assert torch.allclose(q[n], shown[0], atol=1e-9), n
    assert drafter_distributions(*toy_pair("prompt_lookup"), SAMPLED, text) is None


class Peek:
    """Chance that keeps what the drafter draws from first."""

    def __init__(self, shown):
        self.shown = shown

    def sample(self, p, round, slot, role):
        self.shown.append(p)
        return int(p.argmax())

    def accept(self, odds, round, slot):
        return True


# --- error rates


def fixed_law(tokens=200):
    """Logits of the toy target and its drafter at some texts' positions."""
    text = torch.tensor(
        [[*t.prompt, *t.token] for t in drawn(law(SAMPLED), tokens // 40 + 1).texts]
    )
    return (
        m(text)[:, PROMPT - 1 : -1].flatten(0, 1)[:tokens]
        for m in (toy_target(), toy_pair("model")[1].lm)
    )


def alarm_share(draws, risk, repeats=300, tokens=200):
    """Share of samples of `draws(p, q)` that raise an alarm at this risk."""
    p, q = fixed_law(tokens)
    own, theirs, generator = SAMPLED.probs(p), SAMPLED.probs(q), torch.Generator().manual_seed(3)
    count = 0
    for s in range(repeats):
        token = tuple(torch.multinomial(draws(own, theirs), 1, generator=generator)[:, 0].tolist())
        count += bool(
            floor(odds(SAMPLED, p, token, s, 0, 1e-9), drafter_bias(own, theirs, token), risk).alarms
        )
    return count / repeats


def test_false_alarms_are_as_rare_as_stated():
    share = alarm_share(lambda p, q: p, 0.2)
    assert (
        0 < share < 0.2 + 4 * math.sqrt(0.2 * 0.8 / 300)
    )  # not all tests are tight; chi-square is


def test_control_a_share_of_draws_from_q_is_found_as_often_as_stated():
    p, q = fixed_law()
    token = tuple(SAMPLED.probs(p).argmax(-1).tolist())
    told = floor(
        odds(SAMPLED, p, token, 0, 0, 1e-9), drafter_bias(SAMPLED.probs(p), SAMPLED.probs(q), token), 0.05
    )
    assert 0 < told.detectable_bias < 1
    found = alarm_share(lambda p, q: p + told.detectable_bias * (q - p), 0.05)
    assert found > 0.99 - 4 * math.sqrt(0.01 * 0.99 / 300)
    assert alarm_share(lambda p, q: p + told.detectable_bias / 10 * (q - p), 0.05) < 0.5


@pytest.mark.parametrize("side", [1, -1])
def test_control_a_temperature_error_is_found_as_often_as_stated(side):
    p, q = fixed_law(2000)
    told = floor(odds(SAMPLED, p, tuple(p.argmax(-1).tolist()), 0, 0, 1e-9), None, 0.01)
    power = 1 - side * told.detectable_temperature
    found = alarm_share(lambda p, q: p**power / (p**power).sum(-1, keepdim=True), 0.01, 100, 2000)
    assert 0 < told.detectable_temperature < 0.3
    assert found > 0.99 - 4 * math.sqrt(0.01 * 0.99 / 100)


def test_too_few_tokens_say_so():
    run = decoded(SAMPLED, 1, 3)
    found = audit(toy_pair("model")[0], run)
    assert found.clean
    assert found.floor.bins == 1
    assert math.isinf(found.floor.detectable_temperature)
    assert math.isinf(found.floor.detectable_variation)
    assert "too few tokens" in dict(figures(found))["temperature"]
    with pytest.raises(ValueError, match="risk is 1.5"):
        audit(toy_pair("model")[0], run, risk=1.5)
