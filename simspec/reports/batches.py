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
from simspec.policy.batch import BatchPolicy, shared
from simspec.policy.policy import Policy, PolicyError
from simspec.replay.batches import Steps, batch_replay, plain_steps, policy_steps
from simspec.replay.evaluation import unsettled
from simspec.replay.replay import replays
from simspec.trace.trace import Rounds, Trace

Array = NDArray[np.float64]
SHARED = "shared:"
"""Start of the text of a policy of requests that decides once a step for the whole batch."""
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True)
class BatchPlan:
    """Batch sizes, contexts, policies and rules to replay on a recording."""

    # sizes; default those of a table that has several, else 1, 2, 4 .. 128
    batch: Sequence[int] = ()
    # cached tokens of every sequence; default those of a table that has several, else each
    # sequence's own prompt and output
    context: Sequence[float] = ()
    # as `simspec.policies.parse` takes them; chains alone; BatchPolicy, or shared:TEXT of a policy
    # with one state and length for all requests
    policies: Sequence[Any] = ()
    captured: int = 0  # as of `policy_steps`
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
    sizes, contexts = _axes(cost, plan)
    replays = _Replays(trace, cost, plan)
    return [replays.row(batch, context) for context in contexts for batch in sizes]


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
            middle = replays.drafting((last.batch + first.batch) // 2, context)
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
    lengths = [policy for policy in rows[0].speedup if policy.startswith("fixed:")]
    others = [policy for policy in rows[0].speedup if policy not in lengths]
    cells = []
    for row in rows:
        unit = row.plain_tokens_per_second
        scaled = {
            policy: replace(e, value=unit * e.value, low=unit * e.low, high=unit * e.high)
            for policy, e in row.speedup.items()
        }
        shown = {"plain": unit} | {
            heading: scaled[policy]
            for heading, policy in (
                ("best fixed", f"fixed:{row.best}"), (lengths[-1], lengths[-1]),
                *zip(others, others),
            )
        }  # fmt: skip
        verified = {
            f"{policy}, verified": f"{committed:.2f} of {drafted:.2f}"
            for policy, (committed, drafted) in row.verified.items()
        }
        cells.append(
            {"batch": row.batch, "context": "own" if row.context is None else row.context}
            | shown
            | verified
        )
    notes = (
        "tokens a second of the whole batch: plain decoding's times the speedup; "
        "verified: tokens committed of drafted tokens verified, a round",
    )
    formats = {
        "context": "g",
        **dict.fromkeys(("plain", "best fixed", lengths[-1], *others), ".0f"),
    }
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
    sizes, contexts = list(dict.fromkeys(plan.batch)), list(dict.fromkeys(plan.context))
    table = cost if isinstance(cost, CostTable) else None
    if not sizes:
        sizes = list(table.batch if table is not None and len(table.batch) > 1 else SIZES)
    if not contexts and table is not None and len(table.context) > 1:
        contexts = list(map(float, table.context))
    if contexts and isinstance(cost, CostModel) and not (cost.kv_verify or cost.kv_draft):
        raise ValueError(
            f"cost {cost.name!r} has no seconds for cached tokens, the same at every context: "
            "drop --context, or set `kv_verify` in the cost file"
        )
    return sizes, contexts or [None]


class _Replays:
    """Replays of one recording, those of fixed lengths kept from one batch size to the next."""

    def __init__(self, trace: Trace, cost: CostModel | CostTable, plan: BatchPlan) -> None:
        self.trace, self.cost, self.plan = trace, cost, plan
        self.longest = min(trace.K, cost.K)
        if self.longest < 1:
            raise ValueError(f"cost {cost.name!r} prices no draft: measure at least one token")
        self._fixed: dict[int, list[Rounds]] = {}
        prompt = np.diff(trace.prompt_offset)
        emitted = np.arange(trace.rows) - np.repeat(trace.offset[:-1], np.diff(trace.offset))
        self._mean = float((np.repeat(prompt, np.diff(trace.offset)) + emitted).mean())

    def row(self, batch: int, context: float | None) -> BatchRow:
        plain = plain_steps(self.trace, self.cost, batch, context, self.plan.captured)
        lengths = {K: self._length(K, batch, context) for K in range(self.longest + 1)}
        drafting = min(range(1, self.longest + 1), key=lambda K: lengths[K].sum())
        best = min((0, drafting), key=lambda K: lengths[K].sum())
        seconds = {f"fixed:{K}": share for K, share in lengths.items()}
        verified = {}
        for policy in self.plan.policies:
            if isinstance(policy, str) and policy.startswith(SHARED):
                policy = shared(self._made(policy.removeprefix(SHARED), batch, context)[0])
            if isinstance(policy, BatchPolicy):
                name = policy.name
                seconds[name], verified[name] = self._batch_policy(policy, batch, context)
            else:
                name, share = self._policy(policy, batch, context)
                seconds[name] = share
        tokens = float(plain.load.active.sum() / plain.seconds.sum())
        priced = batch_cost(self.cost, batch, context).cost
        options: dict[str, Any] = {"level": self.plan.level, "seed": self.plan.seed}
        options["limits"] = not no_interval(priced)
        speedup = {
            name: estimate(stacked(plain.share, share), quotient, **options)
            for name, share in seconds.items()
        }
        return BatchRow(batch, context, best, drafting, speedup, tokens, verified)

    def drafting(self, batch: int, context: float | None) -> BatchSpeedup:
        """The best fixed length from 1 on."""
        plain = float(
            plain_steps(self.trace, self.cost, batch, context, self.plan.captured).share.sum()
        )
        times = {K: self._length(K, batch, context).sum() for K in range(1, self.longest + 1)}
        K = min(times, key=lambda K: times[K])
        return BatchSpeedup(batch, K, plain / float(times[K]))

    def _length(self, K: int, batch: int, context: float | None) -> Array:
        policy = fixed(K)
        if K not in self._fixed:
            unit = CostModel.from_ratio(0.1, self.longest)
            self._fixed[K] = list(replays(self.trace, policy, self._seeds(policy), unit))
        return self._share(self._fixed[K], policy, batch, context)

    def _made(self, policy: Any, batch: int, context: float | None) -> tuple[Policy, CostModel]:
        """The policy, and the costs that it plans with."""
        tokens = self._mean if context is None else context
        planned = batch_cost(self.cost, batch, context).alike(batch, tokens)
        made = policy_names.make(policy, self.trace, planned)
        if not isinstance(made, Policy):
            raise PolicyError(
                f"{getattr(made, 'name', made)!r} drafts trees, expected a policy of chains: "
                "batches of trees are not priced"
            )
        return made, planned

    def _policy(self, policy: Any, batch: int, context: float | None) -> tuple[str, Array]:
        made, planned = self._made(policy, batch, context)
        draws = replays(self.trace, made, self._seeds(made), planned)
        return made.name, self._share(draws, made, batch, context)

    def _batch_policy(
        self, policy: BatchPolicy, batch: int, context: float | None
    ) -> tuple[Array, tuple[float, float]]:
        """(seconds of each sequence, (tokens committed, drafted tokens verified) a round)."""
        cell = batch, context, self.plan.captured
        seeds = self._seeds(policy)
        runs = [batch_replay(self.trace, policy, self.cost, *cell, seed) for seed in seeds]
        rounds = [run.rounds for run in runs]
        tokens = self.trace.select(runs[0].sequence).rows
        counts = np.mean([(tokens / len(each), each.drafted.mean()) for each in rounds], axis=0)
        for run in runs:
            self._check(policy.name, float(counts[0]), run.steps, batch, context)
        share: Array = np.mean([run.steps.share for run in runs], axis=0)
        return share, (float(counts[0]), float(counts[1]))

    def _share(
        self, draws: Iterable[Rounds], policy: Policy, batch: int, context: float | None
    ) -> Array:
        """float64[S]: seconds of each sequence, mean of the draws."""
        captured, shares = self.plan.captured, []
        for rounds in draws:
            steps = policy_steps(
                self.trace, rounds, self.cost, batch, context, captured, policy.reads
            )
            self._check(policy.name, self.trace.rows / len(rounds), steps, batch, context)
            shares.append(steps.share)
        return np.mean(shares, axis=0)

    def _check(
        self, name: str, tokens: float, steps: Steps, batch: int, context: float | None
    ) -> None:
        """PriceError where a mean step costs less than one of plain decoding."""
        spent = float(steps.seconds.sum() / steps.plain.sum())
        claim = Claim(f"{name} at batch {batch}", tokens / spent, tokens)
        check_claims(
            [claim], batch_cost(self.cost, batch, context).cost, f"costs {self.cost.name!r}"
        )

    def _seeds(self, policy: Policy | BatchPolicy) -> range:
        """The seeds of the policy's draws; one where nothing is drawn."""
        draws = policy.random or self.trace.ratio is not None
        return range(self.plan.seed, self.plan.seed + (self.plan.replicates if draws else 1))
