"""Speedup that the recorded signals could give: a stopping rule fitted to the very recording."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simspec.cost.model import CostModel
from simspec.numerics.compile import cached_njit
from simspec.policies.fixed import fixed
from simspec.policies.thompson import cost_ts
from simspec.policy.policy import Array, Go, Policy
from simspec.replay.evaluation import halves
from simspec.replay.replay import replay
from simspec.trace.acceptance import drawn_trace
from simspec.trace.quantization import decode, table
from simspec.trace.trace import Rounds, Trace

HISTORY, PRODUCT, LAST = 12, 12, 8
"""Bins of the running acceptance, of the chain's product of confidences, and of the last one."""
WIDTH = 0.35
"""Of a bin of -ln(product)."""
WEIGHT, DRIFT = 0.3, 0.05
"""Of a round in the running acceptance; of the way back to 1/2 after a round without drafts."""
TURNS = 8
FIXED = 5
"""Fixed lengths whose rounds the first turn is fitted to."""
LEARNERS = (cost_ts(), cost_ts("depth"), cost_ts(greedy=True, decay=0.5))
"""Policies without signals, whose rounds it is fitted to as well."""
_HEAD = 1
Visited = tuple[NDArray[np.int64], NDArray[np.int64]]
"""int64[R] rows at which rounds start, int64[R, K] cells of their decisions."""
# params: K, then go by cell. state: running acceptance, product of confidences in this round.


@dataclass(frozen=True)
class Reachable:
    """Speedups over plain decoding of fitted stopping rules."""

    # fitted and counted on the same prompts: an upper estimate of what signals give
    hindsight: float
    crossed: float  # fitted on one half of the prompts and counted on the other, both ways
    policy: Policy  # the rule of `hindsight`


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
    """(the rule, its modeled seconds) of the fastest; reading confidences is left out where it
    costs.
    """
    recorded = "confidence" in dict(trace.meta.features)
    signals: list[tuple[str, ...]] = [("confidence",)] if recorded else [()]
    if recorded and cost.feature:
        signals.append(())
    lengths = [fixed(k) for k in range(trace.K + 1)]
    learners = [learner.resolve(trace, cost) for learner in LEARNERS]
    first = [
        (policy, *_seconds(trace, policy, cost))
        for policy in (*lengths, *learners)
        if isinstance(policy, Policy)
    ]
    return min((_fitted(trace, cost, r, first) for r in signals), key=lambda found: found[1])


def _fitted(
    trace: Trace,
    cost: CostModel,
    reads: tuple[str, ...],
    first: Sequence[tuple[Policy, float, Rounds]],
) -> tuple[Policy, float]:
    """(the rule, its seconds) of the fastest turn, or of the policies that it begins with."""
    confidence = _confidences(trace) if reads else np.ones((trace.rows, trace.K))
    best = min(((policy, seconds) for policy, seconds, _ in first), key=lambda found: found[1])
    replays = [rounds for *_, rounds in first[1 : min(FIXED, trace.K) + 1]]
    replays += [rounds for *_, rounds in first[-len(LEARNERS) :]]
    seen = [_visited(trace, rounds, confidence) for rounds in replays]
    charged = cost.reading(reads)
    for _ in range(TURNS):
        go = _fit(trace, charged, seen, trace.rows / best[1])
        rule = _rule(go, trace.K, reads)
        seconds, rounds = _seconds(trace, rule, cost)
        seen.append(_visited(trace, rounds, confidence))
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


def _visited(trace: Trace, rounds: Rounds, confidence: NDArray[np.float64]) -> Visited:
    """The rows at which these rounds start, and the cell of each of their decisions."""
    row, product = rounds.row, np.ones(len(rounds))
    history = running_acceptance(rounds.offset, rounds.drafted, rounds.accepted)
    cells = np.empty((len(row), trace.K), np.int64)
    for j in range(trace.K):
        last = confidence[row, j - 1] if j else product
        product = product * last
        cells[:, j] = _cell_of_all(j, history, product, last)
    return row, cells


def _fit(trace: Trace, cost: CostModel, seen: Sequence[Visited], rate: float) -> NDArray[np.bool_]:
    """Whether to go on in each cell, by backward induction over the rounds of all these replays."""
    row, cells = (np.concatenate(part) for part in zip(*seen))
    left = np.repeat(trace.offset[1:], np.diff(trace.offset)) - np.arange(trace.rows)
    room = np.minimum(trace.depth.astype(np.int64), left)[row]
    step = np.diff(cost.draft[: trace.K + 1]) + np.diff(cost.verify[: trace.K + 1])
    go: NDArray[np.bool_] = _induction(cells, trace.run[row], room, rate * step)
    return go


@cached_njit
def _induction(cells: Array, run: Array, room: Array, price: Array) -> Array:
    """bool: whether the rounds of each cell gain by going on, the last slot first."""
    go = np.zeros(cells.shape[1] * HISTORY * PRODUCT * LAST, np.bool_)
    gain, value = np.zeros(len(run)), np.zeros(len(run))
    for j in range(cells.shape[1] - 1, -1, -1):
        total = np.zeros(len(go))
        for r in range(len(run)):
            gain[r] = (1.0 if run[r] > j else 0.0) - price[j] + value[r]
            if room[r] > j:
                total[cells[r, j]] += gain[r]
        for i in range(len(go)):
            go[i] |= total[i] > 0.0
        for r in range(len(run)):
            value[r] = gain[r] if room[r] > j and go[cells[r, j]] else 0.0
    return go


@cached_njit
def cell(slot: int, history: float, product: float, last: float) -> int:
    """The cell of a decision at `slot`, given the running acceptance and the confidences so far."""
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
        return (1.0 - DRIFT) * history + DRIFT * 0.5
    return (1.0 - WEIGHT) * history + WEIGHT * (accepted / min(accepted + 1, drafted))


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
