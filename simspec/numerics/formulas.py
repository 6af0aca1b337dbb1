"""Closed forms, with their equation numbers; vectorized, exact at alpha = 0 and alpha = 1."""

from typing import Any

import numpy as np


def _fraction(name: Any, value: Any) -> Any:
    value = np.asarray(value, dtype=np.float64)
    if not ((value >= 0) & (value <= 1)).all():
        raise ValueError(f"{name} is {value}, expected numbers in [0, 1]")
    return value


def _at_least(name: Any, value: Any, low: Any) -> Any:
    value = np.asarray(value, dtype=np.float64)
    if not ((value >= low) & np.isfinite(value)).all():
        raise ValueError(f"{name} is {value}, expected finite numbers >= {low}")
    return value


def expected_committed(alpha: Any, k: Any) -> Any:
    """Committed tokens per round at i.i.d. acceptance (GLIDE section 5.1).

    (1 - alpha^(k+1)) / (1 - alpha), k + 1 at alpha = 1
    """
    alpha, k = np.broadcast_arrays(_fraction("alpha", alpha), _at_least("k", k, 0))
    inside = (alpha > 0) & (alpha < 1)
    safe = np.where(inside, alpha, 0.5)
    # expm1 keeps the digits that 1 - alpha**(k+1) loses near alpha = 1.
    return np.where(
        inside, -np.expm1((k + 1) * np.log(safe)) / (1 - safe), np.where(alpha == 1, k + 1, 1.0)
    )[()]


def expected_speedup(alpha: Any, k: Any, c: Any) -> Any:
    """(1 - alpha^(k+1)) / ((1 - alpha)(k c + 1)), GLIDE section 5.1; c = draft step / target
    step.
    """
    return expected_committed(alpha, k) / (np.asarray(k) * _at_least("c", c, 0) + 1)


def depthwise_committed(alphas: Any) -> Any:
    """Committed tokens per round of acceptance by depth: 1 + sum_j prod_{i<=j} alpha_i.

    alphas[..., K] is the acceptance at each depth, given that the depths before were accepted.
    """
    return (1 + np.cumprod(_fraction("alphas", alphas), axis=-1).sum(axis=-1))[()]


def block_accepted(ratio: Any) -> Any:
    """P(at least j drafted tokens accepted | the output y) under block verification, [..., K].

    min(1, Q_1, .., Q_j), Q_j = prod_{i<=j} ratio_i, ratio[..., K] = q(y_i) / p(y_i); one uniform
    draw below it accepts j. Token verification accepts prod_{i<=j} min(1, ratio_i), never more. In
    Algorithm 2 of Sun et al. (arXiv 2403.10444), with w_j = min(w_{j-1} p / q, 1), the first j
    accepted tokens are y with probability q(y) w_j, and the target's own token follows j of them
    with q(y) max(w_j p - q, 0): over p(y) these are min Q and its decrease. So it needs ratios
    above 1: of min(1, ratio) both rules are one. Sums of logarithms, whose products may overflow.
    """
    with np.errstate(divide="ignore"):
        logs = np.cumsum(np.log(_at_least("ratio", ratio, 0)), axis=-1)
    return np.exp(np.minimum(0.0, np.minimum.accumulate(logs, axis=-1)))


def eesd_time(v_d: Any, r_d: Any, length: Any, draft: Any, target: Any) -> Any:
    """Seconds of a sequence (EESD Eq. 13): T = (r_d L / v_d) T_d + (1 - r_d) L T_t.

    ValueError for v_d = 0, where the number of drafted tokens is unknown.
    """
    v_d, r_d = _positive_rate(v_d), _fraction("r_d", r_d)
    length, draft, target = (
        _at_least(*pair, 0) for pair in (("length", length), ("draft", draft), ("target", target))
    )
    return (r_d * length / v_d * draft + (1 - r_d) * length * target)[()]


def eesd_speedup(v_d: Any, r_d: Any, c: Any) -> Any:
    """Speedup (EESD Eq. 14): v_d / ((c - v_d) r_d + v_d), c = T_d / T_t (the paper's alpha).

    For r_d > 0 it is above 1 iff c < v_d.
    """
    v_d, r_d, c = _positive_rate(v_d), _fraction("r_d", r_d), _at_least("c", c, 0)
    # infinite where drafting is free and everything is accepted
    with np.errstate(divide="ignore", over="ignore"):
        return (v_d / (c * r_d + v_d * (1 - r_d)))[()]


def _positive_rate(v_d: Any) -> Any:
    v_d = _fraction("v_d", v_d)
    if not (v_d > 0).all():
        raise ValueError(
            "v_d is 0, expected > 0: where nothing was accepted the number drafted is unknown, "
            "divide measured seconds"
        )
    return v_d


def harmonic_mean(v_d: Any, r_d: Any) -> Any:
    """EESD's HM = 2 v_d r_d / (v_d + r_d), as a fraction; 0 when both are 0."""
    v_d, r_d = np.broadcast_arrays(_fraction("v_d", v_d), _fraction("r_d", r_d))
    total = v_d + r_d
    return (2 * v_d * r_d / np.where(total > 0, total, 1))[()]


def optimal_k(alpha: Any, c: Any, k_max: Any) -> Any:
    """The smallest k in 0..k_max that maximizes `expected_speedup`, int64 in the broadcast
    shape.
    """
    alpha, c = np.broadcast_arrays(_fraction("alpha", alpha), _at_least("c", c, 0))
    k = np.arange(int(_at_least("k_max", k_max, 0)) + 1)
    return np.argmax(expected_speedup(alpha[..., None], k, c[..., None]), axis=-1)[()]


def geometric_drafted(stay: Any, K: Any) -> Any:
    """E[k] of a geometric stop: (1 - s^K) / (1 - s), s = stay; K at s = 1.

    The first token is always drafted (K >= 1). After each, drafting continues with probability s,
    up to K tokens: P(k >= j) = s^(j-1) for 1 <= j <= K, and E[k] is their sum. This describes the
    Thompson-sampling policies at a constant posterior (EESD Alg. 2). Broadcasts; ValueError for s
    outside [0, 1] or K < 1.
    """
    return expected_committed(_fraction("stay", stay), _at_least("K", K, 1) - 1)


def geometric_accepted(alpha: Any, stay: Any, K: Any) -> Any:
    """E[a] of the geometric stop at i.i.d. acceptance: alpha (1 - (s alpha)^K) / (1 - s alpha), s =
    stay.

    a >= j needs k >= j, of probability s^(j-1), and j acceptances, of probability alpha^j,
    independent of each other; sum over j <= K.
    """
    alpha, stay = _fraction("alpha", alpha), _fraction("stay", stay)
    return (alpha * expected_committed(alpha * stay, _at_least("K", K, 1) - 1))[()]


def geometric_committed(alpha: Any, stay: Any, K: Any) -> Any:
    """Committed tokens per round under the geometric stop: 1 + E[a], with the target's own
    token.
    """
    return 1 + geometric_accepted(alpha, stay, K)


def geometric_speedup(alpha: Any, stay: Any, K: Any, c: Any) -> Any:
    """Speedup under the geometric stop (renewal reward): (1 + E[a]) / (1 + c E[k]).

    Costs are those of CostModel.from_ratio(c): c a drafted token, 1 a verification. At stay = 1 it
    is
    `expected_speedup`.
    """
    return geometric_committed(alpha, stay, K) / (
        1 + _at_least("c", c, 0) * geometric_drafted(stay, K)
    )
