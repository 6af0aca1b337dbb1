"""Tests of sampled tokens: statistics by definition, detected faults, limits, error rates."""

import math
from dataclasses import replace
from functools import lru_cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from emitter import PROMPT, SAMPLED, decoded, distribution, drawn
from enumerated_world import CASES, case_world, real_rounds
from hypothesis import given, settings
from hypothesis import strategies as st
from test_rejection_ratio import chances_of
from test_run_sampled import Doubtful
from toy_lm import chain_plan, policy_from, toy_cost, toy_pair, toy_target

from real.audit import checks
from real.audit.auditor import _divergences, audit, excess_alarms, report_rows
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


def logits_like(data, rows=3, vocab=6):
    row = st.lists(st.floats(-4, 4).map(lambda x: round(x, 1)), min_size=vocab, max_size=vocab)
    return torch.tensor(data.draw(st.lists(row, min_size=rows, max_size=rows)), dtype=torch.float64)


CUTS = st.tuples(st.integers(0, 6), st.sampled_from([1.0, 0.95, 0.7, 0.3, 0.05]))


@HELD
@given(data=st.data(), cuts=CUTS, temperature=st.sampled_from([0.5, 1.0, 1.7]))
def test_score_gaps_by_definition(data, cuts, temperature):
    rule, logits = Rule("coupled", temperature, 7, *cuts), logits_like(data)
    token = tuple(data.draw(st.lists(st.integers(0, 5), min_size=3, max_size=3)))
    result = checks.score_gaps(rule, logits, token, 4, 10, torch.float64, 1e-9)
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
            unit = float(
                checks.spacing(logits[i, [y, int(result.best[i])]].abs().max(), torch.float64)
            )
            assert result.ulps[i] == pytest.approx(result.least_gap[i] * temperature / unit)


@HELD
@given(data=st.data(), cuts=CUTS)
def test_sampling_statistics_by_definition(data, cuts):
    rule, logits = Rule("rejection", 0.8, 7, *cuts), logits_like(data)
    token = tuple(data.draw(st.lists(st.integers(0, 5), min_size=3, max_size=3)))
    result = checks.sampling_statistics(rule, logits, token, 4, 10, 1e-9)
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
        for h, tilt in zip(checks.TEMPERATURE_TILTS, result.tilt[i]):
            assert tilt == pytest.approx(
                math.log(p[y] ** (1 - h) / (some ** (1 - h)).sum() / p[y]), abs=1e-9
            )


@HELD
@given(data=st.data(), cuts=CUTS, slack=st.sampled_from([1e-9, 0.05, 0.5]))
def test_truncation_mask_bounds_every_rounding(data, cuts, slack):
    rule, logits = Rule("rejection", 0.8, 0, *cuts), logits_like(data)
    stays = rule.probs(logits) > 0
    may, must = (checks.truncation_mask(rule, logits, sign * slack) for sign in (1, -1))
    assert (may | ~stays).all()
    assert (stays | ~must).all()
    for _ in range(5):  # whatever the rounding, between the two
        generator = np.random.default_rng(data.draw(st.integers(0, 99)))
        noise = torch.from_numpy(generator.uniform(-1, 1, logits.shape))
        moved = rule.probs(logits + noise * slack * 0.8 / 4) > 0
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
    assert checks.sampling_statistics(rule, logits, (2,), 0, 0, 1e-4).at_cutoff.all()
    assert not checks.sampling_statistics(rule, logits, (2,), 0, 0, 1e-9).at_cutoff.any()
    assert not checks.sampling_statistics(rule, logits, (3,), 0, 0, 1e-4).at_cutoff.any()
    coupled = Rule("coupled", 1.0, 1, 0, 0.75)
    result = checks.score_gaps(coupled, logits, (2,), 0, 0, torch.float32, 1e-4)
    assert result.gap[0] in (0, math.inf)
    assert math.isfinite(result.least_gap[0])


