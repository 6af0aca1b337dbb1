"""Tests of sampled tokens: statistics by definition, detected faults, and both error rates."""

import math
from functools import lru_cache

import numpy as np
import pytest
import torch
from emitter import PROMPT, SAMPLED, decoded, distribution, drawn
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_lm import chain_plan, policy_from, toy_cost, toy_pair, toy_target

from real.audit.auditor import audit
from real.audit.bias import BIAS_TILTS, drafter_bias, drafter_distributions
from real.audit.report import report_rows
from real.audit.rounding import score_gaps, spacing, truncation_mask
from real.audit.sampling_tests import TEMPERATURE_TILTS, sampling_statistics, sampling_tests
from real.decode.loop import decode
from real.sampling import Rule
from simspec.numerics import rng

HELD = settings(deadline=None, max_examples=60, derandomize=True)


def blended(clip):
    """What single-draft rejection emits if the residual is handled so."""

    def draw(p, q):
        p, q = SAMPLED.probs(p), SAMPLED.probs(q)
        both = torch.minimum(p, q)
        rest = clip(p, q)
        return both + (1 - both.sum(-1, keepdim=True)) * rest / rest.sum(-1, keepdim=True)

    return draw


FAULTS = {
    "temperature": (distribution(Rule("rejection", 0.9)), "temperature"),
    "bonus from q": (blended(lambda p, q: q), "drafter bias"),
    "residual not clipped": (blended(lambda p, q: (p - q).abs()), "drafter bias"),
    "accepts every draft": (lambda p, q: SAMPLED.probs(q), "drafter bias"),
}


def test_correct_sampling_passes():
    target, drafter = toy_pair("model")
    for sampler in (distribution(SAMPLED), blended(lambda p, q: (p - q).clamp(min=0))):
        result = audit(target, drawn(sampler), drafter=drafter)
        assert result.clean, result.alarms
        assert result.sampling.tokens == 4000
        assert result.sampling.detectable_temperature < 0.13
        assert result.sampling.detectable_variation < 0.08
        assert result.sampling.detectable_bias < 0.2


@pytest.mark.parametrize("fault", FAULTS)
def test_sampling_fault_is_detected(fault):
    target, drafter = toy_pair("model")
    sampler, sign = FAULTS[fault]
    result = audit(target, drawn(sampler), drafter=drafter)
    assert not result.clean
    assert sign in result.sampling.alarms
    if fault == "temperature":
        assert result.sampling.temperature_ratio == pytest.approx(0.9 / 0.8, rel=0.05)


@pytest.mark.parametrize(
    "rule", [Rule("rejection", 0.8, 0, 0, 0.9), Rule("rejection", 0.8, 0, 3)], ids=str
)
def test_missing_truncation_gives_tokens_of_probability_0(rule):
    target = toy_pair("model")[0]
    assert audit(target, drawn(distribution(rule), 30, rule=rule)).clean
    result = audit(target, drawn(distribution(SAMPLED), 30, rule=rule))
    assert not result.clean
    assert "have probability 0" in result.alarms[0]
    assert not any(d.excused for d in result.impossible)


def test_undeclared_top_p_is_detected():
    result = audit(toy_pair("model")[0], drawn(distribution(Rule("rejection", 0.8, 0, 0, 0.9))))
    assert not result.clean
    assert not result.impossible
    assert "temperature" in result.sampling.alarms


# --- statistics against their definitions


def logits_like(data, rows=3, vocab=6):
    row = st.lists(st.floats(-4, 4).map(lambda x: round(x, 1)), min_size=vocab, max_size=vocab)
    return torch.tensor(data.draw(st.lists(row, min_size=rows, max_size=rows)), dtype=torch.float64)


CUTS = st.tuples(st.integers(0, 6), st.sampled_from([1.0, 0.95, 0.7, 0.3, 0.05]))


@HELD
@given(data=st.data(), cuts=CUTS, temperature=st.sampled_from([0.5, 1.0, 1.7]))
def test_score_gaps_by_definition(data, cuts, temperature):
    rule, logits = Rule("coupled", temperature, 7, *cuts), logits_like(data)
    token = tuple(data.draw(st.lists(st.integers(0, 5), min_size=3, max_size=3)))
    result = score_gaps(rule, logits, token, 4, 10, torch.float64, 1e-9)
    for i, y in enumerate(token):
        p = rule.probs(logits)[i].numpy()
        with np.errstate(divide="ignore"):
            score = np.log(p) + rng.gumbel(7, 4, 10 + i, 6)
        assert result.best[i] == score.argmax()
        assert result.gap[i] == (
            pytest.approx(score.max() - score[y], abs=1e-9) if p[y] else math.inf
        )
        assert result.least_gap[i] <= result.gap[i]
        if math.isfinite(result.least_gap[i]):
            unit = float(spacing(logits[i, [y, int(result.best[i])]].abs().max(), torch.float64))
            assert result.ulps[i] == pytest.approx(result.least_gap[i] * temperature / unit)


