"""Draft lengths and policies by batch size and context, and where drafting stops paying."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simspec import policies as policy_names
from simspec.cost.batch import batch_cost
from simspec.cost.gate import Claim, check_claims, no_interval
from simspec.cost.model import CostModel
from simspec.cost.table import CostTable
from simspec.numerics.stats import MIN_PROMPTS, Estimate, estimate, quotient, stacked
from simspec.output.frames import frame
from simspec.policies.fixed import fixed
from simspec.policy.batch import BatchPolicy
from simspec.policy.policy import Policy, PolicyError
from simspec.replay.batches import Steps, batch_replay, contexts, plain_steps, policy_steps
from simspec.replay.evaluation import unsettled
from simspec.replay.replay import replays
from simspec.trace.trace import Rounds, Trace

Array = NDArray[np.float64]
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True)
class BatchPlan:
    """Batch sizes, contexts, policies and rules to replay on a recording."""

    # sizes; default those of a table that has several, else 1, 2, 4 .. 128
    batch: Sequence[int] = ()
    # cached tokens of every sequence; default those of a table that has several, else each
    # sequence's own prompt and output
    context: Sequence[float] = ()
    # as `simspec.policies.parse` takes them, chains alone; or a BatchPolicy
    policies: Sequence[Any] = ()
    # replicates, seed, level: of policies that draw, of all draws, of the intervals
    replicates: int = 4
    seed: int = 0
    level: float = 0.95


@dataclass(frozen=True)
class BatchRow:
    """One batch size and context."""

    # batch, context: context None: each sequence's own
    batch: int
    context: float | None
    best: int  # the fixed draft length, 0 included, of the least time
    drafting: int  # the same among lengths from 1 on
    # {policy: Estimate} over plain decoding of the same batch, fixed lengths included
    speedup: dict[str, Estimate]
    plain_tokens_per_second: float  # of the whole batch
    # {batch policy: (tokens committed, drafted tokens verified) a round}
    verified: dict[str, tuple[float, float]] = field(default_factory=dict)

    def fixed(self, K: int) -> Estimate:
        """The speedup of this draft length."""
        return self.speedup[f"fixed:{K}"]


@dataclass(frozen=True)
class BatchSpeedup:
    """The speedup of the best fixed draft length from 1 on at a batch size."""

    batch: int
    K: int
    speedup: float


@dataclass(frozen=True)
class Crossing:
    """The batch size from which the best fixed draft length, 1 or more, no longer pays."""

    context: float | None  # as in BatchRow
    last: BatchSpeedup | None  # of the largest size found to pay; None: none does
    # that of the smallest size from which on none of the sizes pays; None: the largest pays
    first: BatchSpeedup | None


def batch_rows(trace: Trace, cost: CostModel | CostTable, plan: BatchPlan) -> list[BatchRow]:
    """A row for every batch size and context, contexts first.

    Each policy plans with the costs of a batch that does the same in every slot
    (`BatchCost.alike`), and is priced in the batch that it makes. Intervals resample prompts, each
    with its share of the seconds, plain and drafted. ValueError for what cannot be priced.
    """
    sizes, held = _axes(cost, plan)
    replays = _Replays(trace, cost, plan)
    return [replays.row((batch, context)) for context in held for batch in sizes]


def crossings(
    trace: Trace, cost: CostModel | CostTable, plan: BatchPlan, rows: Sequence[BatchRow]
) -> list[Crossing]:
    """Batch sizes at which drafting stops paying, by bisection between the rows', in each context.

    A table of measured sizes is not bisected. None are found where no cell gives intervals.
    """
    if all(map(no_interval, [cost] if isinstance(cost, CostModel) else cost.known)):
        return []
    replays = _Replays(trace, cost, plan)
    found = []
    for context in dict.fromkeys(row.context for row in rows):
        points = [
            BatchSpeedup(row.batch, row.drafting, row.fixed(row.drafting).value)
            for row in sorted(rows, key=lambda row: row.batch)
            if row.context == context
        ]
        paying = [i for i, point in enumerate(points) if point.speedup >= 1]
        last = points[paying[-1]] if paying else None
        after = points[paying[-1] + 1 :] if paying else points
        first = after[0] if after else None
        extrapolated = isinstance(cost, CostModel) or cost.batch == (1,)
        while extrapolated and last and first and first.batch - last.batch > 1:
            middle = replays.drafting(((last.batch + first.batch) // 2, context))
            last, first = (middle, first) if middle.speedup >= 1 else (last, middle)
        found.append(Crossing(context, last, first))
    return found


def batch_notes(cost: CostModel | CostTable, plan: BatchPlan) -> list[str]:
    """Notes on what these costs measure, extrapolate and warn of, one line each."""
    if isinstance(cost, CostTable) and cost.batch != (1,):
        return [
            f"costs of {cost.name} are measured at batch sizes "
            f"{', '.join(map(str, cost.batch))}; a size between takes the next one",
            *_unsettled(cost.known),
            *_policy_notes(plan),
            *cost.warnings,
        ]
    model = cost if isinstance(cost, CostModel) else next(c for c in cost.cells[0] if c is not None)
    notes = [
        f"costs of {model.name} are of one sequence{f' on {model.device}' if model.device else ''}:"
        f" larger batches are extrapolated, a pass by its tokens (known to {model.nodes + 1} rows, "
        "then by a line)"
    ]
    if not model.node:
        notes.append(
            "further rows of a draft step are free in these costs, so speedups are upper bounds: "
            "set `node` in the cost file"
        )
    if not model.kv_verify:
        notes.append(
            "cached tokens are not priced in these costs: set `kv_verify` in the cost file"
        )
    return [*notes, *_unsettled([model]), *_policy_notes(plan), *cost.warnings]


def _unsettled(cells: Sequence[CostModel]) -> list[str]:
    return [f"nothing is settled {why}" for why in map(unsettled, cells) if why]


def batch_frame(
    name: str, rows: Sequence[BatchRow], crossed: Sequence[Crossing], notes: Sequence[str] = ()
) -> Any:
    """The rows of a recording, where drafting stops paying, and the notes on its costs."""
    policies = [policy for policy in rows[0].speedup if not policy.startswith("fixed:")]
    cells = [
        {
            "batch": row.batch,
            "context": "own" if row.context is None else row.context,
            "best_k": row.best,
            "drafting": f"fixed:{row.drafting}",
            "speedup": row.fixed(row.drafting),
            **{policy: row.speedup[policy] for policy in policies},
        }
        for row in rows
    ]
    below = (*map(_crossing_text, crossed), *notes)
    return frame(cells, names=2, title=name, notes=below, formats={"context": "g"})


def speed_frame(name: str, rows: Sequence[BatchRow]) -> Any:
    """Tokens a second of the whole batch, and what the batch policies verify."""
    longest = [policy for policy in rows[0].speedup if policy.startswith("fixed:")][-1]
    others = [policy for policy in rows[0].speedup if not policy.startswith("fixed:")]
    cells = []
    for row in rows:
        unit = row.plain_tokens_per_second
        context = "own" if row.context is None else row.context
        cell: dict[str, Any] = {"batch": row.batch, "context": context, "plain": unit}
        policies = ("best fixed", f"fixed:{row.best}"), (longest, longest), *zip(others, others)
        for heading, policy in policies:
            e = row.speedup[policy]
            cell[heading] = replace(e, value=unit * e.value, low=unit * e.low, high=unit * e.high)
        for policy, (committed, drafted) in row.verified.items():
            cell[f"{policy}, verified"] = f"{committed:.2f} of {drafted:.2f}"
        cells.append(cell)
    notes = (
        "tokens a second of the whole batch: plain decoding's times the speedup; "
        "verified: tokens committed of drafted tokens verified, a round",
    )
    formats = {"context": "g"} | dict.fromkeys(("plain", "best fixed", longest, *others), ".0f")
    title = f"{name}: tokens a second"
    return frame(cells, names=2, title=title, notes=notes, formats=formats)


def _crossing_text(crossing: Crossing) -> str:
    last, first = crossing.last, crossing.first
    where = "" if crossing.context is None else f" at context {crossing.context:g}"
    if last is None:
        return f"drafting pays at none of these batch sizes{where}"
    if first is None:
        return (
            f"drafting pays up to batch {last.batch}, the largest here "
            f"(fixed:{last.K}, {last.speedup:.2f}){where}"
        )
    return (
        f"drafting pays up to batch {last.batch} (fixed:{last.K}, {last.speedup:.3f}), and stops "
        f"paying at {first.batch} (fixed:{first.K}, {first.speedup:.3f}){where}"
    )


CONVENTIONS = (
    "Ends: refill, the batch is always full. A step verifies the tokens of each sequence's own "
    "draft.",
    "Speedups over plain decoding of the same batch; intervals over prompts, none for fewer "
    f"than {MIN_PROMPTS}.",
)
"""How batches end and what a step verifies, a sentence each."""


def _policy_notes(plan: BatchPlan) -> list[str]:
    known = [str(policy) for policy in plan.policies if policy in policy_names.CLAIRVOYANT]
    return [
        f"{name} is one sequence's best, not the batch's: a step waits for its longest draft"
        for name in known
    ]


def _axes(
    cost: CostModel | CostTable, plan: BatchPlan
) -> tuple[Sequence[int], Sequence[float | None]]:
    sizes, held = list(dict.fromkeys(plan.batch)), list(dict.fromkeys(plan.context))
    table = cost if isinstance(cost, CostTable) else None
    if not sizes:
        sizes = list(table.batch if table is not None and len(table.batch) > 1 else SIZES)
    if not held and table is not None and len(table.context) > 1:
        held = list(map(float, table.context))
    if held and isinstance(cost, CostModel) and not (cost.kv_verify or cost.kv_draft):
        raise ValueError(
            f"cost {cost.name!r} has no seconds for cached tokens, the same at every context: "
            "drop --context, or set `kv_verify` in the cost file"
        )
    return sizes, held or [None]


Cell = tuple[int, float | None]
"""Batch size and context, as in BatchRow."""


class _Replays:
    """Replays of one recording, those of fixed lengths kept from one batch size to the next."""

    def __init__(self, trace: Trace, cost: CostModel | CostTable, plan: BatchPlan) -> None:
        self.trace, self.cost, self.plan = trace, cost, plan
        self.longest = min(trace.K, cost.K)
        if self.longest < 1:
            raise ValueError(f"cost {cost.name!r} prices no draft: measure at least one token")
        self._fixed: dict[int, list[Rounds]] = {}
        sequence = np.repeat(np.arange(trace.sequences), np.diff(trace.offset))
        self._mean = float(contexts(trace, sequence, np.arange(trace.rows)).mean())

    def row(self, cell: Cell) -> BatchRow:
        plain = plain_steps(self.trace, self.cost, *cell)
        lengths = {K: self._length(K, cell) for K in range(self.longest + 1)}
        drafting = min(range(1, self.longest + 1), key=lambda K: lengths[K].sum())
        best = min((0, drafting), key=lambda K: lengths[K].sum())
        seconds = {f"fixed:{K}": share for K, share in lengths.items()}
        verified = {}
        for policy in self.plan.policies:
            if isinstance(policy, BatchPolicy):
                seconds[policy.name], verified[policy.name] = self._batch_policy(policy, cell)
            else:
                seconds |= self._policy(policy, cell)
        tokens = float(plain.load.active.sum() / plain.seconds.sum())
        options: dict[str, Any] = {"level": self.plan.level, "seed": self.plan.seed}
        options["limits"] = not no_interval(batch_cost(self.cost, *cell).cost)
        speedup = {
            name: estimate(stacked(plain.share, share), quotient, **options)
            for name, share in seconds.items()
        }
        return BatchRow(*cell, best, drafting, speedup, tokens, verified)

    def drafting(self, cell: Cell) -> BatchSpeedup:
        """The best fixed length from 1 on."""
        plain = float(plain_steps(self.trace, self.cost, *cell).share.sum())
        times = {K: self._length(K, cell).sum() for K in range(1, self.longest + 1)}
        K = min(times, key=lambda K: times[K])
        return BatchSpeedup(cell[0], K, plain / float(times[K]))

    def _length(self, K: int, cell: Cell) -> Array:
        policy = fixed(K)
        if K not in self._fixed:
            unit = CostModel.from_ratio(0.1, self.longest)
            self._fixed[K] = list(replays(self.trace, policy, self._seeds(), unit))
        return self._share(self._fixed[K], policy, cell)

    def _policy(self, policy: Any, cell: Cell) -> dict[str, Array]:
        """{name: seconds of each sequence} of a policy of requests."""
        batch, context = cell
        tokens = self._mean if context is None else context
        planned = batch_cost(self.cost, *cell).alike(batch, tokens)
        made = policy_names.make(policy, self.trace, planned)
        if not isinstance(made, Policy):
            raise PolicyError(
                f"{getattr(made, 'name', made)!r} drafts trees, expected a policy of chains: "
                "batches of trees are not priced"
            )
        draws = replays(self.trace, made, self._seeds(made.random), planned)
        return {made.name: self._share(draws, made, cell)}

    def _batch_policy(self, policy: BatchPolicy, cell: Cell) -> tuple[Array, tuple[float, float]]:
        """(seconds of each sequence, (tokens committed, drafted tokens verified) a round)."""
        runs = [batch_replay(self.trace, policy, self.cost, *cell, s) for s in self._seeds()]
        tokens = cell[0] * self.trace.rows  # every slot plays every sequence
        counts = [(tokens / len(run.rounds), run.rounds.drafted.mean()) for run in runs]
        committed, verified = np.mean(counts, axis=0).tolist()
        shares = [self._checked(policy.name, committed, run.steps, cell) for run in runs]
        return np.mean(shares, axis=0), (committed, verified)

    def _share(self, draws: Iterable[Rounds], policy: Policy, cell: Cell) -> Array:
        """float64[S]: seconds of each sequence, mean of the draws."""
        shares = []
        for rounds in draws:
            steps = policy_steps(self.trace, rounds, self.cost, *cell, policy.reads)
            tokens = self.trace.rows / len(rounds)
            shares.append(self._checked(policy.name, tokens, steps, cell))
        return np.mean(shares, axis=0)

    def _checked(self, name: str, tokens: float, steps: Steps, cell: Cell) -> Array:
        """The steps' shares; PriceError where a mean step costs less than one of plain decoding."""
        spent = float(steps.seconds.sum() / steps.plain.sum())
        claim = Claim(f"{name} at batch {cell[0]}", tokens / spent, tokens)
        check_claims([claim], batch_cost(self.cost, *cell).cost, f"costs {self.cost.name!r}")
        return steps.share

    def _seeds(self, random: bool = False) -> range:
        """The seeds of draws; one where neither a policy nor the recording draws."""
        draws = random or self.trace.ratio is not None
        return range(self.plan.seed, self.plan.seed + (self.plan.replicates if draws else 1))
