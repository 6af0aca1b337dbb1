"""Time of a simulated round: python tests/bench/replay.py [repetitions]

500 sequences x 512 rows, K = 16, acceptance 0.7, one thread, processor time. Each repetition draws anew (another seed, another
recording of two), or the branch predictor learns the path and flatters the figure. Prints the best and the median
nanoseconds per round of `replay` as users call it, then what the kind of state costs: the same Beta-TS loop with the
package's mutable array and with a tuple passed in and out.
"""

import statistics
import sys
import time

import numpy as np
from numba import njit, types

from simspec import CostModel, replay, synthetic
from simspec.policies import beta_ts, confidence, fixed, hf_heuristic, oracle
from simspec.rng import POLICY, block

F8 = types.float64
PAIR = types.UniTuple(F8, 2)
ARRAY = types.Array(F8, 1, "C")
GRID = types.Array(F8, 2, "C")
BOTH = types.UniTuple(types.boolean, 2)
BYTES = types.Array(types.uint8, 1, "C")


def timed(call, repetitions):
    """(best, median) ns per round of call(i) -> rounds, after one warm-up."""
    call(0)
    found = []
    for i in range(repetitions):
        start = time.process_time()
        rounds = call(i + 1)
        found.append((time.process_time() - start) / rounds * 1e9)
    return min(found), statistics.median(found)


@njit(BOTH(ARRAY, ARRAY, types.int64, GRID, F8))
def more_array(params, state, slot, features, u):
    if slot == 0:
        return True, True
    return u < state[0] / (state[0] + state[1]), True


@njit(types.void(ARRAY, ARRAY, types.int64, types.int64, types.int64, GRID, F8))
def observe_array(params, state, computed, drafted, accepted, features, cost):
    state[0] += accepted
    state[1] += min(accepted + 1, drafted) - accepted


@njit(types.Tuple((types.boolean, types.boolean, PAIR))(PAIR, PAIR, types.int64, GRID, F8))
def more_tuple(params, state, slot, features, u):
    if slot == 0:
        return True, True, state
    return u < state[0] / (state[0] + state[1]), True, state


@njit(PAIR(PAIR, PAIR, types.int64, types.int64, types.int64, GRID, F8))
def observe_tuple(params, state, computed, drafted, accepted, features, cost):
    return state[0] + accepted, state[1] + (min(accepted + 1, drafted) - accepted)


@njit(types.int64(types.FunctionType(BOTH(ARRAY, ARRAY, types.int64, GRID, F8)), types.FunctionType(
    types.void(ARRAY, ARRAY, types.int64, types.int64, types.int64, GRID, F8)), BYTES, types.int64, ARRAY, GRID))  # fmt: skip
def loop_array(more, observe, run, seed, params, features):
    state = np.ones(2)
    t = rounds = 0
    while t < len(run):
        computed = 0
        u0 = u1 = u2 = u3 = 0.0
        while True:
            if computed & 3 == 0:
                u0, u1, u2, u3 = block(seed, 0, rounds, computed >> 2, POLICY)
            else:
                u0, u1, u2 = u1, u2, u3
            go, _ = more(params, state, computed, features, u0)
            if not go or computed >= 16:
                break
            computed += 1
        accepted = min(computed, np.int64(run[t]))
        observe(params, state, computed, computed, accepted, features, 1.0)
        t += accepted + 1
        rounds += 1
    return rounds


@njit(types.int64(types.FunctionType(types.Tuple((types.boolean, types.boolean, PAIR))(PAIR, PAIR, types.int64, GRID, F8)),
    types.FunctionType(PAIR(PAIR, PAIR, types.int64, types.int64, types.int64, GRID, F8)),
    BYTES, types.int64, PAIR, GRID))  # fmt: skip
def loop_tuple(more, observe, run, seed, params, features):
    state = (1.0, 1.0)
    t = rounds = 0
    while t < len(run):
        computed = 0
        u0 = u1 = u2 = u3 = 0.0
        while True:
            if computed & 3 == 0:
                u0, u1, u2, u3 = block(seed, 0, rounds, computed >> 2, POLICY)
            else:
                u0, u1, u2 = u1, u2, u3
            go, _, state = more(params, state, computed, features, u0)
            if not go or computed >= 16:
                break
            computed += 1
        accepted = min(computed, np.int64(run[t]))
        state = observe(params, state, computed, computed, accepted, features, 1.0)
        t += accepted + 1
        rounds += 1
    return rounds


def main(repetitions: int) -> None:
    """Print the tables."""
    traces = [synthetic.iid(0.7, 500, 512, 16, seed=seed, confidence=True) for seed in (1, 2)]
    cost = CostModel.from_ratio(0.1, 16)
    print(f"{'policy':<24}{'best':>8}{'median':>8}   ns per round, tokens per round")
    for policy in (fixed(0), fixed(3), fixed(8), confidence(0.4), hf_heuristic(5), beta_ts(), [oracle(t, cost) for t in traces]):
        each = policy if isinstance(policy, list) else [policy] * 2
        best, median = timed(lambda i: len(replay(traces[i % 2], each[i % 2], seed=i, cost=cost)), repetitions)
        tokens = traces[0].rows / len(replay(traces[0], each[0], cost=cost))
        print(f"{each[0].name:<24}{best:8.1f}{median:8.1f}   {tokens:.2f}")
    grid, ones = np.full((16, 1), np.nan), np.ones(2)
    for name, call in (
        ("state: array", lambda i: loop_array(more_array, observe_array, traces[i % 2].run, i, ones, grid)),
        ("state: tuple", lambda i: loop_tuple(more_tuple, observe_tuple, traces[i % 2].run, i, (1.0, 1.0), grid)),
    ):
        best, median = timed(call, repetitions)
        print(f"{name:<24}{best:8.1f}{median:8.1f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
