"""What the Thompson policies believe, against closed forms and exact enumeration."""

import math
from fractions import Fraction

import naive
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from simspec import CostModel, Policy, PolicyError, replay, synthetic
from simspec.calibration import brier, reliability
from simspec.policies import beta_ts, cali_ts, make, model_only, parse, sampling_only
from simspec.policies.calibrated import READINGS as CALIBRATED
from simspec.policies.calibrated import clipped_mean
from simspec.policies.thompson import READINGS
from simspec.quantization import ENTROPY, IDENTITY, LOG_ODDS
from simspec.scalar_predictor import ScalarPredictor, examples, fit_predictor, split_by_task

NONE = np.full((16, 2), np.nan)
ROUND = st.tuples(st.integers(0, 16), st.integers(0, 16)).map(lambda pair: (pair[0], min(pair)))
ROUNDS = st.lists(ROUND, max_size=25)
UNIT = st.floats(0, 1)
SIGMA = st.floats(0.01, 20)


def told(policy, state, rounds):
    """The state after these rounds (k, a), by the policy's compiled function."""
    params, state = np.array(policy.params), np.array(state, dtype=float)
    for k, a in rounds:
        policy.compiled()[1](params, state, k, k, a, NONE, 0.0)
    return state


def goes(policy, state, u, shown=()):
    features = NONE.copy()
    features[0, : len(shown)] = shown
    return policy.compiled()[0](
        np.array(policy.params), np.array(state, dtype=float), 1, features, u
    )[0]


def threshold(policy, state, shown=()):
    """The chance to go on: the u at which the compiled function changes its mind, by bisection
    down to neighbouring floats.
    """
    low, high = 0.0, 1.0
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if goes(policy, state, middle, shown) else (low, middle)
    return high


@pytest.mark.parametrize("reading", READINGS)
@settings(deadline=None, max_examples=40)
@given(rounds=ROUNDS, alpha=st.integers(1, 8), beta=st.integers(1, 8))
def test_beta_posterior_is_the_conjugate_one_of_the_summed_counts(reading, rounds, alpha, beta):
    counts = [naive.beta_counts(reading, k, a) for k, a in rounds]
    hits, misses = sum(r for r, _ in counts), sum(f for _, f in counts)
    state = told(beta_ts(reading, alpha, beta), (alpha, beta), rounds)
    assert state.tolist() == [alpha + hits, beta + misses]
    # Conjugacy itself: prior density times Bernoulli likelihood, normalised, is this Beta's
    # density.
    x = np.array([0.2, 0.5, 0.8])
    weight = stats.beta.logpdf(x, alpha, beta) + hits * np.log(x) + misses * np.log1p(-x)
    found = stats.beta.logpdf(x, *state)
    np.testing.assert_allclose(weight - weight[0], found - found[0], atol=1e-9)


@pytest.mark.parametrize(
    "policy",
    [*(beta_ts(r) for r in READINGS), *(cali_ts(r) for r in CALIBRATED)],
    ids=lambda policy: policy.name,
)
@settings(deadline=None, max_examples=30)
@given(rounds=ROUNDS, data=st.data())
def test_neither_order_nor_a_break_in_the_stream_matters(policy, rounds, data):
    whole = told(policy, policy.state0, rounds)
    assert (
        told(policy, policy.state0, data.draw(st.permutations(rounds))).tolist() == whole.tolist()
    )
    cut = data.draw(st.integers(0, len(rounds)))
    assert (
        told(policy, told(policy, policy.state0, rounds[:cut]), rounds[cut:]).tolist()
        == whole.tolist()
    )


@pytest.mark.parametrize("reading", READINGS)
@settings(deadline=None, max_examples=30)
@given(rounds=ROUNDS, alpha=st.floats(1e-6, 1e3), beta=st.floats(1e-6, 1e3))
def test_alpha_and_beta_stay_above_zero(reading, rounds, alpha, beta):
    state = told(beta_ts(reading, alpha, beta), (alpha, beta), rounds)
    assert (state > 0).all()
    assert 0 <= threshold(beta_ts(reading), state) <= 1