@HELD
@given(data=st.data(), cuts=CUTS)
def test_sampling_statistics_by_definition(data, cuts):
    rule, logits = Rule("rejection", 0.8, 7, *cuts), logits_like(data)
    token = tuple(data.draw(st.lists(st.integers(0, 5), min_size=3, max_size=3)))
    result = sampling_statistics(rule, logits, token, 4, 10, 1e-9)
    for i, y in enumerate(token):
        p = rule.probs(logits)[i].numpy()
        some = p[p > 0]
        assert result.entropy[i] == pytest.approx(-(some * np.log(some)).sum(), abs=1e-12)
        for power, moment in ((2, result.variance), (3, result.third_moment)):
            assert moment[i] == pytest.approx(
                (some * (-np.log(some) - result.entropy[i]) ** power).sum(), abs=1e-9
            )
        if not p[y]:
            assert result.surprisal[i] == math.inf
            continue
        ahead = sum(p[v] for v in range(6) if p[v] > p[y] or (p[v] == p[y] and v < y))
        assert result.pit[i] == pytest.approx(
            ahead + rng.uniform(7, 4, 10 + i, 0, 1 << 16) * p[y], abs=1e-12
        )
        for h, tilt in zip(TEMPERATURE_TILTS, result.tilt[i]):
            assert tilt == pytest.approx(
                math.log(p[y] ** (1 - h) / (some ** (1 - h)).sum() / p[y]), abs=1e-9
            )


@HELD
@given(data=st.data(), cuts=CUTS, slack=st.sampled_from([1e-9, 0.05, 0.5]))
def test_truncation_mask_bounds_every_rounding(data, cuts, slack):
    rule, logits = Rule("rejection", 0.8, 0, *cuts), logits_like(data)
    stays, may, must = (
        rule.probs(logits) > 0,
        truncation_mask(rule, logits, slack),
        truncation_mask(rule, logits, -slack),
    )
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


def test_token_at_the_edge_of_top_p_is_excused_by_coarse_rounding():
    rule = Rule("rejection", 1.0, 0, 0, 0.75)
    logits = torch.tensor([[0.5, 0.25, 0.25 - 1e-6, 1e-6]], dtype=torch.float64).log() + 1
    p = rule.probs(logits)
    assert (p > 0).tolist() == [[True, True, False, False]] or (p > 0).tolist() == [
        [True, True, True, False]
    ]
    logits[0, 0] += 1e-5  # now 0.75 is reached by two
    assert sampling_statistics(rule, logits, (2,), 0, 0, 1e-4).at_cutoff.all()
    assert not sampling_statistics(rule, logits, (2,), 0, 0, 1e-9).at_cutoff.any()
    assert not sampling_statistics(rule, logits, (3,), 0, 0, 1e-4).at_cutoff.any()
    coupled = Rule("coupled", 1.0, 1, 0, 0.75)
    result = score_gaps(coupled, logits, (2,), 0, 0, torch.float32, 1e-4)
    assert result.gap[0] in (0, math.inf)
    assert math.isfinite(result.least_gap[0])


@HELD
@given(data=st.data())
def test_bias_alternatives_are_distributions(data):
    p, q = (Rule("rejection", 1.0, 0, *data.draw(CUTS)).probs(logits_like(data)) for _ in range(2))
    columns = [drafter_bias(p, q, (v, v, v)) for v in range(6)]
    for i in range(3):
        score = np.array([c.score[i] for c in columns])
        target_p, theirs = p[i].numpy(), q[i].numpy()
        assert target_p @ score == pytest.approx(0, abs=1e-12)
        assert target_p @ score**2 == pytest.approx(columns[0].variance[i])
        assert theirs @ score == pytest.approx(columns[0].drafter_mean[i])
        assert columns[0].drafter_mean[i] > -1e-12
        assert theirs @ score**2 == pytest.approx(columns[0].drafter_square[i])
        assert target_p @ np.exp(np.array([c.tilt[i] for c in columns])) == pytest.approx(
            np.ones(len(BIAS_TILTS))
        )


