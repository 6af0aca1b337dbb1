"""Replay: the rounds of a policy on a recording."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np

from simspec.cost.model import CostModel
from simspec.numerics.rng import check_seed
from simspec.policy.policy import Policy, PolicyError
from simspec.policy.stepper import Stepper, walk
from simspec.replay.kernel import Output, PolicyArrays, Recording, kernel
from simspec.trace.acceptance import drawn_run, drawn_trace
from simspec.trace.quantization import table
from simspec.trace.trace import Rounds, Trace


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
    state: np.ndarray | None = None,
    adapt: Callable[[Recording], Recording] | None = None,
) -> Iterator[Rounds]:
    """`replay` with each of these seeds: under the rejection rule each draws acceptance anew.

    state: of a policy whose scope is 'stream', before the trace; it then holds that after it.
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
        if state is not None:
            arrays = arrays._replace(state=state)
        output = Output(
            np.zeros(trace.sequences + 1, np.int64),
            *(np.empty(trace.rows, np.int64) for _ in range(4)),
        )
        drawn = recording(trace, columns, grids)._replace(run=drawn_run(trace, seed))
        if adapt is not None:
            drawn = adapt(drawn)
        loop(drawn, cost.tables, arrays, output, K, check_seed(seed), policy.scope == "stream")
        yield Rounds(output.offset, *(array[: output.offset[-1]] for array in output[1:]))


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