@settings(deadline=None, max_examples=30)
@given(st.floats(0.3, 200), st.floats(0.3, 200))
def test_going_on_is_bernoulli_of_the_beta_mean(a, b):
    """E over theta ~ Beta(a, b) of Bernoulli(theta) is a / (a + b): by quadrature, and as the u
    at which the answer turns.
    """
    mean = a / (a + b)
    # theta = sin^2 takes the poles of the density at 0 and 1 away.
    draws, error = integrate.quad(
        lambda x: math.sin(x) ** 2 * _density(x, a, b), 0, math.pi / 2, epsabs=1e-12, limit=400
    )
    assert draws == pytest.approx(mean, abs=max(1e-6, 10 * error))
    assert threshold(beta_ts(), (a, b)) == pytest.approx(mean, abs=1e-15)


def _density(x, a, b):
    s, c = math.sin(x), math.cos(x)
    norm = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    return (
        2 * math.exp((2 * a - 1) * math.log(s) + (2 * b - 1) * math.log(c) - norm)
        if s > 0 and c > 0
        else 0.0
    )


@settings(deadline=None, max_examples=100)
@given(st.floats(-0.5, 1.5), SIGMA)
def test_the_clipped_mean_is_the_integral(mean, sigma):
    x = stats.norm(mean, sigma)
    inside, _ = integrate.quad(
        lambda t: t * x.pdf(t), 0, 1, points=[min(max(mean, 0), 1)], epsabs=1e-12, limit=200
    )
    assert clipped_mean(mean, sigma) == pytest.approx(inside + x.sf(1), abs=1e-9)
    assert clipped_mean(mean, sigma) == pytest.approx(
        naive.clipped_normal(mean, sigma, 2001), abs=1e-6
    )
    assert clipped_mean(mean, 0.0) == min(max(mean, 0), 1)


@pytest.mark.parametrize("reading", CALIBRATED)
@settings(deadline=None, max_examples=40)
@given(rounds=ROUNDS, theta0=st.integers(0, 8), theta_m=UNIT, sigma_m=SIGMA, sigma_s=SIGMA)
def test_cali_posterior_weighs_by_precision(reading, rounds, theta0, theta_m, sigma_m, sigma_s):
    """mu and sigma^2 as the textbook has them: precisions add and weigh the means; theta-hat by
    Eq. 8's recursion in fractions.
    """
    rounds = [(k, a) for k, a in rounds if k]
    policy = cali_ts(reading, sigma_m=sigma_m, sigma_s=sigma_s, theta0=theta0 / 8)
    hat = float(naive.theta_hat(reading, Fraction(theta0, 8), rounds))
    prior, seen = 1 / sigma_m**2, len(rounds) / sigma_s**2
    mean, sigma = (prior * theta_m + seen * hat) / (prior + seen), (prior + seen) ** -0.5
    state = told(policy, policy.state0, rounds)
    assert threshold(policy, state, (theta_m,)) == pytest.approx(
        clipped_mean(mean, sigma), abs=1e-9
    )
    bare = sampling_only(reading, sigma_s, theta0 / 8)
    expected = clipped_mean(hat, sigma_s / math.sqrt(max(len(rounds), 1)))
    assert threshold(bare, told(bare, bare.state0, rounds)) == pytest.approx(expected, abs=1e-9)
    assert threshold(model_only(), (0, 0, 0), (theta_m,)) == pytest.approx(theta_m, abs=1e-15)


@pytest.mark.parametrize("reading", CALIBRATED)
@settings(deadline=None, max_examples=40)
@given(rounds=ROUNDS, theta0=UNIT)
def test_theta_hat_stays_a_probability(reading, rounds, theta0):
    policy = sampling_only(reading, sigma_s=1e-6, theta0=theta0)
    state = told(policy, policy.state0, rounds)
    assert 0 <= (theta0 + state[0]) / (1 + state[1]) <= 1
    assert 0 <= state[0] <= state[1]


def test_the_literal_reading_tends_to_one_and_draft_share_stays_low():
    """One token of ten accepted: Eq. 8 as printed ends near 1, the acceptance at 1/10, the share
    of the output at 1/11.
    """
    rounds = [(1, 1)] + [(1, 0)] * 9
    ends = {reading: float(naive.theta_hat(reading, 0.5, rounds * 300)) for reading in CALIBRATED}
    for reading, end in ends.items():
        policy = sampling_only(reading, sigma_s=1e-6, theta0=0.5)
        assert threshold(policy, told(policy, policy.state0, rounds * 300)) == pytest.approx(
            end, abs=1e-6
        )
    assert ends["literal"] > 0.998
    assert ends["validated"] == pytest.approx(0.1, abs=1e-3)
    assert ends["draft_share"] == pytest.approx(1 / 11, abs=1e-3)
    always = float(naive.theta_hat("draft_share", 0.5, [(1, 1)] * 2000))
    assert always == pytest.approx(
        0.5, abs=1e-3
    )  # at k = 1 half the output is the target's own, whatever is accepted


