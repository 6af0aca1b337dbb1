"""Replay: the rounds of a policy on a recording."""

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numba import types

from simspec.cost.model import CostModel
from simspec.cost.rounds import CostTables, next_backlog, round_seconds
from simspec.numerics.compile import borrowed, specialize
from simspec.numerics.rng import POLICY, block, check_seed
from simspec.policy.policy import Policy, PolicyError, Stepper, observe_nothing, walk
from simspec.trace.acceptance import drawn_run, drawn_trace
from simspec.trace.quantization import table
from simspec.trace.trace import Rounds, Trace

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


def replay(trace: Trace, policy: Policy, seed: int = 0, cost: CostModel | None = None) -> Rounds:
    """The rounds of this policy on this recording, exactly; under the rejection rule exact in
    distribution.

    seed keys the policy's draws together with each sequence's address, so that other sequences and
    threads do not matter. cost (default CostModel.from_ratio(0.1, K)) is what `observe` receives;
    most policies ignore it. See `drawn_run` for the rejection rule. TraceError for a feature that
    the trace lacks, PolicyError for features under the rejection rule, ValueError for an invalid
    seed or a cost that is too short.
    """
    return next(replays(trace, policy, (seed,), cost))


def replays(
    trace: Trace,
    policy: Policy,
    seeds: Iterable[int],
    cost: CostModel | None = None,
    adapt: Callable[[Recording], Recording] | None = None,
) -> Iterator[Rounds]:
    """`replay` with each of these seeds: under the rejection rule each draws acceptance anew.

    adapt: changes what the compiled loop reads, such as the rows where an engine drafts.
    """
    if not isinstance(policy, Policy):
        name = getattr(policy, "name", policy)
        raise PolicyError(
            f"{name!r} is no policy of chains: "
            "replay_tree() takes trees, as do simspec sweep and run"
        )
    K, cost, columns, grids = prepare(trace, policy, cost)
    try_bounds(trace, policy, cost)
    loop = kernel(policy)
    for seed in seeds:
        arrays = policy_arrays(policy, K)
        output = Output(
            np.zeros(trace.sequences + 1, np.int64),
            *(np.empty(trace.rows, np.int64) for _ in range(4)),
        )
        drawn = recording(trace, columns, grids)._replace(run=drawn_run(trace, seed))
        if adapt is not None:
            drawn = adapt(drawn)
        loop(drawn, cost.tables, arrays, output, K, check_seed(seed), policy.scope == "stream")
        yield Rounds(output.offset, *(array[: output.offset[-1]] for array in output[1:]))


def rounds_at_rows(trace: Trace, policy: Policy, cost: CostModel | None = None) -> Rounds:
    """Round t of N: the one that a policy without memory makes from row t; errors of `replay`.

    PolicyError for a policy that observes or draws, and under the rejection rule, which draws.
    """
    plain = isinstance(policy, Policy) and policy.observe is observe_nothing and not policy.random
    if not plain or trace.ratio is not None:
        raise PolicyError(
            f"policy {policy.name!r} or rule {trace.meta.rule!r} remembers or draws: expected one "
            "such as fixed:3 or entropy, on a greedy or coupled recording"
        )
    K, cost, columns, grids = prepare(trace, policy, cost)
    try_bounds(trace, policy, cost)
    lengths, rows = np.diff(trace.offset), np.arange(trace.rows)
    # every row is a sequence of one row, with the budget that is left there
    alone = recording(trace, columns, grids)._replace(
        offset=np.arange(trace.rows + 1), address=np.repeat(trace.sequence, lengths),
        budget=np.repeat(trace.budget + trace.offset[:-1], lengths) - rows,
    )  # fmt: skip
    output = Output(np.zeros(trace.rows + 1, np.int64), *np.empty((4, trace.rows), np.int64))
    kernel(policy)(alone, cost.tables, policy_arrays(policy, K), output, K, check_seed(0), False)
    return Rounds(*output)


TRIED: set[Any] = set()
"""Policies whose bounds a trial run of this process has checked."""
TRIAL = 64
"""Rounds of a trial run."""


def try_bounds(trace: Trace, policy: Policy, cost: CostModel) -> None:
    """Runs the first rounds of a user's policy with checked indices, once for each length of
    drafts.

    PolicyError for an index beyond an array, which compiled loops do not notice.
    """
    if policy.built_in:
        return
    functions = policy.draft_more, policy.observe
    key = (*functions, policy.params, policy.state0, policy.longest(trace.K), len(policy.reads))
    if key not in TRIED:
        stepper = Stepper(policy, trace.K, 0, cost, trace.meta.features)
        for _ in islice(walk(stepper, drawn_trace(trace)), TRIAL):
            pass
        TRIED.add(key)


def recording(trace: Trace, columns: np.ndarray, grids: np.ndarray) -> Recording:
    """A trace as the compiled loop takes it, with `columns` and `grids` of `prepare`."""
    return Recording(
        trace.offset,
        trace.budget,
        trace.sequence,
        trace.depth,
        trace.run,
        trace.feature,
        columns,
        grids,
    )


def policy_arrays(policy: Policy, K: int) -> PolicyArrays:
    """A policy's parameters and fresh state, and float64[K, F] for the features it reads."""
    params, initial = policy.start()
    return PolicyArrays(params, initial, initial.copy(), np.full((K, len(policy.reads)), np.nan))


def prepare(
    trace: Trace, policy: Policy, cost: CostModel | None = None
) -> tuple[int, CostModel, np.ndarray, np.ndarray]:
    """(longest draft, the policy's costs, columns int64[F], grids float64[F, 256]); the errors of
    `replay`.
    """
    if trace.ratio is not None and policy.reads:
        raise PolicyError(
            f"policy {policy.name!r} reads {policy.reads[0]!r}: a recording of the rejection rule "
            "replays in distribution only, and only policies "
            "that read no features: take a greedy or coupled recording"
        )
    if trace.ratio is not None and policy.anticipates:
        raise PolicyError(
            f"policy {policy.name!r} anticipates, and the rejection rule refuses it: take a greedy "
            "or coupled recording"
        )
    K = policy.longest(trace.K)
    cost = CostModel.from_ratio(0.1, max(K, 1)) if cost is None else cost
    if cost.K < K:
        raise ValueError(
            f"cost {cost.name!r} prices drafts up to {cost.K}, policy {policy.name!r} drafts up to "
            f"{K}: measure further"
        )
    columns = trace.features(policy.reads)
    grids = dict(trace.meta.features)
    tables = np.array([table(grids[name]) for name in policy.reads]).reshape(-1, 256)
    return K, cost.reading(policy.reads), columns, tables
