"""The compiled replay loop."""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numba import types

from simspec.cost.rounds import CostTables, next_backlog, round_seconds
from simspec.numerics.compile import borrowed, specialize
from simspec.numerics.rng import POLICY, block
from simspec.policy.policy import Policy

# mypy: disable-error-code="name-defined,no-untyped-call"


_INTS, _FLOATS, _BYTES = types.int64[::1], types.float64[::1], types.uint8[::1]


class Recording(NamedTuple):
    """The arrays of a recording, and the features of each row that the policy reads.

    columns int64[F] are the features' columns in `feature`, grids float64[F, 256] their values.
    """

    offset: np.ndarray
    budget: np.ndarray
    address: np.ndarray
    depth: np.ndarray
    run: np.ndarray
    feature: np.ndarray
    columns: np.ndarray
    grids: np.ndarray


class PolicyArrays(NamedTuple):
    """Arguments of a policy's functions: parameters, state, and float64[K, F] features read."""

    params: np.ndarray
    initial: np.ndarray
    state: np.ndarray
    features: np.ndarray


class Output(NamedTuple):
    """Arrays that receive the rounds: int64[S + 1], then int64[rows of the recording] each."""

    offset: np.ndarray
    row: np.ndarray
    computed: np.ndarray
    drafted: np.ndarray
    accepted: np.ndarray


_SIGNATURE = types.void(
    types.NamedTuple(
        (
            *(_INTS, _INTS, _INTS, _BYTES, _BYTES),
            *(types.uint8[:, :, ::1], _INTS, types.float64[:, ::1]),
        ),
        Recording,
    ),
    types.NamedTuple((_FLOATS, _FLOATS, _FLOATS, types.float64), CostTables),
    types.NamedTuple((_FLOATS, _FLOATS, _FLOATS, types.float64[:, ::1]), PolicyArrays),
    types.NamedUniTuple(_INTS, 5, Output),
    *(types.int64, types.uint64, types.boolean),
)


def kernel(policy: Policy) -> Any:
    """The replay loop with this policy's functions compiled into it, cached on disk.

    loop(Recording, CostTables, PolicyArrays, Output, K, seed, stream) fills the output; `stream`
    keeps the policy's state from one sequence to the next.
    """
    return _kernel(*policy.compiled(), policy.random, len(policy.reads))


@lru_cache(maxsize=512)
def _kernel(draft_more: Any, observe: Any, random: bool, width: int) -> Any:
    return specialize(_template, _SIGNATURE, random, width, draft_more=draft_more, observe=observe)


# draft_more and observe are globals that `specialize` adds; random and width (features read) are
# compile-time constants.
def _template(key: Any) -> Any:
    def loop(recording, costs, policy, output, K, seed, stream):  # type: ignore[no-untyped-def]
        random, width = key[1], key[2]
        offset, budget, address, depth, run, feature, columns, grids = recording
        draft, verify, catch_up, overhead = costs
        out_offset, out_row, out_computed, out_drafted, out_accepted = output
        params, initial = policy.params, policy.initial
        params, state, shown = borrowed(params), borrowed(policy.state), borrowed(policy.features)
        r = 0
        for s in range(len(budget)):
            n = offset[s + 1] - offset[s]
            first, pos, backlog = r, 0, 0
            if not stream:
                for i in range(len(initial)):  # a slice's assignment takes long to compile
                    state[i] = initial[i]
            if random:
                n0, n1, n2, n3 = block(seed, address[s], 0, 0, POLICY)
            while pos < n:
                t = offset[s] + pos
                cap = min(K, budget[s] - pos - 1, np.int64(depth[t]))
                u0 = u1 = u2 = u3 = np.nan
                if random:
                    # One Philox block holds the draws of four slots. The next round's is computed
                    # while this one branches.
                    u0, u1, u2, u3 = n0, n1, n2, n3
                    n0, n1, n2, n3 = block(seed, address[s], r + 1 - first, 0, POLICY)
                computed = 0
                while True:
                    go, keep = draft_more(params, state, computed, shown, u0)  # noqa: F821
                    if not go or computed >= cap:
                        break
                    for f in range(width):
                        shown[computed, f] = grids[f, feature[t, computed, columns[f]]]
                    computed += 1
                    if random:
                        if computed & 3 == 0:
                            u0, u1, u2, u3 = block(
                                seed, address[s], r - first, computed >> 2, POLICY
                            )
                        else:
                            u0, u1, u2 = u1, u2, u3
                drafted = computed if go or keep or computed == 0 else computed - 1
                accepted = min(drafted, np.int64(run[t]))
                seconds = round_seconds(
                    draft, verify, catch_up, overhead, computed, drafted, backlog
                )
                backlog = next_backlog(backlog, computed, accepted)
                observe(params, state, computed, drafted, accepted, shown, seconds)  # noqa: F821
                # All K rows: a loop of one length is never mispredicted.
                for i in range(K if width else 0):
                    for f in range(width):
                        shown[i, f] = np.nan
                out_row[r], out_computed[r], out_drafted[r], out_accepted[r] = (
                    t,
                    computed,
                    drafted,
                    accepted,
                )
                r += 1
                pos += accepted + 1  # type: ignore[operator]
            out_offset[s + 1] = r

    return loop
