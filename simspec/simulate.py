"""Replay: what a policy would have done on a recording, round by round."""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numba import types

from simspec.compile_cache import cached_njit
from simspec.cost import CostModel, next_backlog, round_seconds
from simspec.policy import Policy, PolicyError
from simspec.quantization import table
from simspec.rng import ACCEPT, POLICY, block, check_seed
from simspec.specialize import borrowed, specialize
from simspec.trace import Trace


@dataclass(frozen=True, eq=False)
class Rounds:
    """What happened, from the simulator or from an engine: `==` between the two is the whole proof.

    | field    | dtype, shape | meaning                                                          |
    | -------- | ------------ | ------------------------------------------------------------------ |
    | offset   | int64[S + 1] | rounds offset[s] .. offset[s + 1] - 1 belong to sequence s           |
    | row      | int64[R]     | row of the trace at which the round starts                         |
    | computed | int64[R]     | draft tokens computed (paid for)                                   |
    | drafted  | int64[R]     | of these, submitted to the target: computed or computed - 1         |
    | accepted | int64[R]     | of these, emitted; committed tokens are one more, see `committed`   |
    """

    offset: np.ndarray
    row: np.ndarray
    computed: np.ndarray
    drafted: np.ndarray
    accepted: np.ndarray

    def __len__(self):
        return len(self.row)

    def __eq__(self, other):
        return isinstance(other, Rounds) and all(
            np.array_equal(getattr(self, name), getattr(other, name))
            for name in self.__dataclass_fields__
        )

    @classmethod
    def join(cls, sequences, start=None) -> "Rounds":
        """From one int64[R_s, 4] per sequence with columns (row, computed, drafted, accepted).

        start[s] is added to the rows of sequence s: pass trace.offset when rows count from the sequence's start.
        """
        sequences = [np.asarray(rounds, dtype=np.int64).reshape(-1, 4) for rounds in sequences]
        offset = np.concatenate(([0], np.cumsum([len(rounds) for rounds in sequences]))).astype(
            np.int64
        )
        columns = np.concatenate(sequences) if sequences else np.zeros((0, 4), np.int64)
        row, computed, drafted, accepted = (np.ascontiguousarray(column) for column in columns.T)
        if start is not None:
            row = row + np.repeat(np.asarray(start)[: len(sequences)], np.diff(offset))
        return cls(offset, row, computed, drafted, accepted)

    def select(self, indices, trace: Trace | None = None) -> "Rounds":
        """The rounds of these sequences; given the trace they were made on, rows are counted as in trace.select(indices)."""
        columns = np.stack((self.row, self.computed, self.drafted, self.accepted), axis=1)
        parts = [columns[self.offset[s] : self.offset[s + 1]] for s in indices]
        if trace is None:
            return Rounds.join(parts)
        length = np.diff(trace.offset)[np.asarray(indices)]
        return Rounds.join(
            parts, start=np.cumsum(length) - length - trace.offset[np.asarray(indices)]
        )


def committed(rounds: Rounds, trace: Trace) -> np.ndarray:
    """Tokens each round adds to the text, int64[R]: accepted + 1, or accepted if an accepted end token ends it."""
    ends = np.append(rounds.row, trace.rows)[1:]
    last = rounds.offset[1:] - 1
    ends[last] = trace.offset[1:]
    return ends - rounds.row


def drawn(trace: Trace, seed: int = 0) -> Trace:
    """One draw of what would have been accepted on a recording of the rejection rule, as an ordinary trace; others as they are.

    Given the text y ~ p, the draft token at slot j of a round from row t, its elders accepted, is accepted with chance
    ratio[t, j] = min(1, q(y) / p(y)), independently of all else (q(y) min(1, p(y) / q(y)) over p(y)). So run[t] is the number of
    leading j with u < ratio[t, j], u addressed by (seed, sequence, row in the sequence, j, ACCEPT). Rounds replayed on it have the law
    of real ones.
    """
    if trace.ratio is None:
        return trace
    run = np.zeros(trace.rows, np.uint8)
    _draw(trace.offset, trace.sequence, trace.depth, trace.ratio, check_seed(seed), run)
    meta = replace(trace.meta, rule="synthetic", prefix_only=False, top_k=0, top_p=1.0)
    return replace(trace, run=run, ratio=None, meta=meta)


def expected_run(trace: Trace) -> np.ndarray:
    """float64[N]: the mean run of each row: `run`, or under the rejection rule sum over j of prod_{i <= j} ratio[t, i].

    As far as depth and text go.
    """
    return _standing(trace).sum(axis=1)


