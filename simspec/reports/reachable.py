"""What the recorded signals could give: a stopping rule fitted to the very recording."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simspec.acceptance import drawn_trace
from simspec.compile_cache import cached_njit
from simspec.cost import CostModel
from simspec.policies.fixed import fixed
from simspec.policy import Policy
from simspec.policy_functions import Array, Go
from simspec.quantization import decode, table
from simspec.reports.cross_fit import halves
from simspec.rounds import Rounds
from simspec.simulate import replay
from simspec.trace import Trace

HISTORY, PRODUCT, LAST = 12, 12, 8
"""Bins of the running acceptance, of the chain's product of confidences, and of the last one."""
WIDTH = 0.35
"""Of a bin of -ln(product)."""
WEIGHT, DRIFT = 0.1, 0.05
"""Of a round in the running acceptance; of the way back to 1/2 after a round without drafts."""
TURNS = 8
FIXED = 5
"""Fixed lengths whose rounds the first turn is fitted to."""
_HEAD = 1
# params: K, then go by cell. state: running acceptance, product of confidences in this round.


@dataclass(frozen=True)
class Reachable:
    """Speedups over plain decoding of fitted stopping rules.

    | field | meaning |
    | --- | --- |
    | hindsight | fitted and counted on the same prompts: an upper estimate of what signals give |
    | crossed | fitted on one half of the prompts and counted on the other, both ways |
    | policy | the rule of `hindsight` |
    """

    hindsight: float
    crossed: float
    policy: Policy


def reachable(trace: Trace, cost: CostModel, seed: int = 0) -> Reachable:
    """The best of rules that stop by depth, confidences and the acceptance of earlier rounds.

    go(cell) where the mean of accepted - rate x seconds + value of going on, over the rounds of
    that cell, is above 0; rate is that of the rule itself, found by iteration (Dinkelbach 1967).
    Under the rejection rule one draw of the seed is taken. The cells are coarse, so a finer rule
    may give more; fitted in hindsight they give more than can be learned. ValueError as for
    `replay`.
    """
    trace = drawn_trace(trace, seed)
    cost = cost.truncate(trace.K) if cost.K > trace.K else cost
    policy, seconds = fitted_rule(trace, cost)
    spent = 0.0
    for fit, rest in halves(trace):
        rule, _ = fitted_rule(trace.select(fit), cost)
        spent += _seconds(trace.select(rest), rule, cost)[0]
    plain = trace.rows * cost.baseline
    return Reachable(plain / seconds, plain / spent, policy)


def fitted_rule(trace: Trace, cost: CostModel) -> tuple[Policy, float]:
    """(the rule, its modeled seconds) of the fastest turn; the best fixed length is the first."""
    reads = ("confidence",) if "confidence" in dict(trace.meta.features) else ()
    confidence = _confidences(trace) if reads else np.ones((trace.rows, trace.K))
    lengths = [(fixed(k), _seconds(trace, fixed(k), cost)) for k in range(trace.K + 1)]
    longest, (seconds, rounds) = min(lengths, key=lambda item: item[1][0])
    best, seen = (longest, seconds), [rounds for _, (_, rounds) in lengths[1 : FIXED + 1]]
    for _ in range(TURNS):
        go = _fit(trace, cost, seen, confidence, trace.rows / best[1])
        rule = _rule(go, trace.K, reads)
        seconds, rounds = _seconds(trace, rule, cost)
        seen.append(rounds)
        if seconds < best[1]:
            best = rule, seconds
    return best


def _seconds(trace: Trace, policy: Policy, cost: CostModel) -> tuple[float, Rounds]:
    rounds = replay(trace, policy, 0, cost)
    return float(cost.reading(policy.reads).seconds(rounds).sum()), rounds


def _confidences(trace: Trace) -> NDArray[np.float64]:
    """float64[T, K]: confidence of each drafted token."""
    assert trace.feature is not None
    (column,) = trace.features(("confidence",))
    return decode(trace.feature[:, :, column], table(dict(trace.meta.features)["confidence"]))


