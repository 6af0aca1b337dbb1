"""Closed forms, with their equation numbers. Vectorised over arrays; alpha = 0 and alpha = 1 are exact."""

import numpy as np


def _fraction(name, value):
    value = np.asarray(value, dtype=np.float64)
    if not ((value >= 0) & (value <= 1)).all():
        raise ValueError(f"{name} is {value}, expected numbers in [0, 1]")
    return value


def _at_least(name, value, low):
    value = np.asarray(value, dtype=np.float64)
    if not ((value >= low) & np.isfinite(value)).all():
        raise ValueError(f"{name} is {value}, expected finite numbers >= {low}")
    return value


def expected_committed(alpha, k):
    """Committed tokens per round at i.i.d. acceptance: (1 - alpha^(k+1)) / (1 - alpha), GLIDE section 5.1; k + 1 at alpha = 1."""
    alpha, k = np.broadcast_arrays(_fraction("alpha", alpha), _at_least("k", k, 0))
    inside = (alpha > 0) & (alpha < 1)
    safe = np.where(inside, alpha, 0.5)
    # expm1 keeps the digits that 1 - alpha**(k+1) loses near alpha = 1.
    return np.where(inside, -np.expm1((k + 1) * np.log(safe)) / (1 - safe), np.where(alpha == 1, k + 1, 1.0))[()]


def expected_speedup(alpha, k, c):
    """(1 - alpha^(k+1)) / ((1 - alpha)(k c + 1)), GLIDE section 5.1; c = draft step / target step."""
    return expected_committed(alpha, k) / (np.asarray(k) * _at_least("c", c, 0) + 1)


def depthwise_committed(alphas):
    """Committed tokens per round, 1 + sum_j prod_{i<=j} alpha_i, alphas[..., K] given that the depths before were accepted."""
    return (1 + np.cumprod(_fraction("alphas", alphas), axis=-1).sum(axis=-1))[()]


def eesd_time(v_d, r_d, length, draft, target):
    """EESD Eq. 13: T = (r_d L / v_d) T_d + (1 - r_d) L T_t, seconds; v_d > 0, or the tokens drafted cannot be told."""
    v_d, r_d = _positive_rate(v_d), _fraction("r_d", r_d)
    length, draft, target = (_at_least(*pair, 0) for pair in (("length", length), ("draft", draft), ("target", target)))
    return (r_d * length / v_d * draft + (1 - r_d) * length * target)[()]


def eesd_speedup(v_d, r_d, c):
    """EESD Eq. 14: v_d / ((c - v_d) r_d + v_d), c = T_d / T_t (the paper's alpha); above 1 iff c < v_d, for r_d > 0."""
    v_d, r_d, c = _positive_rate(v_d), _fraction("r_d", r_d), _at_least("c", c, 0)
    with np.errstate(divide="ignore", over="ignore"):  # infinite where drafting costs nothing and all of it is accepted
        return (v_d / (c * r_d + v_d * (1 - r_d)))[()]


def _positive_rate(v_d):
    v_d = _fraction("v_d", v_d)
    if not (v_d > 0).all():
        raise ValueError("v_d is 0, expected > 0: where nothing was accepted the number drafted is unknown, use measured_speedup")
    return v_d


def harmonic_mean(v_d, r_d):
    """EESD's HM = 2 v_d r_d / (v_d + r_d), as a fraction; 0 when both are 0."""
    v_d, r_d = np.broadcast_arrays(_fraction("v_d", v_d), _fraction("r_d", r_d))
    total = v_d + r_d
    return (2 * v_d * r_d / np.where(total > 0, total, 1))[()]


def measured_speedup(drafted, length, draft, verify, other, target):
    """L T_t / sum over rounds of (k T_d + T_verify(k) + T_other): Eq. 14 with what a verification really costs.

    drafted int[R] is each round's k; draft, other and target are seconds; verify[k] seconds of a pass over k drafts.
    """
    drafted, verify = np.asarray(drafted), _at_least("verify", verify, 0)
    if drafted.dtype.kind not in "iu" or drafted.size == 0 or drafted.min() < 0 or drafted.max() >= len(verify):
        raise ValueError(f"drafted must be integers in 0..{len(verify) - 1}, the lengths that verify prices")
    seconds = drafted * _at_least("draft", draft, 0) + verify[drafted] + _at_least("other", other, 0)
    return float(_at_least("length", length, 1) * _at_least("target", target, 0) / seconds.sum())


def optimal_k(alpha, c, k_max):
    """The smallest k in 0..k_max that maximises `expected_speedup`, int64 in the shape of alpha and c broadcast."""
    alpha, c = np.broadcast_arrays(_fraction("alpha", alpha), _at_least("c", c, 0))
    k = np.arange(int(_at_least("k_max", k_max, 0)) + 1)
    return np.argmax(expected_speedup(alpha[..., None], k, c[..., None]), axis=-1)[()]


def break_even_alpha(k, c):
    """The acceptance at which drafting k tokens costs exactly what it saves: expected_speedup(alpha, k, c) = 1.

    k >= 1; 0 at c = 0, 1 at c = 1. ValueError for c > 1, where no acceptance is enough.
    """
    k, c = np.broadcast_arrays(_at_least("k", k, 1), _at_least("c", c, 0))
    if (c > 1).any():
        raise ValueError(f"c is {c}, expected at most 1: a draft step dearer than a target step never pays")
    low, high = np.zeros(k.shape), np.ones(k.shape)
    for _ in range(60):  # bisection: committed tokens grow strictly with alpha
        middle = (low + high) / 2
        pays = expected_committed(middle, k) > k * c + 1
        low, high = np.where(pays, low, middle), np.where(pays, middle, high)
    return np.where(c == 0, 0.0, np.where(c == 1, 1.0, high))[()]


def roofline(rows, knee):
    """Time of a target pass over 0..rows rows in units of one memory-bound pass: max(1, rows / knee), float64[rows + 1]."""
    if not knee > 0:
        raise ValueError(f"knee is {knee}, expected the number of rows > 0 at which compute time equals memory time")
    return np.maximum(1.0, np.arange(int(_at_least("rows", rows, 0)) + 1) / knee)


def batch_speedup(alpha, k, c, batch, verify):
    """Speedup of a batch of B sequences: E[committed] T(B) / (k c T(B) + T(B (k+1))), T = verify[rows] in any unit.

    A plain step runs B rows and a verification B (k + 1); where T grows with rows, the gain shrinks with B.
    With a flat T it is `expected_speedup`. c = draft step / target step, both at batch B.
    """
    k, batch, verify = np.asarray(k), np.asarray(batch), _at_least("verify", verify, 0)
    if k.dtype.kind not in "iu" or batch.dtype.kind not in "iu" or (batch < 1).any():
        raise ValueError(f"k is {k} and batch {batch}, expected integers, batch at least 1")
    rows = batch * (k + 1)
    if (rows >= len(verify)).any():
        raise ValueError(f"verify prices up to {len(verify) - 1} rows, {rows.max()} are needed: give a longer table")
    return expected_committed(alpha, k) * verify[batch] / (k * _at_least("c", c, 0) * verify[batch] + verify[rows])