@HELD
@given(data=st.data())
def test_bias_alternatives_are_distributions(data):
    p, q = (Rule("rejection", 1.0, 0, *data.draw(CUTS)).probs(logits_like(data)) for _ in range(2))
    columns = [checks.drafter_bias(p, q, (v, v, v)) for v in range(6)]
    for i in range(3):
        score = np.array([c.score[i] for c in columns])
        target_p, theirs = p[i].numpy(), q[i].numpy()
        assert target_p @ score == pytest.approx(0, abs=1e-12)
        assert target_p @ score**2 == pytest.approx(columns[0].variance[i])
        assert theirs @ score == pytest.approx(columns[0].shift[i])
        assert columns[0].shift[i] > -1e-12
        assert theirs @ score**2 == pytest.approx(columns[0].square[i])
        assert target_p @ np.exp(np.array([c.tilt[i] for c in columns])) == pytest.approx(
            np.ones(len(checks.BIAS_TILTS))
        )


@pytest.mark.parametrize(
    "drafter", ["model", "early_exit", "eagle", "medusa", "glide", "self_skip"]
)
def test_drafter_distributions_are_those_of_first_steps(drafter):
    target, toy_drafter = toy_pair(drafter)
    (text,) = decoded(SAMPLED, 1, 6).sequences
    q = checks.drafter_distributions(target, toy_drafter, SAMPLED, text)
    for n in range(len(text.token)):
        shown = []
        one_token = chain_plan(policy_from("fixed:1", None, None), 1, 0, toy_cost())
        prompt = [*text.prompt, *text.token[:n]]
        decode(target, toy_drafter, one_token, SAMPLED, prompt, 2, draws=Peek(shown))
        assert torch.allclose(q[n], shown[0], atol=1e-9), n
    assert checks.drafter_distributions(*toy_pair("prompt_lookup"), SAMPLED, text) is None


class Peek:
    """Draws that keep the first distribution of the drafter."""

    def __init__(self, shown):
        self.shown = shown

    def sample(self, p, round, slot, role):
        self.shown.append(p)
        return int(p.argmax())

    def accept(self, probability, round, slot):
        return True


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
    target_p, theirs = SAMPLED.probs(p), SAMPLED.probs(q)
    generator = torch.Generator().manual_seed(3)
    count = 0
    for s in range(repeats):
        drawn = torch.multinomial(draws(target_p, theirs), 1, generator=generator)
        token = tuple(drawn[:, 0].tolist())
        found = checks.sampling_statistics(SAMPLED, p, token, s, 0, 1e-9)
        count += bool(
            checks.sampling_tests(found, checks.drafter_bias(target_p, theirs, token), risk).alarms
        )
    return count / repeats


def test_false_alarm_rate_is_at_most_the_risk():
    share = alarm_share(lambda p, q: p, 0.2)
    # not all tests are tight; chi-square is
    assert 0 < share < 0.2 + 4 * math.sqrt(0.2 * 0.8 / 300)


def test_detectable_bias_has_the_stated_power():
    p, q = fixed_logits()
    token = tuple(SAMPLED.probs(p).argmax(-1).tolist())
    tests = checks.sampling_tests(
        checks.sampling_statistics(SAMPLED, p, token, 0, 0, 1e-9),
        checks.drafter_bias(SAMPLED.probs(p), SAMPLED.probs(q), token),
        0.05,
    )
    assert 0 < tests.detectable_bias < 1
    result = alarm_share(lambda p, q: p + tests.detectable_bias * (q - p), 0.05)
    assert result > 0.99 - 4 * math.sqrt(0.01 * 0.99 / 300)
    assert alarm_share(lambda p, q: p + tests.detectable_bias / 10 * (q - p), 0.05, 100) < 0.5


