"""Sequences that are decoded together, one round of each a step."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simspec.cost.batch import BatchCost, StepLoad, batch_cost, captured_rows
from simspec.cost.model import CostModel
from simspec.cost.rounds import next_backlog
from simspec.cost.table import CostTable
from simspec.numerics.compile import cached_njit
from simspec.trace.rounds import Rounds
from simspec.trace.trace import Trace

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

    | field | dtype, shape | meaning |
    | --- | --- | --- |
    | load | StepLoad [T] | what the sequences of each step do |
    | seconds | float64[T] | of each step |
    | share | float64[S] | seconds of each sequence, which sum to those of the steps |

    A sequence is given an equal share of a plain step of the same batch, and of what the step takes
    longer a share by its computed tokens.
    """

    load: StepLoad
    seconds: NDArray[np.float64]
    share: NDArray[np.float64]


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
    ) -> tuple[StepLoad, NDArray[np.float64], NDArray[np.float64]]:
        """(load and seconds of each step, the share of each round in its steps).

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
        return load, seconds, shares


def _steps(trace: Trace, rounds: Rounds, prices: StepPrices) -> Steps:
    start, length = _lanes(rounds.offset, int(prices.batch), prices.rules.ends)
    sequence = np.repeat(np.arange(trace.sequences), np.diff(rounds.offset))
    context = contexts(trace, sequence, rounds.row, prices.context)
    load, seconds, of_round = prices.lanes(start, length, rounds, context)
    share = np.asarray(np.bincount(sequence, of_round, trace.sequences), np.float64)
    return Steps(load, seconds, share)


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