def test_rounds_without_a_draft_teach_no_acceptance():
    for reading in ("validated", "literal"):
        policy = cali_ts(reading)
        assert told(policy, policy.state0, [(0, 0)] * 5).tolist() == [0, 0, 0]
    policy = cali_ts("draft_share")
    assert told(policy, policy.state0, [(0, 0)] * 5).tolist() == [
        0,
        5,
        0,
    ]  # output tokens all the same


K, ROUNDS_DEEP, SEQUENCES = 4, 4, 6000


def _beta(reading):
    def learn(state, k, a):
        hits, misses = naive.beta_counts(reading, k, a)
        return state[0] + hits, state[1] + misses

    return (lambda state: state[0] / (state[0] + state[1])), learn, (1, 1)


def _cali(reading, theta_m, sigma_m, sigma_s, theta0):
    steps = {
        "draft_share": lambda k, a: a + 1,
        "validated": lambda k, a: min(a + 1, k),
        "literal": lambda k, a: a,
    }
    seen = {}

    def go(state):
        if state not in seen:
            accepted, trials, n = state
            prior, data = 1 / sigma_m**2, n / sigma_s**2
            mean = (prior * theta_m + data * (theta0 + accepted) / (1 + trials)) / (prior + data)
            seen[state] = naive.clipped_normal(mean, (prior + data) ** -0.5, 401)
        return seen[state]

    return (
        go,
        lambda state, k, a: (state[0] + a, state[1] + steps[reading](k, a), state[2] + 1),
        (0, 0, 0),
    )


def _replayed(policy, acceptance, theta_m):
    """Mean draft length of the first rounds over many sequences, none of which reaches its end."""
    rows = ROUNDS_DEEP * (K + 1) + K + 1
    trace = synthetic.iid(acceptance, SEQUENCES, rows, K, seed=11, confidence=True)
    code = int(np.argmin(abs(IDENTITY - theta_m)))
    meta = type(trace.meta)(**{**vars(trace.meta), "features": (("theta", "identity"),)})
    trace = type(trace)(
        **{**vars(trace), "meta": meta, "feature": np.full_like(trace.feature, code)}
    )
    rounds = replay(trace, policy, seed=5)
    first = rounds.offset[:-1, None] + np.arange(ROUNDS_DEEP)
    assert (first < rounds.offset[1:, None]).all()
    return rounds.drafted[first].mean(axis=0)


SETTINGS = (0.4, 0.8, 0.7)  # sigma_M, sigma_S, theta_0
LAWS = {f"beta {r}": (beta_ts(r), _beta(r)) for r in READINGS} | {
    f"cali {r}": (cali_ts(r, "theta", *SETTINGS), _cali(r, 0.6, *SETTINGS)) for r in CALIBRATED
}
# Twice two-sided 1e-6 over 7 policies x 2 acceptances x 4 rounds: one fixed seed, so a pass stays a
# pass.
Z = stats.norm.isf(1e-6 / (2 * 7 * 2 * ROUNDS_DEEP))


@pytest.mark.parametrize("acceptance", [0.5, 0.9])
@pytest.mark.parametrize("label", LAWS)
def test_mean_draft_length_is_the_enumerated_one(label, acceptance):
    """Every state of the posterior enumerated for four rounds; the replay's means within z,
    false alarm 1e-6 over all of them.
    """
    policy, (go, learn, start) = LAWS[label]
    law = naive.drafted_law(ROUNDS_DEEP, K, acceptance, go, learn, start)
    found = _replayed(policy, acceptance, 0.6)
    for mean, (expected, variance) in zip(found, law):
        assert abs(mean - expected) <= Z * math.sqrt(variance / SEQUENCES) + 1e-6, (found, law)


def test_that_comparison_can_fail():
    """The same replay against the law of another reading, and of another acceptance, is far
    outside.
    """
    found = _replayed(beta_ts("acceptance"), 0.9, 0.6)
    for reading, acceptance in (("printed", 0.9), ("acceptance", 0.8)):
        law = naive.drafted_law(ROUNDS_DEEP, K, acceptance, *_beta(reading))
        assert abs(found[-1] - law[-1][0]) > Z * math.sqrt(law[-1][1] / SEQUENCES)


