"""Replay: the rounds of a policy on a recording."""

import numpy as np

from simspec.acceptance import drawn_trace
from simspec.cost import CostModel
from simspec.policy import Policy, PolicyError
from simspec.quantization import table
from simspec.replay_kernel import kernel
from simspec.rng import check_seed
from simspec.rounds import Rounds
from simspec.trace import Trace


def replay(trace: Trace, policy: Policy, seed: int = 0, cost: CostModel | None = None) -> Rounds:
    """The rounds of this policy on this recording, exactly; under the rejection rule exact in
    distribution.

    seed keys the policy's draws together with each sequence's address, so that other sequences and
    threads do not matter. cost (default CostModel.from_ratio(0.1, K)) is what `observe` receives;
    most policies ignore it. See
    `drawn_trace` for the rejection rule. TraceError for a feature that the trace lacks, PolicyError
    for features under the rejection rule, ValueError for an invalid seed or a cost that is too
    short.
    """
    if not isinstance(policy, Policy):
        name = getattr(policy, "name", policy)
        raise PolicyError(
            f"{name!r} is no policy of chains: "
            "replay_tree() takes trees, as do simspec sweep and run"
        )
    K, cost, columns, tables = prepare(trace, policy, cost)
    trace = drawn_trace(trace, seed)
    params, state0 = policy.start()
    shown = np.full((K, len(policy.reads)), np.nan)
    outputs = tuple(np.empty(trace.rows, np.int64) for _ in range(4))
    offset = np.zeros(trace.sequences + 1, np.int64)
    kernel(policy)(
        trace.offset, trace.budget, trace.sequence, trace.depth, trace.run, trace.feature,
        columns, tables,
        cost.draft, cost.verify, cost.catch_up, cost.overhead, K, check_seed(seed),
        params, state0, state0.copy(), shown, policy.scope == "stream", offset, *outputs,
    )  # fmt: skip
    return Rounds(offset, *(output[: offset[-1]] for output in outputs))


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