@pytest.mark.parametrize("side", [1, -1])
def test_detectable_temperature_has_the_stated_power(side):
    p, q = fixed_logits(2000)
    tests = checks.sampling_tests(
        checks.sampling_statistics(SAMPLED, p, tuple(p.argmax(-1).tolist()), 0, 0, 1e-9), None, 0.01
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


RISK = 0.06


def statistics(pit, tilt=0.0):
    """Of tokens with these transforms, and this log likelihood ratio for every alternative."""
    n, one = len(pit), np.ones(len(pit))
    tilts = np.full((n, len(checks.TEMPERATURE_TILTS)), tilt)
    return checks.SamplingStatistics(
        one, np.zeros(n, bool), one, one, 0 * one, np.array(pit), tilts
    )


def bias(n, tilt=0.0):
    one = np.ones(n)
    return checks.Bias(0 * one, one, one, one, np.full((n, len(checks.BIAS_TILTS)), tilt))


def halves(low, high):
    return [0.25] * low + [0.75] * high


def binomial(n, p):
    """P(X = k), k = 0 .. n."""
    return [math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)]


@pytest.mark.parametrize("drafter, tests", [(None, 2), (bias(40), 3)])
def test_risk_is_shared_by_the_tests(drafter, tests):
    found = checks.sampling_tests(statistics(halves(20, 20)), drafter, RISK)
    assert found.detectable_variation == checks.detectable_variation(40, 2, RISK / tests)


@pytest.mark.parametrize("p_value", [0.99, 1.01])
def test_temperature_and_drafter_bias_are_tested_at_their_level(p_value):
    """The mean likelihood ratio is 1 / p, whatever the number of alternatives."""
    of_two, of_three = (p_value * RISK / tests for tests in (2, 3))
    heated = statistics(halves(20, 20), -math.log(of_two) / 40)
    found = checks.sampling_tests(heated, None, RISK)
    assert found.p_temperature == pytest.approx(of_two)
    assert found.alarms == (("temperature",) if p_value < 1 else ())
    biased = bias(40, -math.log(of_three) / 40)
    found = checks.sampling_tests(statistics(halves(20, 20)), biased, RISK)
    assert found.p_bias == pytest.approx(of_three)
    assert found.alarms == (("drafter bias",) if p_value < 1 else ())


@pytest.mark.parametrize("n, bins", [(39, 1), (40, 2), (60, 3), (65, 3), (400, 20), (900, 20)])
def test_bins_hold_twenty_tokens(n, bins):
    assert checks.sampling_tests(statistics([0.5] * n), None, RISK).bins == bins


def test_chi_square_of_two_bins_is_a_squared_normal():
    for low, high in ((30, 10), (22, 18)):
        found = checks.sampling_tests(statistics(halves(low, high)), None, RISK)
        assert found.chi2 == pytest.approx((low - high) ** 2 / 40)
        assert found.p_chi2 == pytest.approx(math.erfc(abs(low - high) / math.sqrt(80)))


def test_detectable_variation_of_two_bins_is_a_shifted_normal():
    """The square of a normal around s passes its critical value with probability 0.99."""

    def tail(x):
        return math.erfc(x / math.sqrt(2)) / 2

    n, level = 400, 0.01
    shift = 2 * math.sqrt(n) * checks.detectable_variation(n, 2, level)
    low, high = 0.0, 10.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if 2 * tail(middle) > level else (low, middle)
    assert tail(high - shift) + tail(high + shift) == pytest.approx(0.99, abs=1e-6)


def test_detectable_temperature_is_that_of_its_power():
    """At the effect found, a score 2.3263 deviations below its mean is just an alarm."""
    n, level = 2000, 0.01
    x = checks.detectable_temperature(statistics([0.5] * n), level)
    assert (checks.POWER, 0 < x < 1) == (0.99, True)
    score, h = x * n - 2.3263478740408408 * math.sqrt(n), np.abs(checks.TEMPERATURE_TILTS)
    alarm = math.log(len(checks.TEMPERATURE_TILTS) / level)
    assert (h * score - h * h * n / 2).max() == pytest.approx(alarm)


