"""Replay of a batch policy: lock steps in which one rule decides for all active requests."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simspec.cost.batch import StepSeconds, batch_cost
from simspec.cost.model import CostModel
from simspec.cost.table import CostTable
from simspec.numerics.rng import check_seed
from simspec.policy.batch import BatchPolicy, BatchStart, BatchStep, check_rule
from simspec.policy.policy import PolicyError
from simspec.replay.lock_step import BatchRules, StepPrices, Steps, contexts
from simspec.trace.acceptance import drawn_run
from simspec.trace.quantization import table
from simspec.trace.rounds import Rounds
from simspec.trace.trace import Trace

Integers = NDArray[np.int64]
MOST_ROUNDS = 1 << 27
"""Rounds of a replay, of all slots: about 5 GB."""


@dataclass(frozen=True)
class BatchRun:
    """The rounds and steps of a batch policy.

    | field | dtype, shape | meaning |
    | --- | --- | --- |
    | sequence | int64[P] | the sequence of each play: a slot decodes a sequence once |
    | rounds | Rounds | of all plays, slot by slot; their trace is trace.select(sequence) |
    | steps | Steps | share sums over the plays of a sequence |

    With refill every slot plays every sequence once, as `policy_steps` does, in its own number of
    steps. A slot that is ready goes around the file again until all are, so that the batch stays
    full: those steps are in `steps.load`, their rounds and shares are left out.
    """

    sequence: Integers
    rounds: Rounds
    steps: Steps


def batch_replay(
    trace: Trace,
    policy: BatchPolicy,
    cost: CostModel | CostTable,
    batch: int,
    context: float | None = None,
    rules: BatchRules | None = None,
    seed: int = 0,
) -> BatchRun:
    """The rounds of a batch policy, which depend on the other requests, and their steps, priced.

    Arguments as of `policy_steps`. The policy plans with the seconds of `step_seconds`. Under the
    rejection rule acceptance is drawn once for each sequence, with this seed. PolicyError for
    features under the rejection rule and for answers of a rule that cannot be, TraceError for a
    feature that the trace lacks, ValueError for what cannot be priced.
    """
    prices = StepPrices(cost, batch, rules or BatchRules(), context, policy.reads)
    K = check_batch_policy(trace, cost, policy)
    if batch * trace.rows > MOST_ROUNDS:
        raise ValueError(
            f"{batch} slots of {trace.rows} tokens are more than {MOST_ROUNDS} rounds: "
            "take a smaller batch, or fewer prompts"
        )
    seconds = step_seconds(trace, prices, K)
    rule = policy.rule(BatchStart(batch, K, seconds, int(check_seed(seed))))
    slots, steps = _Slots(trace, prices), []
    run, codes, grid = drawn_run(trace, seed), *_features(trace, policy, K)
    for active in slots.steps():
        row, left = slots.row[active], slots.left(active)
        length = rule.length(len(active))
        if not 0 <= length <= K:
            raise PolicyError(f"policy {policy.name!r} drafts {length}, expected 0 to {K} tokens")
        computed = np.minimum(np.minimum(length, left), trace.depth[row])
        shown = np.where(np.arange(K) < computed[:, None], grid[codes[row]], np.nan)
        step = BatchStep(active, slots.new[active], computed, shown)
        drafted = check_rule(policy.name, rule.submit(step), step)
        accepted = np.minimum(drafted, run[row]).astype(np.int64)
        rows = len(active) + int(drafted.sum())
        spent = seconds.of(len(active), int(computed.max()), rows)
        rule.observe(step, drafted, accepted, spent)
        steps.append((slots.lane(active), row, computed, drafted, accepted, *slots.about(active)))
        slots.advance(active, accepted + 1)
    return _run(trace, prices, [np.concatenate(column) for column in zip(*steps)])


def check_batch_policy(trace: Trace, cost: CostModel | CostTable, policy: BatchPolicy) -> int:
    """Its longest draft on this trace at these costs; the errors of `batch_replay`."""
    if trace.ratio is not None and policy.reads:
        raise PolicyError(
            f"policy {policy.name!r} reads {policy.reads[0]!r}, and a recording of the rejection "
            "rule replays in distribution only: take a greedy or coupled recording"
        )
    trace.features(policy.reads)
    return policy.longest(min(trace.K, cost.K))


def supported_batch_policies(
    trace: Trace, cost: CostModel | CostTable, policies: Sequence[BatchPolicy]
) -> tuple[list[BatchPolicy], list[str]]:
    """(those that this recording can serve, one note on each other)."""
    supported, notes = [], []
    for policy in policies:
        try:
            check_batch_policy(trace, cost, policy)
            supported.append(policy)
        except ValueError as error:
            notes.append(f"{policy.name} is left out: {error}")
    return supported, notes


def step_seconds(trace: Trace, prices: StepPrices, K: int) -> StepSeconds:
    """The seconds that a batch policy plans with: of the whole batch at its mean context."""
    sequence = np.repeat(np.arange(trace.sequences), np.diff(trace.offset))
    mean = contexts(trace, sequence, np.arange(trace.rows), prices.context).mean()
    cost = batch_cost(prices.cost, prices.batch, prices.context)
    return cost.by_rows(prices.batch, K, float(mean), prices.reads or (), prices.rules.captured)


def _features(trace: Trace, policy: BatchPolicy, K: int) -> tuple[Any, Any]:
    """(uint8[N, K] codes, float64[256] grid) of the feature that the policy reads."""
    if not policy.reads:
        return np.zeros((trace.rows, K), np.uint8), np.full(256, np.nan)
    (column,) = trace.features(policy.reads)
    return trace.feature[:, :K, column], table(dict(trace.meta.features)[policy.reads[0]])


class _Slots:
    """Which sequence each slot decodes, and where."""

    def __init__(self, trace: Trace, prices: StepPrices) -> None:
        self.trace, self.batch = trace, int(prices.batch)
        self.refill = prices.rules.ends == "refill"
        self.play, self.group = np.zeros(self.batch, np.int64), 0
        self.sequence, self.row = (np.zeros(self.batch, np.int64) for _ in range(2))
        self.new = np.ones(self.batch, bool)

    def steps(self) -> Iterator[Integers]:
        """The active slots of each step."""
        every, sequences = np.arange(self.batch), self.trace.sequences
        if self.refill:
            self._start(every, every * sequences // self.batch)
            while (self.play < sequences).any():
                yield every
            return
        while self.group * self.batch < sequences:
            self._start(every, (self.group * self.batch + every) % sequences)
            while len(active := np.flatnonzero(self.play == self.group)):
                yield active
            self.group += 1

    def _start(self, slots: Integers, sequence: Integers) -> None:
        self.sequence[slots] = sequence
        self.row[slots], self.new[slots] = self.trace.offset[sequence], True

    def left(self, active: Integers) -> Integers:
        """Tokens that a draft may have, by the budget."""
        sequence = self.sequence[active]
        done = self.row[active] - self.trace.offset[sequence]
        left: Integers = self.trace.budget[sequence] - done - 1
        return left

    def lane(self, active: Integers) -> Integers:
        return self.group * self.batch + active

    def about(self, active: Integers) -> tuple[Any, Any, Any]:
        """(sequence, first round of a play, whether the play counts)."""
        counts = (self.play[active] < self.trace.sequences) | (not self.refill)
        return self.sequence[active], self.new[active], counts

    def advance(self, active: Integers, tokens: Integers) -> None:
        self.row[active] += tokens
        self.new[active] = False
        ended = active[self.row[active] >= self.trace.offset[self.sequence[active] + 1]]
        self.play[ended] += 1
        if self.refill:
            self._start(ended, (self.sequence[ended] + 1) % self.trace.sequences)


def _run(trace: Trace, prices: StepPrices, columns: list[Any]) -> BatchRun:
    """The run of these rounds, given step by step."""
    lane = columns[0]
    order = np.argsort(lane, kind="stable")
    row, computed, drafted, accepted, sequence, new, counts = (
        column[order] for column in columns[1:]
    )
    length = np.bincount(lane).reshape(-1, prices.batch)
    start = (np.cumsum(length) - length.ravel()).reshape(length.shape)
    offset = np.append(np.flatnonzero(new), len(new))
    rounds = Rounds(offset, row, computed, drafted, accepted)
    context = contexts(trace, sequence, row, prices.context)
    load, seconds, of_round = prices.lanes(start, length, rounds, context)
    share = np.bincount(sequence[counts], of_round[counts], trace.sequences).astype(np.float64)
    plays = np.repeat(np.arange(len(offset) - 1), np.diff(offset))[counts]
    played, of_play = np.unique(plays, return_inverse=True)
    ends = np.concatenate(([0], np.cumsum(np.bincount(of_play))))
    chosen = sequence[offset[played]]
    moved = np.cumsum(np.diff(trace.offset)[chosen]) - trace.offset[chosen + 1]
    columns = [column[counts] for column in (row, computed, drafted, accepted)]
    columns[0] = columns[0] + moved[of_play]
    return BatchRun(chosen, Rounds(ends, *columns), Steps(load, seconds, share))