def test_the_printed_update_drifts_to_short_drafts():
    """The digest's figures, enumerated from the uniform prior: at acceptance 0.8 the mean draft is
    2.0 in the first round, 1.2 from the thirtieth on and still falling; where all is accepted it is
    2.0 in every round but for the cap (a policy that learns nothing).
    """
    means = [mean for mean, _ in naive.drafted_law(30, 8, 0.8, *_beta("printed"), ignore=1e-8)]
    assert means[0] == pytest.approx(2.0, abs=0.01)
    assert all(b < a for a, b in zip(means, means[1:]))
    assert means[-1] == pytest.approx(1.21, abs=0.01)
    certain = [mean for mean, _ in naive.drafted_law(12, 40, 1.0, *_beta("printed"))]
    assert all(mean == pytest.approx(2.0, abs=0.004) for mean in certain)
    held = naive.drafted_law(8, 8, 0.8, *_beta("acceptance"))
    assert held[-1][0] > 2.5


def test_scalar_predictor_in_the_policy_is_the_one_in_numpy():
    made = ScalarPredictor(0.3, 0.9, -0.4, 0.2)
    confidence, entropy = np.meshgrid([0.0, 1e-9, 0.2, 0.5, 0.99, 1.0], [0.0, 0.7, 9.0])
    for c, h in zip(confidence.ravel(), entropy.ravel()):
        assert threshold(model_only(made), (0,), (c, h)) == pytest.approx(
            float(made.probability(c, h, 0)), abs=1e-12
        )
    policy, shown = model_only(made), np.tile([0.6, 1.1], (16, 1))
    for slot in (1, 5, 11, 12, 16):  # the depth is capped at 10
        draws = float(made.probability(0.6, 1.1, slot - 1))
        answers = [
            policy.compiled()[0](np.array(policy.params), np.zeros(0), slot, shown, draws + d)[0]
            for d in (-1e-9, 1e-9)
        ]
        assert [bool(answer) for answer in answers] == [True, False]


@pytest.mark.parametrize("factory", [cali_ts, model_only])
def test_each_question_is_about_the_token_just_drafted(factory):
    """With nothing verified yet and a sure predictor the chance at slot j is theta_M of token j
    - 1, whatever the others show.
    """
    made = ScalarPredictor(0.3, 0.9, -0.4, 0.2)
    shown = np.stack((np.linspace(0.1, 0.9, 9), np.linspace(2.0, 0.1, 9)), axis=1)
    sure = {"sigma_m": 1e-6} if factory is cali_ts else {}
    for predictor, chances in (
        (made, made.probability(*shown.T, np.arange(9))),
        ("theta", shown[:, 0]),
    ):
        policy = factory(predictor=predictor, **sure)
        more, (params, state) = policy.compiled()[0], policy.start()
        for slot in range(1, 10):
            features = np.where(np.arange(9)[:, None] < slot, shown, np.nan)
            answers = [
                bool(more(params, state, slot, features, chances[slot - 1] + d)[0])
                for d in (-1e-4, 1e-4)
            ]
            assert answers == [True, False]
            assert bool(more(params, state, 0, np.full((9, 2), np.nan), 1.0)[0])


def test_scalar_files(tmp_path):
    made, path = ScalarPredictor(0.1, 1 / 3, -2e-7, 0.25, "by hand"), tmp_path / "scalar.json"
    made.to_json(path)
    assert ScalarPredictor.from_json(path) == made
    assert [p.name for p in tmp_path.iterdir()] == ["scalar.json"]
    by_path, inline = cali_ts(predictor=str(path)), cali_ts(predictor=made)
    assert by_path.params == inline.params
    assert by_path.reads == inline.reads == ("confidence", "entropy")
    assert parse(by_path.name) == by_path == cali_ts(predictor=path)
    assert parse(inline.name) == inline
    whole = path.read_text()
    for text in (
        "",
        "[]",
        "{}",
        '{"bias": 1}',
        whole.replace("0.1", '"x"'),
        whole.replace("0.25", "NaN"),
        "[" * 99999,
    ):
        path.write_text(text)
        for read in (lambda: ScalarPredictor.from_json(path), lambda: cali_ts(predictor=path)):
            with pytest.raises(ValueError, match="not a scalar predictor") as caught:
                read()
            assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="cannot be written"):
        made.to_json(tmp_path / "absent" / "scalar.json")
    with pytest.raises(PolicyError, match="without comma"):
        made.to_json(tmp_path / "a,b.json")
        cali_ts(predictor=tmp_path / "a,b.json")


