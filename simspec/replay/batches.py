"""Batches: sequences decoded together, one round of each a step, priced; and batch policies."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simspec.cost.batch import BatchCost, StepLoad, StepSeconds, batch_cost, captured_rows
from simspec.cost.model import CostModel
from simspec.cost.rounds import next_backlog
from simspec.cost.table import CostTable
from simspec.numerics.compile import cached_njit
from simspec.numerics.rng import check_seed
from simspec.policy.batch import BatchPolicy, BatchStart, BatchStep, check_rule
from simspec.policy.policy import PolicyError
from simspec.trace.acceptance import drawn_run
from simspec.trace.quantization import table
from simspec.trace.trace import Rounds, Trace

# mypy: disable-error-code="no-untyped-def"

ENDS = ("refill", "shrink")
LARGEST = 4096
"""Sequences of the largest batch."""


@dataclass(frozen=True)
class BatchRules:
    """Conventions for the end of a sequence, and for short drafts.

    | field | value | meaning |
    | --- | --- | --- |
    | ends | refill | a slot takes the next sequence at once: the batch is always full |
    | ends | shrink | sequences of a batch start together, in file order; it waits for the last |
    | padded | bool | every sequence of a step pays for the longest draft in it |
    | captured | rows | passes are padded up to vLLM's captured sizes as far as this one; 0: none |

    With refill slot i of B starts at sequence i S // B of the S, and walks once around the file, so
    that every slot meets every sequence and all end in the same step. With shrink the last batch is
    filled up from the start of the file. ValueError for other ends, and for captured below 0.
    """

    ends: str = "refill"
    padded: bool = False
    captured: int = 0

    def __post_init__(self) -> None:
        if self.ends not in ENDS:
            raise ValueError(f"ends is {self.ends!r}, expected one of {', '.join(ENDS)}")
        if self.captured < 0:
            raise ValueError(f"captured is {self.captured}, expected rows >= 0")


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
    rules: BatchRules | None = None,
    reads: Sequence[str] = (),
) -> Steps:
    """The rounds of a policy on this trace, decoded `batch` sequences at a time.

    The rounds are those of `replay`: each sequence has its own state, which others do not change; a
    state of scope stream passes through the sequences in file order. context: cached tokens of
    every sequence; None: its prompt and what it has committed. reads: the features that the policy
    reads. ValueError for a batch below 1 or above 4096, or one that the costs lack.
    """
    rules = rules or BatchRules()
    return _steps(trace, rounds, StepPrices(cost, batch, rules, context, tuple(reads)))


def plain_steps(
    trace: Trace,
    cost: CostModel | CostTable,
    batch: int,
    context: float | None = None,
    rules: BatchRules | None = None,
) -> Steps:
    """Plain decoding of the same sequences in the same slots; arguments as of `policy_steps`."""
    none = np.zeros(trace.rows, np.int64)
    rounds = Rounds(trace.offset, np.arange(trace.rows), none, none, none)
    return _steps(trace, rounds, StepPrices(cost, batch, rules or BatchRules(), context, None))


@dataclass(frozen=True)
class StepPrices:
    """Prices of the steps of a batch; reads None: plain decoding.

    ValueError for a batch below 1 or above 4096.
    """

    cost: CostModel | CostTable
    batch: int
    rules: BatchRules
    context: float | None
    reads: tuple[str, ...] | None

    def __post_init__(self) -> None:
        if isinstance(self.batch, bool) or not isinstance(self.batch, (int, np.integer)):
            raise ValueError(f"batch is {self.batch!r}, expected a whole number")
        if not 1 <= self.batch <= LARGEST:
            raise ValueError(f"batch is {self.batch}, expected 1 to {LARGEST} sequences")

    def of(self, active: int) -> BatchCost:
        return batch_cost(self.cost, active, self.context)

    def parts(self, active: NDArray[np.int64]) -> Iterator[tuple[BatchCost, Any]]:
        """(costs, the steps that they price)."""
        table = self.cost if isinstance(self.cost, CostTable) else None
        if table is None or table.batch == (1,):
            yield self.of(self.batch), slice(None)
            return
        for size in np.unique(active):
            yield self.of(int(size)), active == size

    def seconds(self, load: StepLoad) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(seconds of each step, seconds of a plain step of the same sequences) float64[T]."""
        seconds, plain = np.empty(len(load.active)), np.empty(len(load.active))
        rows = captured_rows(load.active + load.drafted, self.rules.captured)
        load = replace(load, drafted=rows - load.active)
        for cost, steps in self.parts(load.active):
            part = StepLoad(*(getattr(load, field.name)[steps] for field in fields(StepLoad)))
            alone = captured_rows(part.active, self.rules.captured)
            plain[steps] = cost.plain_seconds(alone, part.cached)
            if self.reads is not None:
                seconds[steps] = cost.seconds(part, self.reads)
        return plain if self.reads is None else seconds, plain

    def lanes(
        self, start: Any, length: Any, rounds: Rounds, context: NDArray[np.float64]
    ) -> tuple[StepLoad, NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """(load and seconds of each step, the share of each round in its steps, seconds of plain
        steps).

        start, length: int64[batches, batch], the rounds of each slot; context: float64[R], cached
        tokens before each round.
        """
        backlog = _backlogs(rounds.offset, rounds.computed, rounds.accepted)
        catch_up = self.of(int(self.batch)).cost.catch_up
        caught = np.where(rounds.computed > 0, catch_up[np.minimum(backlog, len(catch_up) - 1)], 0)
        load = StepLoad(*_totals(start, length, rounds.computed, rounds.drafted, caught, context))
        computed = load.computed
        load = load.padded() if self.rules.padded else load
        seconds, plain = self.seconds(load)
        equal, more = seconds / load.active, seconds - plain
        shares = _shares(start, length, rounds.computed, (equal, more, computed, load.active))
        return load, seconds, shares, plain


def _steps(trace: Trace, rounds: Rounds, prices: StepPrices) -> Steps:
    start, length = _lanes(rounds.offset, int(prices.batch), prices.rules.ends)
    sequence = np.repeat(np.arange(trace.sequences), np.diff(rounds.offset))
    context = contexts(trace, sequence, rounds.row, prices.context)
    load, seconds, of_round, plain = prices.lanes(start, length, rounds, context)
    share = np.asarray(np.bincount(sequence, of_round, trace.sequences), np.float64)
    return Steps(load, seconds, share, plain)


def _lanes(offset: Any, batch: int, ends: str) -> tuple[Any, Any]:
    """(first round, number of rounds) int64[batches, batch] of every slot; rounds go around."""
    sequences = len(offset) - 1
    if ends == "refill":
        first = offset[np.arange(batch) * sequences // batch]
        return first[None], np.full((1, batch), offset[-1])
    count = -(-sequences // batch)
    chosen = (np.arange(count * batch) % sequences).reshape(count, batch)
    return offset[chosen], np.diff(offset)[chosen]


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
def _backlogs(offset, computed, accepted):
    """int64[R]: the drafter's backlog before each round."""
    backlogs = np.zeros(computed.shape[0], np.int64)
    for s in range(offset.shape[0] - 1):
        backlog = 0
        for r in range(offset[s], offset[s + 1]):
            backlogs[r] = backlog
            backlog = next_backlog(backlog, computed[r], accepted[r])
    return backlogs


@cached_njit
def _totals(start, length, computed, drafted, catch_up, context):
    """The arrays of a StepLoad; slot i of batch g is in length[g, i] steps of it."""
    count, rounds = 0, computed.shape[0]
    for g in range(start.shape[0]):
        count += length[g].max()
    sums = np.zeros((5, count), np.int64)
    times = np.zeros((3, count))
    first = 0
    for g in range(start.shape[0]):
        for i in range(start.shape[1]):
            r = start[g, i]
            for t in range(first, first + length[g, i]):
                sums[0, t] += 1
                sums[1, t] += computed[r]
                sums[2, t] = max(sums[2, t], computed[r])
                sums[3, t] += drafted[r]
                sums[4, t] = max(sums[4, t], drafted[r])
                times[0, t] += catch_up[r]
                times[1, t] += context[r]
                times[2, t] += context[r] * computed[r]
                r = r + 1 if r + 1 < rounds else 0
        first += length[g].max()
    return sums[0], sums[1], sums[2], sums[3], sums[4], times[0], times[1], times[2]


@cached_njit
def _shares(start, length, computed, steps):
    """float64[R]: what each round is given of its steps.

    steps: of each step seconds / active, seconds beyond a plain step, computed tokens, active.
    """
    equal, more, total, active = steps
    share = np.zeros(computed.shape[0])
    first = 0
    for g in range(start.shape[0]):
        for i in range(start.shape[1]):
            r = start[g, i]
            for t in range(first, first + length[g, i]):
                share[r] += equal[t]
                if total[t] > 0:
                    share[r] += more[t] * (computed[r] / total[t] - 1 / active[t])
                r = r + 1 if r + 1 < computed.shape[0] else 0
        first += length[g].max()
    return share


Integers = NDArray[np.int64]
MOST_ROUNDS = 1 << 27
"""Rounds of a replay, of all slots: about 5 GB."""


@dataclass(frozen=True)
class BatchRun:
    """The rounds and steps of a batch policy.

    With refill every slot plays every sequence once, as `policy_steps` does, in its own number of
    steps. A slot that is ready goes around the file again until all are, so that the batch stays
    full: those steps are in `steps.load`, their rounds and shares are left out.
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
    load, seconds, of_round, plain = prices.lanes(start, length, rounds, context)
    share = np.bincount(sequence[counts], of_round[counts], trace.sequences).astype(np.float64)
    plays = np.repeat(np.arange(len(offset) - 1), np.diff(offset))[counts]
    played, of_play = np.unique(plays, return_inverse=True)
    ends = np.concatenate(([0], np.cumsum(np.bincount(of_play))))
    chosen = sequence[offset[played]]
    moved = np.cumsum(np.diff(trace.offset)[chosen]) - trace.offset[chosen + 1]
    columns = [column[counts] for column in (row, computed, drafted, accepted)]
    columns[0] = columns[0] + moved[of_play]
    return BatchRun(chosen, Rounds(ends, *columns), Steps(load, seconds, share, plain))
