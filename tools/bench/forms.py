"""What a simulated round is held against: the same rounds by hand-written loops and by vectorised
NumPy.

A limit is the least that a policy's rounds need, written out for that policy alone: the chase from
row to row (each load waits for the one before), the branches that its decisions take, and its
draws, from the same addresses. No features are read, no cost is given, nothing but the rows is
written. The NumPy forms step all sequences together, a round at a time. Both are checked against
`replay` by tests/test_bench.py: same rows.
"""

import math

import numpy as np
from numba import njit

from simspec.numerics.rng import POLICY, block
from simspec.trace.quantization import LOG_ODDS


@njit
def chase(offset, run, k, out):
    """fixed(k): t -> t + min(k, run[t]) + 1."""
    r = 0
    for s in range(len(offset) - 1):
        t, end = offset[s], offset[s + 1]
        while t < end:
            out[r] = t
            r += 1
            t += min(k, np.int64(run[t]), end - t - 1) + 1
    return r


@njit
def follow(offset, run, start, K, out):
    """hf_heuristic(start), in one stream: the next length waits for this round's outcome."""
    r, wish = 0, start
    for s in range(len(offset) - 1):
        t, end = offset[s], offset[s + 1]
        while t < end:
            out[r] = t
            r += 1
            drafted = min(wish, K, end - t - 1)
            accepted = min(drafted, np.int64(run[t]))
            wish = wish + 2 if accepted == drafted else max(1, wish - 1)
            t += accepted + 1
    return r


@njit
def leave(offset, run, code, lowest, K, out):
    """confidence: go on while the code is at least `lowest`; one branch a round cannot be
    foreseen.
    """
    r = 0
    for s in range(len(offset) - 1):
        t, end = offset[s], offset[s + 1]
        while t < end:
            out[r] = t
            r += 1
            cap, k = min(K, end - t - 1), 0
            while k < cap:
                k += 1
                if code[t, k - 1] < lowest:
                    break
            t += min(k, np.int64(run[t])) + 1
    return r


@njit
def leave_through_memory(offset, run, code, table, threshold, K, shown, out):
    """As `leave`, as the general loop must do it: values of the grid, written where a policy reads
    them, and NaN again after the round.
    """
    r = 0
    for s in range(len(offset) - 1):
        t, end = offset[s], offset[s + 1]
        while t < end:
            out[r] = t
            r += 1
            cap, k = min(K, end - t - 1), 0
            while k < cap:
                shown[k, 0] = table[code[t, k]]
                k += 1
                if shown[k - 1, 0] < threshold:
                    break
            for i in range(K):
                shown[i, 0] = np.nan
            t += min(k, np.int64(run[t])) + 1
    return r


@njit
def multiply(offset, run, code, table, threshold, K, out):
    """product: a running product of table[code]."""
    r = 0
    for s in range(len(offset) - 1):
        t, end = offset[s], offset[s + 1]
        while t < end:
            out[r] = t
            r += 1
            cap, k, whole = min(K, end - t - 1), 0, 1.0
            while k < cap:
                k += 1
                whole *= table[code[t, k - 1]]
                if k >= 2 and 1.0 - whole > threshold:
                    break
            t += min(k, np.int64(run[t])) + 1
    return r


@njit(error_model="numpy")
def toss(offset, run, address, seed, K, out):
    """beta_ts('acceptance'): one draw a question, against a posterior that waits for the last
    round.
    """
    r = 0
    for s in range(len(offset) - 1):
        t, end, alpha, beta, first = offset[s], offset[s + 1], 1.0, 1.0, r
        n0, n1, n2, n3 = block(seed, address[s], 0, 0, POLICY)
        while t < end:
            out[r] = t
            u0, u1, u2, u3 = n0, n1, n2, n3
            n0, n1, n2, n3 = block(seed, address[s], r + 1 - first, 0, POLICY)
            theta, cap = alpha / (alpha + beta), min(K, end - t - 1)
            k = min(cap, 1)
            while 0 < k < cap:
                if k & 3 == 0:
                    u0, u1, u2, u3 = block(seed, address[s], r - first, k >> 2, POLICY)
                else:
                    u0, u1, u2 = u1, u2, u3
                if u0 >= theta:
                    break
                k += 1
            accepted = min(k, np.int64(run[t]))
            alpha += accepted
            beta += min(accepted + 1, k) - accepted
            t += accepted + 1
            r += 1
    return r


@njit
def _clipped(mean, sigma):
    total = 0.0
    for d, sign in ((mean, 1.0), (mean - 1.0, -1.0)):
        z = d / sigma
        total += sign * (
            d * 0.5 * math.erfc(-z / math.sqrt(2.0))
            + sigma * math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
        )
    return total


