"""Batches: sequences decoded together, one round of each a step, priced; and batch policies."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simspec.cost.batch import BatchCost, StepLoad, StepSeconds, batch_cost
from simspec.cost.model import CostModel
from simspec.cost.rounds import backlogs
from simspec.cost.table import CostTable
from simspec.numerics.compile import cached_njit
from simspec.policy.batch import BatchPolicy, BatchStart, BatchStep, check_rule
from simspec.policy.policy import PolicyError
from simspec.trace.acceptance import drawn_run
from simspec.trace.quantization import table
from simspec.trace.trace import Rounds, Trace

# mypy: disable-error-code="no-untyped-def"

LARGEST = 4096
"""Sequences of the largest batch."""


@dataclass(frozen=True)
class Steps:
    """The steps of a batch, priced.

    A sequence is given an equal share of a plain step of the same batch, and of what the step takes
    longer a share by its computed tokens.
    """

    load: StepLoad  # StepLoad [T]: what the sequences of each step do
    seconds: NDArray[np.float64]  # float64[T]: of each step
    # float64[S]: seconds of each sequence, which sum to those of the steps
    share: NDArray[np.float64]
    plain: NDArray[np.float64]  # float64[T]: seconds of a plain step of the same sequences


def policy_steps(
    trace: Trace,
    rounds: Rounds,
    cost: CostModel | CostTable,
    batch: int,
    context: float | None = None,
    reads: Sequence[str] = (),
) -> Steps:
    """The rounds of a policy on this trace, decoded `batch` sequences at a time.

    The rounds are those of `replay`: each sequence has its own state, which others do not change; a
    state of scope stream passes through the sequences in file order. Slot i of B starts at sequence
    i S // B of the S and takes the next one at once, once around the file: the batch is always
    full, every slot meets every sequence, and all end in the same step. context: cached tokens of
    every sequence; None: its prompt and what it has committed. reads: the features that the policy
    reads. ValueError for a batch below 1 or above 4096, or one that the costs lack.
    """
    return _lock_steps(trace, rounds, StepPrices(cost, batch, context, tuple(reads)))


def plain_steps(
    trace: Trace, cost: CostModel | CostTable, batch: int, context: float | None = None
) -> Steps:
    """Plain decoding of the same sequences in the same slots; arguments as of `policy_steps`."""
    none = np.zeros(trace.rows, np.int64)
    rounds = Rounds(trace.offset, np.arange(trace.rows), none, none, none)
    return _lock_steps(trace, rounds, StepPrices(cost, batch, context, None))


@dataclass(frozen=True)
class StepPrices:
    """Prices of the steps of a batch; reads None: plain decoding.

    ValueError for a batch below 1 or above 4096.
    """

    cost: CostModel | CostTable
    batch: int
    context: float | None
    reads: tuple[str, ...] | None

    def __post_init__(self) -> None:
        if isinstance(self.batch, bool) or not isinstance(self.batch, (int, np.integer)):
            raise ValueError(f"batch is {self.batch!r}, expected a whole number")
        if not 1 <= self.batch <= LARGEST:
            raise ValueError(f"batch is {self.batch}, expected 1 to {LARGEST} sequences")

    @property
    def of_batch(self) -> BatchCost:
        """The costs of the whole batch."""
        return batch_cost(self.cost, int(self.batch), self.context)

    def seconds(self, load: StepLoad) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(seconds of each step, seconds of a plain step of the same sequences) float64[T]."""
        plain = self.of_batch.plain_seconds(load.active, load.cached)
        if self.reads is None:
            return plain, plain
        return self.of_batch.seconds(load, self.reads), plain