def expected_accepted(trace: Trace, K: int) -> np.ndarray:
    """float64[N]: the mean number of accepted tokens of a draft of K from each row, the sum of `expected_run` over fewer slots.

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
    """float64[N, K]: the chance that the first j + 1 draft tokens of a row are all accepted; without ratio whether they are."""
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


def replay(trace: Trace, policy: Policy, seed: int = 0, cost: CostModel | None = None) -> Rounds:
    """The rounds that this policy makes on this recording: exact, not modelled; under the rejection rule exact in law, see `drawn`.

    seed keys the policy's draws together with each sequence's address, so neither other sequences nor threads
    matter. cost (default CostModel.from_ratio(0.1, K)) is what `observe` is told; most policies ignore it.
    Raises TraceError (a feature the trace lacks), PolicyError (features read under the rejection rule), ValueError (seed, cost too short).
    """
    if not isinstance(policy, Policy):
        name = getattr(policy, "name", policy)
        raise PolicyError(
            f"{name!r} is no policy of chains: replay_tree() takes trees, as do simspec sweep and run"
        )
    K, cost, columns, tables = prepare(trace, policy, cost)
    trace = drawn(trace, seed)
    params, state0 = policy.start()
    shown = np.full((K, len(policy.reads)), np.nan)
    outputs = tuple(np.empty(trace.rows, np.int64) for _ in range(4))
    offset = np.zeros(trace.sequences + 1, np.int64)
    kernel(policy)(
        trace.offset, trace.budget, trace.sequence, trace.depth, trace.run, trace.feature, columns, tables,
        cost.draft, cost.verify, cost.catch_up, cost.overhead, K, check_seed(seed),
        params, state0, state0.copy(), shown, policy.scope == "stream", offset, *outputs,
    )  # fmt: skip
    return Rounds(offset, *(output[: offset[-1]] for output in outputs))


def prepare(
    trace: Trace, policy: Policy, cost: CostModel | None = None
) -> tuple[int, CostModel, np.ndarray, np.ndarray]:
    """(longest draft, what the policy pays, columns int64[F] and grids float64[F, 256] of what it reads), or what `replay` raises."""
    if trace.ratio is not None and policy.reads:
        raise PolicyError(
            f"policy {policy.name!r} reads {policy.reads[0]!r}: a recording of the rejection rule replays in law only, and only policies "
            "that read no features: take a greedy or coupled recording"
        )
    if trace.ratio is not None and policy.anticipates:
        raise PolicyError(
            f"policy {policy.name!r} anticipates, and the rejection rule refuses it: take a greedy or coupled recording"
        )
    K = policy.longest(trace.K)
    cost = CostModel.from_ratio(0.1, max(K, 1)) if cost is None else cost
    if cost.K < K:
        raise ValueError(
            f"cost {cost.name!r} prices drafts up to {cost.K}, policy {policy.name!r} drafts up to {K}: measure further"
        )
    columns = trace.features(policy.reads)
    grids = dict(trace.meta.features)
    tables = np.array([table(grids[name]) for name in policy.reads]).reshape(-1, 256)
    return K, cost.reading(policy.reads), columns, tables


def kernel(policy: Policy):
    """The replay loop with this policy's functions compiled into it, from numba's disk cache if it was made before."""
    return _kernel(*policy.compiled(), policy.random, len(policy.reads))


@lru_cache(maxsize=512)
def _kernel(draft_more, observe, random, width):
    return specialize(_template, _SIGNATURE, random, width, draft_more=draft_more, observe=observe)


_INTS, _FLOATS, _BYTES = types.int64[::1], types.float64[::1], types.uint8[::1]
_SIGNATURE = types.void(
    _INTS, _INTS, _INTS, _BYTES, _BYTES, types.uint8[:, :, ::1], _INTS, types.float64[:, ::1],
    _FLOATS, _FLOATS, _FLOATS, types.float64, types.int64, types.uint64,
    _FLOATS, _FLOATS, _FLOATS, types.float64[:, ::1], types.boolean, _INTS, _INTS, _INTS, _INTS, _INTS,
)  # fmt: skip


# draft_more and observe are put among the globals by `specialize`; random and width (features shown) are constants.
def _template(key):
    def loop(
        offset, budget, address, depth, run, feature, columns, tables,
        draft, verify, catch_up, overhead, K, seed,
        params, state0, state, shown, stream, out_offset, out_row, out_computed, out_drafted, out_accepted,
    ):  # fmt: skip
        random, width = key[1], key[2]
        params, state, shown = borrowed(params), borrowed(state), borrowed(shown)
        r = 0
        for s in range(len(budget)):
            n = offset[s + 1] - offset[s]
            first, pos, backlog = r, 0, 0
            if not stream:
                state[:] = state0
            if random:
                n0, n1, n2, n3 = block(seed, address[s], 0, 0, POLICY)
            while pos < n:
                t = offset[s] + pos
                cap = min(K, budget[s] - pos - 1, np.int64(depth[t]))
                u0 = u1 = u2 = u3 = np.nan
                if random:  # one Philox block holds the draws of four slots; the next round's is on its way while this one branches
                    u0, u1, u2, u3 = n0, n1, n2, n3
                    n0, n1, n2, n3 = block(seed, address[s], r + 1 - first, 0, POLICY)
                computed = 0
                while True:
                    go, keep = draft_more(params, state, computed, shown, u0)  # noqa: F821
                    if not go or computed >= cap:
                        break
                    for f in range(width):
                        shown[computed, f] = tables[f, feature[t, computed, columns[f]]]
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
                for i in range(
                    K if width else 0
                ):  # all K rows: a loop of one length is never mispredicted
                    for f in range(width):
                        shown[i, f] = np.nan
                out_row[r], out_computed[r], out_drafted[r], out_accepted[r] = (
                    t,
                    computed,
                    drafted,
                    accepted,
                )
                r += 1
                pos += accepted + 1
            out_offset[s + 1] = r

    return loop