@njit(error_model="numpy")
def calibrate(offset, run, code, table, address, seed, model, sample, theta0, K, out):
    """cali_ts('validated') on a recorded probability: as `toss`, with the clipped mean of a
    Normal at each question.
    """
    r = 0
    for s in range(len(offset) - 1):
        t, end, good, all_, first = offset[s], offset[s + 1], 0.0, 0.0, r
        while t < end:
            out[r] = t
            n = float(r - first)
            u0, u1, u2, u3 = block(seed, address[s], r - first, 0, POLICY)
            cap = min(K, end - t - 1)
            k = min(cap, 1)
            seen, total = (theta0 + good) / (1.0 + all_), n * model + sample
            sigma = math.sqrt(model * sample / total)
            while 0 < k < cap:
                if k & 3 == 0:
                    u0, u1, u2, u3 = block(seed, address[s], r - first, k >> 2, POLICY)
                else:
                    u0, u1, u2 = u1, u2, u3
                if u0 >= _clipped(
                    (sample * table[code[t, k - 1]] + n * model * seen) / total, sigma
                ):
                    break
                k += 1
            accepted = min(k, np.int64(run[t]))
            good += accepted
            all_ += min(accepted + 1, k)
            t += accepted + 1
            r += 1
    return r


def _lockstep(trace, length, observe=lambda live, k, accepted: None):
    """Rows of all rounds, sequences side by side; length(t, live, round) -> wished draft
    lengths.
    """
    t, end, rows, live = trace.offset[:-1].copy(), trace.offset[1:], [], np.arange(trace.sequences)
    run, r = trace.run.astype(np.int64), 0
    while len(live):
        now = t[live]
        rows.append((live, now))
        k = np.minimum(np.minimum(length(now, live, r), trace.K), end[live] - now - 1)
        accepted = np.minimum(k, run[now])
        observe(live, k, accepted)
        t[live] = now + accepted + 1
        live, r = live[t[live] < end[live]], r + 1
    order = np.argsort(np.concatenate([s for s, _ in rows]), kind="stable")
    return np.concatenate([now for _, now in rows])[order]


def numpy_fixed(trace, k):
    """fixed(k)."""
    return _lockstep(trace, lambda t, live, r: k)


def numpy_confidence(trace, threshold):
    """confidence(threshold): where each row would stop is found for all rows at once."""
    low = LOG_ODDS[trace.feature[:, :, 0]] < threshold
    stop = np.where(low.any(1), low.argmax(1) + 1, trace.K)
    return _lockstep(trace, lambda t, live, r: stop[t])


def numpy_beta_ts(trace, seed):
    """beta_ts('acceptance'): Philox on arrays of addresses, posteriors in two arrays."""
    alpha, beta = np.ones(trace.sequences), np.ones(trace.sequences)
    word = np.uint64(0xFFFFFFFF)
    key = np.uint64(seed) & word, np.uint64(seed) >> np.uint64(32)

    def length(t, live, r):
        theta, k, on = (
            alpha[live] / (alpha[live] + beta[live]),
            np.ones(len(live), np.int64),
            np.arange(len(live)),
        )
        for slot in range(1, trace.K):
            if slot == 1 or slot % 4 == 0:  # block 0 serves slots 1 to 3, slot 0 needs no draw
                words = _philox(trace.sequence[live].astype(np.uint64), r, slot // 4, key)
            on = on[(words[slot % 4][on] + 0.5) * 2.0**-32 < theta[on]]
            if not len(on):
                break
            k[on] += 1
        return k

    def observe(live, k, accepted):
        alpha[live] += accepted
        beta[live] += np.minimum(accepted + 1, k) - accepted

    return _lockstep(trace, length, observe)


def _philox(address, round_, quarter, key):
    m0, m1, low, half = (
        np.uint64(0xD2511F53),
        np.uint64(0xCD9E8D57),
        np.uint64(0xFFFFFFFF),
        np.uint64(32),
    )
    zero = np.zeros_like(address)
    c0, c1, c2, c3, (k0, k1) = (
        address,
        zero + np.uint64(round_),
        zero + np.uint64(quarter),
        zero + np.uint64(POLICY),
        key,
    )
    for _ in range(10):
        p0, p1 = m0 * c0, m1 * c2
        c0, c1, c2, c3 = (p1 >> half) ^ c1 ^ k0, p1 & low, (p0 >> half) ^ c3 ^ k1, p0 & low
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & low, (k1 + np.uint64(0xBB67AE85)) & low
    return c0, c1, c2, c3