def _known(scalar, sequences=60, rows=60, depth=4):
    """A trace whose tokens are accepted with the chance that this Scalar names."""
    base, random = (
        synthetic.iid(0.5, sequences, rows, depth, seed=3, confidence=True),
        np.random.default_rng(4),
    )
    codes = random.integers(60, 256, (base.rows, depth, 2), dtype=np.uint8)
    draws = scalar.probability(LOG_ODDS[codes[..., 0]], ENTROPY[codes[..., 1]], np.arange(depth))
    run = np.logical_and.accumulate(random.random((base.rows, depth)) < draws, axis=1).sum(1)
    left = np.repeat(base.offset[1:], np.diff(base.offset)) - np.arange(base.rows)
    meta = type(base.meta)(
        **{**vars(base.meta), "features": (("confidence", "confidence"), ("entropy", "entropy"))}
    )
    parts = {
        **vars(base),
        "meta": meta,
        "feature": codes,
        "run": np.minimum(run, left).astype(np.uint8),
    }
    return type(base)(**parts)


def test_fit_finds_the_weights_that_made_the_trace():
    truth = ScalarPredictor(-0.2, 0.6, 0.3, -0.7)
    trace = _known(truth)
    fitted, reported = split_by_task(trace)
    made = fit_predictor(trace, fitted)
    assert sorted([*fitted, *reported]) == list(range(trace.sequences))
    assert abs(len(fitted) - len(reported)) <= 1
    feature, slot, label, sequence = examples(trace.select(reported))
    draws, true = made.probability(*feature.T, slot), truth.probability(*feature.T, slot)
    assert np.abs(draws - true).max() < 0.15
    assert brier(draws, label) < brier(true, label) + 0.003
    table = reliability(draws, label)
    full = table[table[:, 0] >= 200]
    assert len(full) > 3
    assert np.abs(full[:, 1] - full[:, 2]).max() < 0.12
    assert table[:, 0].sum() == len(label) == len(sequence)
    assert "examples of 30 sequences" in made.source
    assert made.depth == pytest.approx(truth.depth, abs=0.3)


def test_examples_stop_at_the_first_miss_and_at_the_text():
    trace = _known(ScalarPredictor(0, 0.5, 0, 0), 2, 6, 3)
    _, slot, label, sequence = examples(trace, ())
    expected = []
    for t in range(trace.rows):
        s = t // 6
        for i in range(3):
            if i <= trace.run[t] and t + i < (s + 1) * 6:
                expected.append((i, i < trace.run[t], s))
    assert list(zip(slot.tolist(), label.tolist(), sequence.tolist())) == expected


def test_judging_by_hand_and_refusals():
    p, y = np.array([0.0, 0.05, 0.95, 1.0]), np.array([False, True, True, True])
    table = reliability(p, y, 2)
    np.testing.assert_allclose(table, [[2, 0.025, 0.5], [2, 0.975, 1.0]])
    assert np.isnan(reliability(p, y, 10)[4, 1:]).all()
    assert brier(p, y) == pytest.approx((0.95**2 + 0.05**2) / 4)
    for call in (
        lambda: brier(p, y[:2]),
        lambda: brier(p + 1, y),
        lambda: brier([], []),
        lambda: reliability(p, y, 0),
    ):
        with pytest.raises(ValueError):
            call()
    for trace in (
        _known(ScalarPredictor(0, 1, 0, 0), 1, 4, 2),
        _known(ScalarPredictor(50, 0, 0, 0), 4, 40, 4),
        _known(ScalarPredictor(-50, 0, 0, 0), 4, 40, 4),
    ):
        with pytest.raises(
            ValueError, match="examples are accepted tokens, expected 50 or more"
        ) as caught:
            fit_predictor(trace)
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="no task has two"):
        split_by_task(synthetic.iid(0.5, 1, 4, 2))


def test_a_theta_policy_is_refused_where_nothing_is_recorded():
    trace = synthetic.iid(0.5, 1, 9, 4)
    with pytest.raises(ValueError, match="feature 'theta' is not in this trace"):
        replay(trace, make("cali_ts", trace, CostModel.from_ratio(0.1, 4)))
    assert isinstance(parse("cali_ts"), Policy)
