import naive
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from strategies import traces

from simspec import CostModel, formulas, replay, summary, synthetic
from simspec.policies import beta_ts, fixed

RATE = st.floats(0, 1)


@settings(deadline=None)
@given(st.lists(RATE, min_size=0, max_size=7))
def test_depthwise_committed_equals_enumeration(alphas):
    distribution = naive.committed_distribution(alphas)
    assert sum(distribution.values()) == pytest.approx(1, abs=1e-12)
    assert formulas.depthwise_committed(alphas) == pytest.approx(
        sum(n * p for n, p in distribution.items()), abs=1e-12
    )


@settings(deadline=None)
@given(RATE, st.integers(0, 8))
def test_iid_form_equals_enumeration_and_the_depthwise_form(alpha, k):
    expected = sum(n * p for n, p in naive.committed_distribution([alpha] * k).items())
    assert formulas.expected_committed(alpha, k) == pytest.approx(expected, abs=1e-12)
    assert formulas.depthwise_committed(np.full(k, alpha)) == pytest.approx(expected, abs=1e-12)


def test_limits_are_exact_and_values_near_one_accurate():
    k = np.arange(6)
    assert formulas.expected_committed(1.0, k).tolist() == [1, 2, 3, 4, 5, 6]
    assert formulas.expected_committed(0.0, k).tolist() == [1] * 6
    near = 1 - np.array([1e-15, 1e-12, 1e-9, 1e-6])
    exact = formulas.depthwise_committed(np.repeat(near[:, None], 5, axis=1))
    np.testing.assert_allclose(formulas.expected_committed(near, 5), exact, rtol=1e-14)
    assert formulas.expected_committed(np.array([[0.5], [0.9]]), k).shape == (2, 6)
    assert isinstance(formulas.expected_committed(0.5, 3), float)


def test_glide_table_one_by_hand():
    """alpha = 0.8, K = 5, c = 0.05: 3.689280 / 1.25."""
    assert formulas.expected_speedup(0.8, 5, 0.05) == pytest.approx(3.68928 / 1.25, abs=1e-12)


@settings(deadline=None)
@example(1.0, 1.0, 5e-324)
@given(st.floats(0.01, 1), st.floats(0.01, 1), st.floats(0, 2))
def test_eq_14_exceeds_one_iff_c_is_under_v_d(v_d, r_d, c):
    speedup = formulas.eesd_speedup(v_d, r_d, c)
    if abs(c - v_d) > 1e-9:
        assert (speedup > 1) == (c < v_d)
    time = formulas.eesd_time(v_d, r_d, 100, c * 0.02, 0.02)
    if time > 1e-9:
        assert speedup == pytest.approx(100 * 0.02 / time, rel=1e-9)


@settings(deadline=None, max_examples=60)
@given(traces(optional=False), st.integers(0, 2**32))
def test_eq_13_misses_one_target_step_for_each_accepted_end_token(trace, seed):
    """On any recording: the replayed time exceeds Eq. 13 by T_t per sequence that ended without
    a correction token.
    """
    rounds = replay(trace, beta_ts(), seed)
    cost = CostModel.from_ratio(0.1, trace.K)
    m = summary(rounds, trace, cost)
    last = rounds.offset[1:] - 1
    bare = int((rounds.row[last] + rounds.accepted[last] >= trace.offset[1:]).sum())
    if m.accepted:
        assert m.seconds == pytest.approx(
            formulas.eesd_time(m.v_d, m.r_d, m.tokens, 0.1, 1.0) + bare, rel=1e-9
        )


def test_iid_replay_commits_the_formula_and_a_wrong_alpha_is_detected():
    """z of the mean committed tokens over rounds that the budget did not cap; |z| > 4 has
    probability 6e-5.
    """
    alpha, k = 0.7, 4
    trace = synthetic.iid(alpha, 10, 1500, k, seed=12)
    rounds = replay(trace, fixed(k))
    end = np.repeat(trace.offset[1:], np.diff(rounds.offset))
    free = rounds.row + k < end
    committed = rounds.accepted[free] + 1

    def z(assumed):
        distribution = naive.committed_distribution([assumed] * k)
        mean = sum(n * p for n, p in distribution.items())
        variance = sum((n - mean) ** 2 * p for n, p in distribution.items())
        assert mean == pytest.approx(formulas.expected_committed(assumed, k), abs=1e-12)
        return (committed.mean() - mean) / np.sqrt(variance / len(committed))

    assert abs(z(alpha)) < 4
    assert abs(z(alpha - 0.04)) > 4
    assert abs(z(alpha + 0.04)) > 4