def _lock_steps(trace: Trace, rounds: Rounds, prices: StepPrices) -> Steps:
    """The steps of sequences whose rounds do not depend on each other."""
    start = rounds.offset[np.arange(prices.batch) * trace.sequences // prices.batch]
    sequence = np.repeat(np.arange(trace.sequences), np.diff(rounds.offset))
    return _steps(trace, rounds, prices, (start, len(rounds)), sequence)


def _steps(
    trace: Trace, rounds: Rounds, prices: StepPrices, slots: tuple[Any, int], sequence: Any,
    counts: Any = slice(None),
) -> Steps:  # fmt: skip
    """The steps of these rounds, which go around.

    slots: the first round of each slot, int64[batch], and the number of rounds of each; sequence
    int64[R]: the sequence of each round; counts: the rounds that have a share.
    """
    catch_up, backlog = prices.of_batch.cost.catch_up, backlogs(rounds)
    caught = np.where(rounds.computed > 0, catch_up[np.minimum(backlog, len(catch_up) - 1)], 0)
    context = contexts(trace, sequence, rounds.row, prices.context)
    load = StepLoad(*_totals(*slots, rounds.computed, rounds.drafted, caught, context))
    seconds, plain = prices.seconds(load)
    equal, more = seconds / load.active, seconds - plain
    of_step = equal, more, load.computed, load.active
    of_round = _shares(slots[0], rounds.computed, of_step)
    share = np.bincount(sequence[counts], of_round[counts], trace.sequences).astype(np.float64)
    return Steps(load, seconds, share, plain)


def contexts(
    trace: Trace, sequence: Any, row: Any, context: float | None = None
) -> NDArray[np.float64]:
    """float64[R]: cached tokens before rounds at these rows of these sequences."""
    if context is not None:
        return np.full(len(row), float(context))
    prompt = np.diff(trace.prompt_offset)[sequence]
    tokens: NDArray[np.float64] = (prompt + row - trace.offset[sequence]).astype(np.float64)
    return tokens


@cached_njit
def _totals(start, steps, computed, drafted, catch_up, context):
    """The arrays of a StepLoad; each slot has a round in each of these many steps."""
    rounds = computed.shape[0]
    sums = np.zeros((4, steps), np.int64)
    times = np.zeros((3, steps))
    for i in range(start.shape[0]):
        r = start[i]
        for t in range(steps):
            sums[0, t] += 1
            sums[1, t] += computed[r]
            sums[2, t] = max(sums[2, t], computed[r])
            sums[3, t] += drafted[r]
            times[0, t] += catch_up[r]
            times[1, t] += context[r]
            times[2, t] += context[r] * computed[r]
            r = r + 1 if r + 1 < rounds else 0
    return sums[0], sums[1], sums[2], sums[3], times[0], times[1], times[2]


@cached_njit
def _shares(start, computed, steps):
    """float64[R]: what each round is given of its steps.

    steps: of each step seconds / active, seconds beyond a plain step, computed tokens, active.
    """
    equal, more, total, active = steps
    share = np.zeros(computed.shape[0])
    for i in range(start.shape[0]):
        r = start[i]
        for t in range(equal.shape[0]):
            share[r] += equal[t]
            if total[t] > 0:
                share[r] += more[t] * (computed[r] / total[t] - 1 / active[t])
            r = r + 1 if r + 1 < computed.shape[0] else 0
    return share


Integers = NDArray[np.int64]
MOST_ROUNDS = 1 << 27
"""Rounds of a replay, of all slots: about 5 GB."""


@dataclass(frozen=True)
class BatchRun:
    """The rounds and steps of a batch policy.

    Every slot plays every sequence once, as `policy_steps` does, in its own number of steps. A slot
    that is ready goes around the file again until all are, so that the batch stays full: those
    steps are in `steps.load`, their rounds and shares are left out.
    """

    sequence: Integers  # int64[P]: the sequence of each play: a slot decodes a sequence once
    rounds: Rounds  # of all plays, slot by slot; their trace is trace.select(sequence)
    steps: Steps  # share sums over the plays of a sequence


def batch_replay(
    trace: Trace,
    policy: BatchPolicy,
    cost: CostModel | CostTable,
    batch: int,
    context: float | None = None,
    seed: int = 0,
) -> BatchRun:
    """The rounds of a batch policy, which depend on the other requests, and their steps, priced.

    Arguments as of `policy_steps`. The policy plans with the seconds of `step_seconds`. Under the
    rejection rule acceptance is drawn once for each sequence, with this seed. PolicyError for
    features under the rejection rule and for answers of a rule that cannot be, TraceError for a
    feature that the trace lacks, ValueError for what cannot be priced.
    """
    prices = StepPrices(cost, batch, context, policy.reads)
    K = check_batch_policy(trace, cost, policy)
    if batch * trace.rows > MOST_ROUNDS:
        raise ValueError(
            f"{batch} slots of {trace.rows} tokens are more than {MOST_ROUNDS} rounds: "
            "take a smaller batch, or fewer prompts"
        )
    seconds = step_seconds(trace, prices, K)
    rule = policy.rule(BatchStart(batch, K, seconds))
    slots, steps = _Slots(trace, batch), []
    run, codes, grid = drawn_run(trace, seed), *_features(trace, policy, K)
    while slots.waiting:
        row, sequence, new = slots.row, slots.sequence.copy(), slots.new
        computed = np.minimum(np.minimum(K, slots.left), trace.depth[row])
        shown = np.where(np.arange(K) < computed[:, None], grid[codes[row]], np.nan)
        step = BatchStep(slots.every, new, computed, shown)
        drafted = check_rule(policy.name, rule.submit(step), step)
        accepted = np.minimum(drafted, run[row]).astype(np.int64)
        spent = seconds.of(batch, int(computed.max()), batch + int(drafted.sum()))
        rule.observe(step, drafted, accepted, spent)
        counts = slots.play < trace.sequences
        steps.append((slots.every, row, computed, drafted, accepted, sequence, new, counts))
        slots.advance(accepted + 1)
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
    return prices.of_batch.by_rows(prices.batch, K, float(mean), prices.reads or ())


def _features(trace: Trace, policy: BatchPolicy, K: int) -> tuple[Any, Any]:
    """(uint8[N, K] codes, float64[256] grid) of the feature that the policy reads."""
    if not policy.reads:
        return np.zeros((trace.rows, K), np.uint8), np.full(256, np.nan)
    (column,) = trace.features(policy.reads)
    return trace.feature[:, :K, column], table(dict(trace.meta.features)[policy.reads[0]])


class _Slots:
    """Which sequence each slot decodes, and where."""

    def __init__(self, trace: Trace, batch: int) -> None:
        self.trace, self.every = trace, np.arange(batch)
        self.play, self.row = np.zeros(batch, np.int64), np.zeros(batch, np.int64)
        self.sequence, self.new = np.zeros(batch, np.int64), np.ones(batch, bool)
        self._start(self.every, self.every * trace.sequences // batch)

    @property
    def waiting(self) -> bool:
        """Whether some slot has not played every sequence."""
        return bool((self.play < self.trace.sequences).any())

    def _start(self, slots: Integers, sequence: Integers) -> None:
        self.sequence[slots] = sequence
        self.row[slots], self.new[slots] = self.trace.offset[sequence], True

    @property
    def left(self) -> Integers:
        """Tokens that a draft may have, by the budget."""
        done = self.row - self.trace.offset[self.sequence]
        left: Integers = self.trace.budget[self.sequence] - done - 1
        return left

    def advance(self, tokens: Integers) -> None:
        self.row = self.row + tokens
        self.new = np.zeros(len(self.every), bool)
        ended = np.flatnonzero(self.row >= self.trace.offset[self.sequence + 1])
        self.play[ended] += 1
        self._start(ended, (self.sequence[ended] + 1) % self.trace.sequences)


def _run(trace: Trace, prices: StepPrices, columns: list[Any]) -> BatchRun:
    """The run of these rounds, given step by step."""
    slot = columns[0]
    order = np.argsort(slot, kind="stable")
    row, computed, drafted, accepted, sequence, new, counts = (
        column[order] for column in columns[1:]
    )
    offset = np.append(np.flatnonzero(new), len(new))
    rounds = Rounds(offset, row, computed, drafted, accepted)
    count = len(row) // prices.batch  # rounds of each slot
    slots = np.arange(prices.batch) * count, count
    steps = _steps(trace, rounds, prices, slots, sequence, counts)
    plays = np.repeat(np.arange(len(offset) - 1), np.diff(offset))[counts]
    played, of_play = np.unique(plays, return_inverse=True)
    ends = np.concatenate(([0], np.cumsum(np.bincount(of_play))))
    chosen = sequence[offset[played]]
    moved = np.cumsum(np.diff(trace.offset)[chosen]) - trace.offset[chosen + 1]
    columns = [column[counts] for column in (row, computed, drafted, accepted)]
    columns[0] = columns[0] + moved[of_play]
    return BatchRun(chosen, Rounds(ends, *columns), steps)