def test_near_ties_are_excused_up_to_their_share():
    n, share, risk = 1000, 0.001, 1e-4
    tails = np.cumsum(binomial(n, share)[::-1])[::-1]
    most = int(np.argmax(tails < risk))
    near, far = SimpleNamespace(excused=True), SimpleNamespace(excused=False)
    assert excess_alarms([near] * (most - 1), n, share, risk, "x") == []
    (alarm,) = excess_alarms([near] * most, n, share, risk, "x")
    assert alarm.startswith(f"{most} of 1000 x, each within rounding")
    assert excess_alarms([near, far], n, share, risk, "x") == ["1 of 1000 x"]


def test_a_gap_is_excused_within_either_tolerance():
    tolerance = checks.tolerance_of("float32")
    nats, ulps = tolerance.nats, tolerance.ulps
    gap = np.array([nats / 2, nats * 9, nats * 9, nats, nats * 9])
    units = np.array([ulps * 9, ulps / 2, ulps * 9, ulps * 9, ulps])
    count = len(gap)
    parts = [checks.ScoreGaps(np.zeros(count, int), gap, gap, units, gap)]
    places = [(0, 0, n, 1) for n in range(count)]
    divergences, _, _ = _divergences(parts, places, tolerance)
    assert [d.excused for d in divergences] == [True, True, False, True, True]


def test_tolerance_is_that_of_the_coarsest_dtype():
    assert checks.tolerance_of("float64", "bfloat16").dtype == "bfloat16"
    assert checks.tolerance_of("float32", "float64").dtype == "float32"
    assert checks.tolerance_of("float64").nats < checks.tolerance_of("float32").nats < 0.3


@pytest.mark.parametrize(
    "text", ["fixed:2", "beta_ts", "confidence:0.6", "confidence:0.6,inclusive=false"]
)
def test_the_likelihood_ratio_has_mean_one(text):
    """Every draw enumerated, for policies that read features of drafted tokens too."""
    for case in CASES:
        (_, rule, _), world, means, tested = case, case_world(case), 0.0, 0
        for (tokens, rounds), odds in real_rounds(text, case)[0].items():
            bias = checks.bias_of_rounds(chances_of(world, rule, tokens, 2), rounds, len(tokens))
            means = means + odds * np.exp(bias.tilt.sum(0))
            tested = max(tested, len(bias.score))
        np.testing.assert_allclose(means, np.ones(len(checks.ACCEPTANCE_TILTS)), atol=1e-12)
        assert tested >= 2


@pytest.mark.parametrize("drafter, policy", [("model", "fixed:3"), ("prompt_lookup", "fixed:3")])
def test_clean_runs_are_tested(drafter, policy):
    target, toy_drafter = toy_pair(drafter)
    result = audit(target, decoded(SAMPLED, 20, policy=policy, drafter=drafter), toy_drafter)
    assert result.clean
    assert result.sampling.p_acceptance > 1e-4
    assert "z = " in dict(report_rows(result))["acceptance"]


def test_control_doubtful_acceptance_is_detected(monkeypatch):
    """A third of acceptances lost: more than is stated to be detected with probability 0.99."""
    monkeypatch.setattr("real.decode.loop.AddressedDraws", Doubtful)
    target, drafter = toy_pair("model")
    result = audit(target, decoded(SAMPLED, 30), drafter)
    assert 0 < result.sampling.detectable_loss < 1 / 3
    assert result.sampling.acceptance_z < -4
    assert "acceptance" in result.sampling.alarms
    assert "drafted tokens are not accepted" in " ".join(result.alarms)


def test_unknown_rounds_and_trees_are_not_tested():
    target, drafter = toy_pair("model")
    run = decoded(SAMPLED, 4)
    unknown = replace(run, sequences=tuple(replace(s, rounds=()) for s in run.sequences))
    assert checks.chain_depth(unknown.sequences) == 0
    assert checks.chain_depth(run.sequences) == 3
    result = audit(target, unknown, drafter)
    assert result.sampling.p_acceptance is None
    assert "not tested" in dict(report_rows(result))["acceptance"]
    first = run.sequences[0]
    tree = replace(first, rounds=((0, 1, 3, first.rounds[0][3]), *first.rounds[1:]))
    assert checks.chain_depth((tree,)) == 0