@settings(deadline=None)
@given(RATE, RATE)
def test_harmonic_mean(v_d, r_d):
    hm = formulas.harmonic_mean(v_d, r_d)
    assert min(v_d, r_d) - 1e-12 <= hm <= max(v_d, r_d) + 1e-12
    assert hm == formulas.harmonic_mean(r_d, v_d)
    assert formulas.harmonic_mean(0.0, 0.0) == 0


@settings(deadline=None)
@given(RATE, st.floats(0, 1.5), st.integers(0, 12))
def test_optimal_k_is_the_smallest_maximiser(alpha, c, k_max):
    values = [formulas.expected_speedup(alpha, k, c) for k in range(k_max + 1)]
    best = formulas.optimal_k(alpha, c, k_max)
    assert values[best] == max(values)
    assert best == values.index(max(values))


@pytest.mark.parametrize(
    "call",
    [
        lambda: formulas.expected_committed(1.1, 3),
        lambda: formulas.expected_committed(float("nan"), 3),
        lambda: formulas.expected_committed(0.5, -1),
        lambda: formulas.expected_speedup(0.5, 3, -0.1),
        lambda: formulas.depthwise_committed([0.5, 2]),
        lambda: formulas.block_accepted([-1.0]),
        lambda: formulas.eesd_time(0.0, 0.0, 10, 1, 1),
        lambda: formulas.eesd_speedup(0.5, -0.1, 0.1),
        lambda: formulas.harmonic_mean(0.5, 1.2),
        lambda: formulas.optimal_k(0.5, 0.1, -1),
    ],
)
def test_domain_errors_are_one_line(call):
    with pytest.raises(ValueError) as caught:
        call()
    assert "\n" not in str(caught.value)


@settings(deadline=None)
@example(1.0, 1.0, 5, 0.1)
@example(0.0, 0.0, 5, 0.1)
@example(0.7, 1.0, 1, 0.0)
@given(RATE, RATE, st.integers(1, 7), st.floats(0, 2))
def test_geometric_stop_equals_enumeration(alpha, stay, K, c):
    distribution = naive.geometric_distribution(alpha, stay, K)
    assert sum(distribution.values()) == pytest.approx(1, abs=1e-12)
    drafted, accepted = (sum(key[i] * p for key, p in distribution.items()) for i in (0, 1))
    assert formulas.geometric_drafted(stay, K) == pytest.approx(drafted, abs=1e-12)
    assert formulas.geometric_accepted(alpha, stay, K) == pytest.approx(accepted, abs=1e-12)
    assert formulas.geometric_committed(alpha, stay, K) == pytest.approx(1 + accepted, abs=1e-12)
    assert formulas.geometric_speedup(alpha, stay, K, c) == pytest.approx(
        (1 + accepted) / (1 + c * drafted), rel=1e-12
    )
    assert formulas.geometric_speedup(alpha, 1.0, K, c) == pytest.approx(
        formulas.expected_speedup(alpha, K, c), rel=1e-12
    )


def test_a_block_is_accepted_by_one_draw_against_a_running_minimum():
    """Real rounds of blocks are held to this law by enumeration in test_rejection_ratio.py."""
    ratio = np.array([[2.0, 0.3, 3.0], [0.5, 3.0, 0.1], [0.0, 9.0, 1.0]])
    expected = [[1.0, 0.6, 0.6], [0.5, 0.5, 0.15], [0.0, 0.0, 0.0]]
    np.testing.assert_allclose(formulas.block_accepted(ratio), expected)
    capped = np.minimum(ratio, 1)  # as older recordings hold it: token verification comes out
    np.testing.assert_allclose(formulas.block_accepted(capped), capped.cumprod(-1), atol=1e-15)
    crafted, expected = np.full((2, 255), 1e300), np.ones((2, 255))  # products overflow
    crafted[:, 200] = 0.0, 1e-300
    expected[0, 200:] = 0
    np.testing.assert_array_equal(formulas.block_accepted(crafted), expected)
