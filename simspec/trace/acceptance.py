"""Acceptance on a recording: drawn under the rules rejection and block, and expected."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from simspec.numerics.compile import cached_njit
from simspec.numerics.formulas import block_accepted
from simspec.numerics.rng import ACCEPT, block, check_seed
from simspec.trace.trace import Trace

Array = np.ndarray


def chances(ratio: Array, rule: str) -> Array:
    """float32[N, K]: P(a slot's token is accepted | the output y, the slots before are accepted).

    Of ratio[N, K] = q(y) / p(y): min(1, ratio) under the rejection rule, which is
    q(y) min(1, p(y) / q(y)) over p(y). Under block: `block_accepted` over that of the slot before.
    """
    if rule != "block":
        return np.minimum(ratio, np.float32(1))
    reached = block_accepted(ratio)
    before = np.concatenate((np.ones((len(ratio), 1)), reached[:, :-1]), axis=1)
    found: Array = reached / np.where(before > 0, before, 1.0)
    return found.astype(np.float32)


def drawn_trace(trace: Trace, seed: int = 0) -> Trace:
    """One draw of the acceptance on a recording that holds ratios, as an ordinary trace; others
    unchanged.

    Given the sequence y ~ p, and that the draft tokens before slot j of a round from row t are
    accepted, the one at slot j is accepted with probability c[t, j] of `chances`, independently of
    all else. So run[t] is the number of leading j with u < c[t, j], u addressed by (seed, sequence,
    row in the sequence, j, ACCEPT). Rounds replayed on it are distributed as real ones.
    """
    if trace.ratio is None:
        return trace
    meta = replace(
        trace.meta, rule="synthetic", prefix_only=False, top_k=0, top_p=1.0, largest_ratio=1.0
    )
    return replace(trace, run=drawn_run(trace, seed), ratio=None, meta=meta)


def drawn_run(trace: Trace, seed: int) -> np.ndarray:
    """uint8[N]: the column `run` of `drawn_trace`; the recorded one under other rules."""
    if trace.ratio is None:
        return trace.run
    run = np.zeros(trace.rows, np.uint8)
    chance = chances(trace.ratio, trace.meta.rule)
    _draw(trace.offset, trace.sequence, trace.depth, chance, check_seed(seed), run)
    return run


def expected_accepted_length(trace: Trace, K: int | None = None) -> np.ndarray:
    """float64[N]: the mean accepted length of each row, as far as depth and sequence go; with K
    that of a draft of min(K, budget left - 1).

    It is `run`, or of a recording of ratios sum over j of prod_{i <= j} c[t, i], c of `chances`.
    ValueError for K outside 0 .. the trace's.
    """
    accepted = _acceptance(trace)
    if K is not None:
        if not 0 <= K <= trace.K:
            raise ValueError(f"K is {K}, expected 0 to {trace.K}: the recording goes no deeper")
        room = np.repeat(trace.budget + trace.offset[:-1], np.diff(trace.offset))
        drafted = np.minimum(K, room - np.arange(trace.rows) - 1)
        accepted = np.where(np.arange(trace.K) < drafted[:, None], accepted, 0.0)
    lengths: np.ndarray = accepted.sum(axis=1)
    return lengths


def _acceptance(trace: Trace) -> np.ndarray:
    """float64[N, K]: the probability that the first j + 1 draft tokens of a row are all
    accepted.
    """
    slot = np.arange(trace.K)
    if trace.ratio is None:
        return (slot < trace.run[:, None]).astype(np.float64)
    left = np.repeat(trace.offset[1:], np.diff(trace.offset)) - np.arange(trace.rows)
    drafted = slot < np.minimum(trace.depth, left)[:, None]
    chance = chances(trace.ratio, trace.meta.rule).astype(np.float64)
    return np.where(drafted, chance, 0.0).cumprod(axis=1)


@cached_njit
def _draw(offset: Array, address: Array, depth: Array, c: Array, seed: int, run: Array) -> None:
    for s in range(offset.shape[0] - 1):
        n = offset[s + 1] - offset[s]
        for pos in range(n):
            t = offset[s] + pos
            most = min(np.int64(depth[t]), n - pos)
            count, accepts = 0, True
            while accepts and count < most:
                # One Philox block holds the draws of four slots.
                for u in block(seed, address[s], pos, count >> 2, ACCEPT):
                    accepts = count < most and u < c[t, count]
                    if not accepts:
                        break
                    count += 1
            run[t] = count


def by_depth(trace: Trace) -> tuple[Array, Array]:
    """(accepted, tried), float64[S, K]: drafts that begin at each row and are right to depth j.

    n-alpha at depth j is accepted[j] / tried[j]. A row is tried at depth j if its first j - 1
    drafted tokens are right, and neither `depth` nor the sequence ends before j. Each row counts
    once, as if a round began there: the figure holds for no draft length in particular.
    """
    left = np.repeat(trace.offset[1:], np.diff(trace.offset)) - np.arange(trace.rows)
    right = _acceptance(trace)
    reached = np.concatenate((np.ones((trace.rows, 1)), right[:, :-1]), axis=1)
    possible = np.minimum(trace.depth, left)[:, None] > np.arange(trace.K)
    accepted, tried = (
        np.add.reduceat(flags * possible, trace.offset[:-1], axis=0, dtype=np.float64)
        for flags in (right, reached)
    )
    return accepted, tried


def depth_acceptance(trace: Trace) -> tuple[float, Array]:
    """(alpha, alphas float64[K]): the share of drafted tokens accepted, at any depth and at each.

    All rows count, given that the tokens before are accepted; NaN where no draft reached the depth.
    """
    accepted, tried = (counts.sum(axis=0) for counts in by_depth(trace))
    with np.errstate(invalid="ignore"):
        return (
            float(accepted.sum() / max(tried.sum(), 1)),
            accepted / np.where(tried > 0, tried, np.nan),
        )


def repeated_ngrams(texts: Iterable[np.ndarray], n: int = 8) -> float:
    """Share of n-grams that already occurred earlier in the same text."""
    seen = total = 0
    for text in texts:
        tokens = np.asarray(text).tolist()
        grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
        total += len(grams)
        seen += len(grams) - len(set(grams))
    return seen / total if total else 0.0
