"""Acceptance on a recording: drawn under the rejection rule, and expected."""

from dataclasses import replace

import numpy as np

from simspec.compile_cache import cached_njit
from simspec.rng import ACCEPT, block, check_seed
from simspec.trace import Trace


def drawn_trace(trace: Trace, seed: int = 0) -> Trace:
    """One draw of what would have been accepted on a recording of the rejection rule, as an
    ordinary trace; others as they are.

    Given the text y ~ p, the draft token at slot j of a round from row t, its elders accepted, is
    accepted with chance ratio[t, j] = min(1, q(y) / p(y)), independently of all else (q(y) min(1,
    p(y) / q(y)) over p(y)). So run[t] is the number of leading j with u < ratio[t, j], u addressed
    by (seed, sequence, row in the sequence, j, ACCEPT). Rounds replayed on it have the law of real
    ones.
    """
    if trace.ratio is None:
        return trace
    run = np.zeros(trace.rows, np.uint8)
    _draw(trace.offset, trace.sequence, trace.depth, trace.ratio, check_seed(seed), run)
    meta = replace(trace.meta, rule="synthetic", prefix_only=False, top_k=0, top_p=1.0)
    return replace(trace, run=run, ratio=None, meta=meta)


def expected_accepted_length(trace: Trace) -> np.ndarray:
    """float64[N]: the mean run of each row: `run`, or under the rejection rule sum over j of
    prod_{i <= j} ratio[t, i].

    As far as depth and text go.
    """
    return _standing(trace).sum(axis=1)


def expected_accepted(trace: Trace, K: int) -> np.ndarray:
    """float64[N]: the mean number of accepted tokens of a draft of K from each row, the sum of
    `expected_accepted_length` over fewer slots.

    They are min(K, budget left - 1). ValueError for K outside 0 .. the trace's.
    """
    if not 0 <= K <= trace.K:
        raise ValueError(f"K is {K}, expected 0 to {trace.K}: the recording goes no deeper")
    length = np.diff(trace.offset)
    room = np.repeat(trace.budget + trace.offset[:-1], length) - np.arange(trace.rows) - 1
    return np.where(np.arange(trace.K) < np.minimum(K, room)[:, None], _standing(trace), 0.0).sum(
        axis=1
    )


def _standing(trace):
    """float64[N, K]: the chance that the first j + 1 draft tokens of a row are all accepted;
    without ratio whether they are.
    """
    slot = np.arange(trace.K)
    if trace.ratio is None:
        return (slot < trace.run[:, None]).astype(np.float64)
    left = np.repeat(trace.offset[1:], np.diff(trace.offset)) - np.arange(trace.rows)
    live = slot < np.minimum(trace.depth, left)[:, None]
    return np.where(live, trace.ratio.astype(np.float64), 0.0).cumprod(axis=1)


@cached_njit
def _draw(offset, address, depth, ratio, seed, run):
    for s in range(offset.shape[0] - 1):
        n = offset[s + 1] - offset[s]
        for pos in range(n):
            t = offset[s] + pos
            most = min(np.int64(depth[t]), n - pos)
            held = 0
            while held < most:
                u = block(seed, address[s], pos, held >> 2, ACCEPT)
                if u[held & 3] >= ratio[t, held]:
                    break
                held += 1
            run[t] = held