def _fit(
    trace: Trace,
    cost: CostModel,
    seen: Sequence[Rounds],
    confidence: NDArray[np.float64],
    rate: float,
) -> NDArray[np.bool_]:
    """Whether to go on in each cell, by backward induction over the rounds of all these replays."""
    row = np.concatenate([rounds.row for rounds in seen])
    left = np.repeat(trace.offset[1:], np.diff(trace.offset)) - np.arange(trace.rows)
    room = np.minimum(trace.depth.astype(np.int64), left)[row]
    run, product = trace.run[row], np.ones(len(row))
    history = np.concatenate([running_acceptance(r.offset, r.drafted, r.accepted) for r in seen])
    cells = np.empty((len(row), trace.K), np.int64)
    for j in range(trace.K):
        last = confidence[row, j - 1] if j else product
        product = product * last
        cells[:, j] = _cell_of_all(j, history, product, last)
    go = np.zeros(trace.K * HISTORY * PRODUCT * LAST, np.bool_)
    value = np.zeros(len(row))
    for j in reversed(range(trace.K)):
        step = cost.draft[j + 1] - cost.draft[j] + cost.verify[j + 1] - cost.verify[j]
        gain = (run > j) - rate * step + value
        possible = room > j
        total = np.bincount(cells[possible, j], weights=gain[possible], minlength=len(go))
        go |= total > 0
        value = np.where(possible & go[cells[:, j]], gain, 0.0)
    return go


@cached_njit
def cell(slot: int, history: float, product: float, last: float) -> int:
    """The cell of a decision at `slot`, after the confidences behind it."""
    h = min(int(history * HISTORY), HISTORY - 1)
    p = PRODUCT - 1 if product <= 0.0 else min(int(-np.log(product) / WIDTH), PRODUCT - 1)
    c = min(int(last * LAST), LAST - 1)
    if slot == 0:
        p, c = 0, 0
    return ((slot * HISTORY + h) * PRODUCT + max(p, 0)) * LAST + c


@cached_njit
def _cell_of_all(slot: int, history: Array, product: Array, last: Array) -> Array:
    cells = np.empty(len(history), np.int64)
    for r in range(len(history)):
        cells[r] = cell(slot, history[r], product[r], last[r])
    return cells


@cached_njit
def after_round(history: float, drafted: int, accepted: int) -> float:
    """The running acceptance after a round: accepted over tried tokens, averaged."""
    if drafted == 0:
        return history + DRIFT * (0.5 - history)
    return history + WEIGHT * (accepted / min(accepted + 1, drafted) - history)


@cached_njit
def running_acceptance(offset: Array, drafted: Array, accepted: Array) -> Array:
    """float64[R]: the running acceptance before each round, 1/2 at the start of a sequence."""
    history = np.empty(len(drafted))
    for s in range(len(offset) - 1):
        now = 0.5
        for r in range(offset[s], offset[s + 1]):
            history[r] = now
            now = after_round(now, drafted[r], accepted[r])
    return history


def _draft_more(params: Array, state: Array, slot: int, features: Array, u: float) -> Go:
    last = 1.0
    if slot == 0:
        state[1] = 1.0
    elif features.shape[1] > 0:
        last = features[slot - 1, 0]
        state[1] *= last
    if slot >= params[0]:
        return False, True
    return params[_HEAD + cell(slot, state[0], state[1], last)] > 0.0, True


def _observe(
    params: Array,
    state: Array,
    computed: int,
    drafted: int,
    accepted: int,
    features: Array,
    cost: float,
) -> None:
    state[0] = after_round(state[0], drafted, accepted)


def _rule(go: NDArray[np.bool_], K: int, reads: tuple[str, ...]) -> Policy:
    params = (float(K), *go.astype(np.float64))
    return Policy("fitted", _draft_more, _observe, params, (0.5, 1.0), reads=reads)