@pytest.mark.parametrize(
    "drafter", ["model", "early_exit", "eagle", "medusa", "glide", "self_skip"]
)
def test_drafter_distributions_are_those_of_first_steps(drafter):
    target, toy_drafter = toy_pair(drafter)
    (text,) = decoded(SAMPLED, 1, 6).sequences
    q = drafter_distributions(target, toy_drafter, SAMPLED, text)
    for n in range(len(text.token)):
        shown = []
        one_token = chain_plan(policy_from("fixed:1", None, None), 1, 0, toy_cost())
        prompt = [*text.prompt, *text.token[:n]]
        decode(target, toy_drafter, one_token, SAMPLED, prompt, 2, draws=Peek(shown))
        assert torch.allclose(q[n], shown[0], atol=1e-9), n
    assert drafter_distributions(*toy_pair("prompt_lookup"), SAMPLED, text) is None


class Peek:
    """Draws that keep the first distribution of the drafter."""

    def __init__(self, shown):
        self.shown = shown

    def sample(self, p, round, slot, role):
        self.shown.append(p)
        return int(p.argmax())

    def accept(self, probability, round, slot):
        return True


# --- error rates


@lru_cache
def fixed_logits(tokens=200):
    """Logits of the toy target and its drafter at some texts' positions."""
    text = torch.tensor(
        [[*t.prompt, *t.token] for t in drawn(distribution(SAMPLED), tokens // 40 + 1).sequences]
    )
    return tuple(
        m(text)[:, PROMPT - 1 : -1].flatten(0, 1)[:tokens]
        for m in (toy_target(), toy_pair("model")[1].lm)
    )


def alarm_share(draws, risk, repeats=300, tokens=200):
    """Share of samples of `draws(p, q)` that raise an alarm at this risk."""
    p, q = fixed_logits(tokens)
    target_p, theirs, generator = (
        SAMPLED.probs(p),
        SAMPLED.probs(q),
        torch.Generator().manual_seed(3),
    )
    count = 0
    for s in range(repeats):
        token = tuple(
            torch.multinomial(draws(target_p, theirs), 1, generator=generator)[:, 0].tolist()
        )
        count += bool(
            sampling_tests(
                sampling_statistics(SAMPLED, p, token, s, 0, 1e-9),
                drafter_bias(target_p, theirs, token),
                risk,
            ).alarms
        )
    return count / repeats


def test_false_alarm_rate_is_at_most_the_risk():
    share = alarm_share(lambda p, q: p, 0.2)
    assert (
        0 < share < 0.2 + 4 * math.sqrt(0.2 * 0.8 / 300)
    )  # not all tests are tight; chi-square is


def test_detectable_bias_has_the_stated_power():
    p, q = fixed_logits()
    token = tuple(SAMPLED.probs(p).argmax(-1).tolist())
    tests = sampling_tests(
        sampling_statistics(SAMPLED, p, token, 0, 0, 1e-9),
        drafter_bias(SAMPLED.probs(p), SAMPLED.probs(q), token),
        0.05,
    )
    assert 0 < tests.detectable_bias < 1
    result = alarm_share(lambda p, q: p + tests.detectable_bias * (q - p), 0.05)
    assert result > 0.99 - 4 * math.sqrt(0.01 * 0.99 / 300)
    assert alarm_share(lambda p, q: p + tests.detectable_bias / 10 * (q - p), 0.05, 100) < 0.5


@pytest.mark.parametrize("side", [1, -1])
def test_detectable_temperature_has_the_stated_power(side):
    p, q = fixed_logits(2000)
    tests = sampling_tests(
        sampling_statistics(SAMPLED, p, tuple(p.argmax(-1).tolist()), 0, 0, 1e-9), None, 0.01
    )
    power = 1 - side * tests.detectable_temperature
    result = alarm_share(lambda p, q: p**power / (p**power).sum(-1, keepdim=True), 0.01, 100, 2000)
    assert 0 < tests.detectable_temperature < 0.3
    assert result > 0.99 - 4 * math.sqrt(0.01 * 0.99 / 100)


def test_too_few_tokens_are_reported():
    run = decoded(SAMPLED, 1, 3)
    result = audit(toy_pair("model")[0], run)
    assert result.clean
    assert result.sampling.bins == 1
    assert math.isinf(result.sampling.detectable_temperature)
    assert math.isinf(result.sampling.detectable_variation)
    assert "too few tokens" in dict(report_rows(result))["temperature"]
    with pytest.raises(ValueError, match="risk is 1.5"):
        audit(toy_pair("model")[0], run, risk=1.5)
