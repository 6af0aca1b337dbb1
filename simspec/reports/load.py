"""Policies on a server under load: figures by rate, and the rate at which drafting stops paying."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simspec import policies as policy_names
from simspec.cost.batch import batch_cost
from simspec.cost.model import CostModel
from simspec.cost.table import CostTable
from simspec.numerics.stats import Estimate, replicated
from simspec.output.files import replacing
from simspec.output.names import label_text
from simspec.output.table import Table
from simspec.policy.policy import Policy, PolicyError
from simspec.replay.arrivals import Requests, poisson_requests, recorded_requests
from simspec.replay.kernel import kernel
from simspec.replay.load import Schedule, Server, serve
from simspec.replay.load_metrics import Counting, LoadFigures, Spread, load_figures
from simspec.replay.replay import replay, run_calls
from simspec.trace.rounds import Rounds
from simspec.trace.trace import Trace

Array = NDArray[np.float64]
PLAIN = "plain"
SHARES = (0.1, 0.25, 0.5, 0.7, 0.8, 0.9, 1.0, 1.2)
"""Default rates, in units of the most requests a second that plain decoding serves."""
OBJECTIVES = {"latency": 1, "ttft": 1, "tpot": 1, "goodput": -1}
"""Figures by which policies are compared; 1: the least is best."""
BISECTIONS = 8


@dataclass(frozen=True)
class LoadPlan:
    """Rates, policies and the server of a simulation.

    | field | meaning |
    | --- | --- |
    | policies | texts or policies of chains, 'plain', 'schedule:1=5/9=0' |
    | rates | requests a second; default: SHARES of what plain decoding serves, or as recorded |
    | server, context | as `serve` takes them |
    | requests, burst | of each run, as `poisson_requests` takes them |
    | times | recorded arrivals instead, see `recorded_requests` |
    | counting | warm-up and targets |
    | replicates, seed, level | runs with seeds seed, seed + 1 ..; of the intervals |
    """

    policies: Sequence[Any] = ()
    rates: Sequence[float] = ()
    server: Server = field(default_factory=Server)
    context: float | None = None
    requests: int = 5000
    burst: float = 1.0
    times: Sequence[float] = ()
    counting: Counting = field(default_factory=Counting)
    replicates: int = 4
    seed: int = 0
    level: float = 0.95

    def __post_init__(self) -> None:
        if self.replicates < 1:
            raise ValueError(f"replicates is {self.replicates}, expected at least 1")
        if any(not (np.isfinite(rate) and rate > 0) for rate in self.rates):
            raise ValueError(f"rates are {list(self.rates)}, expected requests a second > 0")

    def arrivals(self, trace: Trace, rate: float | None, seed: int) -> Requests:
        """The requests of one run; rate None: as recorded."""
        if len(self.times):
            return recorded_requests(self.times, trace.sequences, seed, rate)
        assert rate is not None
        return poisson_requests(self.requests, rate, trace.sequences, seed, self.burst)


@dataclass(frozen=True)
class LoadRow:
    """A policy at a rate; figures {name: Estimate} over replications, `ttft_p99` and the like."""

    rate: float
    policy: str
    figures: dict[str, Estimate]
    batch_by_time: tuple[float, ...]


@dataclass(frozen=True)
class LoadCrossing:
    """The rate from which no drafting policy is better than plain decoding.

    | field | meaning |
    | --- | --- |
    | last, last_policy | the largest rate found at which one is, and the best one; None: no rate |
    | first | the smallest rate found from which on none is; None: no rate |
    """

    last: float | None
    last_policy: str
    first: float | None


Job = tuple[str, Policy | Schedule | None]


class LoadRuns:
    """The runs of a plan on a recording, policies made and costs validated.

    Policies plan with the costs of one request. PolicyError for policies of trees; ValueError for
    what the costs lack.
    """

    def __init__(
        self, trace: Trace, cost: CostModel | CostTable, plan: LoadPlan,
        jobs: int = 1, cluster: str | None = None,
    ) -> None:  # fmt: skip
        self.trace, self.cost, self.jobs, self.cluster = trace, cost, jobs, cluster
        emitted = np.diff(trace.offset)
        tokens = float((np.diff(trace.prompt_offset) + emitted / 2) @ emitted / emitted.sum())
        context = tokens if plan.context is None else plan.context
        self.planned = batch_cost(cost, 1, plan.context).alike(1, context)
        longest = min(trace.K, self.planned.K)
        named = plan.policies or (PLAIN, *(f"fixed:{K}" for K in range(1, longest + 1)))
        self.policies = dict(self._made(policy) for policy in named)
        self.plan = plan
        self.capacity = self._capacity()
        if not (plan.rates or len(plan.times)):
            rates = [float(f"{share * self.capacity:.3g}") for share in SHARES]
            self.plan = replace(plan, rates=rates)

    def _made(self, policy: Any) -> Job:
        if policy == PLAIN:
            return PLAIN, None
        if isinstance(policy, str) and policy.startswith("schedule:"):
            policy = Schedule.parse(policy)
        if isinstance(policy, Schedule):
            return policy.name, policy
        made = policy_names.make(policy, self.trace, self.planned)
        if not isinstance(made, Policy):
            raise PolicyError(
                f"{getattr(made, 'name', made)!r} drafts trees, expected a policy of chains: loads "
                "of trees are not priced"
            )
        kernel(made)  # compiled here: threads only run it
        return made.name, made

    def _capacity(self) -> float:
        """Requests a second of plain decoding where all of them wait."""
        count = max(4 * self.plan.server.slots, 256)
        sequences = poisson_requests(count, 1.0, self.trace.sequences, self.plan.seed).sequence
        waiting = Requests(np.zeros(count), sequences)
        server, context = self.plan.server, self.plan.context
        finish = np.sort(serve(self.trace, waiting, None, self.cost, server, context).finish)
        first, last = count // 5, count - count // 5 - 1
        return (last - first) / float(finish[last] - finish[first])

    def rows(self, done: Callable[[str], None] = lambda policy: None) -> list[LoadRow]:
        """A row for every rate and policy, rates first; `done` hears of each run of a policy."""
        rates: Sequence[float | None] = self.plan.rates or (None,)
        found: dict[str, list[list[LoadFigures]]] = {name: [] for name in self.policies}
        for name, figures in self._run(list(self.policies), rates):
            found[name].append(figures)
            done(name)
        return [
            _row(name, [run[i] for run in found[name]], rate, self.plan.level)
            for i, rate in enumerate(rates)
            for name in self.policies
        ]

    @property
    def count(self) -> int:
        """Runs of policies, each of all rates, and then of one rate in each bisection."""
        return len(self.policies) * self.plan.replicates * (1 + BISECTIONS)

    def _run(
        self, names: Sequence[str], rates: Sequence[float | None]
    ) -> Iterator[tuple[str, list[LoadFigures]]]:
        seeds = range(self.plan.seed, self.plan.seed + self.plan.replicates)
        todo = [(name, seed) for name in names for seed in seeds]
        plan = replace(self.plan, policies=(), rates=())
        calls = [
            (self.trace, self.policies[name], self.planned, self.cost, plan, seed, tuple(rates))
            for name, seed in todo
        ]
        results: Iterable[list[LoadFigures]] = run_calls(
            _policy_figures, calls, self.jobs, self.cluster, [self.trace]
        )
        return zip((name for name, _ in todo), results)

    def crossing(
        self,
        rows: Sequence[LoadRow],
        objective: str = "latency",
        done: Callable[[str], None] = lambda policy: None,
    ) -> LoadCrossing | None:
        """Where drafting stops paying, by bisection between the rates; None without both kinds.

        A policy is better where its mean over the replications is; these share arrivals. Schedules,
        which may draft nothing, are left out.
        """
        drafting = [
            name
            for name, policy in self.policies.items()
            if isinstance(policy, Policy) and name != "fixed:0"
        ]
        rows = [row for row in rows if row.policy in (PLAIN, *drafting)]
        if PLAIN not in self.policies or not drafting:
            return None
        rates = sorted({row.rate for row in rows})
        best = {rate: best_policy(rows, rate, objective) for rate in rates}
        paying = [i for i, rate in enumerate(rates) if best[rate] in drafting]
        if not paying:
            return LoadCrossing(None, "", rates[0])
        last = rates[paying[-1]]
        if last == rates[-1]:
            return LoadCrossing(last, best[last], None)
        first = rates[paying[-1] + 1]
        for _ in range(BISECTIONS):
            middle = (last + first) / 2
            found: dict[str, list[LoadFigures]] = {name: [] for name in (PLAIN, *drafting)}
            for name, figures in self._run(list(found), (middle,)):
                found[name] += figures
                done(name)
            at = [_row(name, runs, middle, self.plan.level) for name, runs in found.items()]
            winner = best_policy(at, middle, objective)
            if winner in drafting:
                last, best[middle] = middle, winner
            else:
                first = middle
        return LoadCrossing(last, best[last], first)


def best_policy(rows: Sequence[LoadRow], rate: float, objective: str = "latency") -> str:
    """The policy of the best mean at this rate; of equal ones the first."""
    key = f"{objective}_mean" if objective in ("latency", "ttft", "tpot") else objective
    at = [row for row in rows if row.rate == rate]
    values = np.array([OBJECTIVES[objective] * row.figures[key].value for row in at])
    return at[int(np.argmin(np.where(np.isnan(values), inf, values)))].policy


def _policy_figures(
    trace: Trace,
    policy: Policy | Schedule | None,
    planned: CostModel,
    cost: CostModel | CostTable,
    plan: LoadPlan,
    seed: int,
    rates: Sequence[float | None],
) -> list[LoadFigures]:
    """The figures of one seed at each rate; the policy is replayed once."""
    rounds: Rounds | Schedule | None = policy if isinstance(policy, Schedule) else None
    reads: tuple[str, ...] = ()
    if isinstance(policy, Policy):
        rounds, reads = replay(trace, policy, seed, planned), policy.reads
    server, context = plan.server, plan.context
    return [
        load_figures(
            serve(trace, plan.arrivals(trace, rate, seed), rounds, cost, server, context, reads,
                  seed),
            plan.counting,
        )
        for rate in rates
    ]  # fmt: skip


def _row(name: str, runs: Sequence[LoadFigures], rate: float | None, level: float) -> LoadRow:
    figures = {}
    for of in fields(LoadFigures):
        values = [getattr(run, of.name) for run in runs]
        if isinstance(values[0], Spread):
            for part in fields(Spread):
                column = [getattr(value, part.name) for value in values]
                figures[f"{of.name}_{part.name}"] = replicated(column, level)
        elif of.name != "batch_by_time":
            figures[of.name] = replicated(values, level)
    own = figures["offered"].value if rate is None else rate
    return LoadRow(own, name, figures, runs[0].batch_by_time)


def load_tables(
    name: str, rows: Sequence[LoadRow], crossing: LoadCrossing | None, runs: LoadRuns,
    objective: str,
) -> list[Table]:  # fmt: skip
    """(the best policy by rate, all rows with the notes)."""
    plan, targets = runs.plan, runs.plan.counting.limited
    rates = list(dict.fromkeys(row.rate for row in rows))
    of = {(row.rate, row.policy): row.figures for row in rows}
    best = []
    for rate in rates:
        chosen = best_policy(rows, rate, objective)
        figures = of[rate, chosen]
        plain = of.get((rate, PLAIN))
        best.append(
            (
                f"{rate:.3g}", chosen, figures["batch"].text(".1f", False),
                figures["latency_mean"].text(".3g"),
                "-" if plain is None else plain["latency_mean"].text(".3g"),
            )
        )  # fmt: skip
    short = Table(
        ("requests/s", f"best by {objective}", "its batch", "its mean latency, s",
         "plain decoding, s"),
        best, names=2, title=name, notes=_crossing_notes(crossing, objective),
    )  # fmt: skip
    columns = [
        ("tok/s", "tokens_per_second", ".4g"),
        ("TTFT p50", "ttft_p50", ".3g"), ("TTFT p99", "ttft_p99", ".3g"),
        ("TPOT ms", "tpot_mean", ".2f"), ("TPOT p99", "tpot_p99", ".2f"),
        ("latency s", "latency_mean", ".3g"), ("p99", "latency_p99", ".3g"),
        ("goodput/s", "goodput", ".3g"), ("batch", "batch", ".1f"), ("busy", "busy", ".2f"),
    ]  # fmt: skip
    columns = [column for column in columns if targets or column[1] != "goodput"]
    cells = [
        (f"{row.rate:.3g}", row.policy, *(_cell(row.figures[key], key, form)
                                          for _, key, form in columns))
        for row in rows
    ]  # fmt: skip
    headings = ("requests/s", "policy", *(heading for heading, _, _ in columns))
    optional = ("p99", "busy", "TPOT p99", "TTFT p50", "batch")
    return [short, Table(headings, cells, 2, notes=_notes(plan, runs), optional=optional)]


def _cell(figure: Estimate, key: str, form: str) -> str:
    if key.startswith("tpot"):
        figure = replace(figure, value=1e3 * figure.value)
    return figure.text(form, limits=False)


def _crossing_notes(crossing: LoadCrossing | None, objective: str) -> tuple[str, ...]:
    if crossing is None:
        return ()
    if crossing.last is None:
        return (f"drafting pays at none of these rates, by {objective}",)
    if crossing.first is None:
        return (f"drafting pays up to {crossing.last:.4g} requests/s, the largest rate here",)
    return (
        f"drafting pays up to {crossing.last:.4g} requests/s ({crossing.last_policy}), and stops "
        f"paying at {crossing.first:.4g}, by {objective}",
    )


def _notes(plan: LoadPlan, runs: LoadRuns) -> tuple[str, ...]:
    server = plan.server
    reads = f"{server.tokens} tokens a step" if server.prefill else "prompts are cached"
    arrivals = "recorded times" if len(plan.times) else f"Poisson, bursts of {plan.burst:g}"
    return (
        f"{server.slots} slots, {reads}; arrivals: {arrivals}; plain decoding serves at most "
        f"{runs.capacity:.3g} requests/s, beyond that the queue grows as long as requests arrive",
        f"intervals: {plan.level:.0%}, Student's, over {plan.replicates} runs that draw arrivals "
        "and sequences of this recording anew; policies share them",
    )


def plot_load(rows: Sequence[LoadRow], path: Path | str, objective: str, title: str = "") -> None:
    """Write a PNG or SVG: mean latency and goodput by rate, and the best draft length."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    rates = list(dict.fromkeys(row.rate for row in rows))
    names = list(dict.fromkeys(row.policy for row in rows))
    figure = Figure(figsize=(9.6, 3.6), layout="constrained")
    panels = figure.subplots(1, 3)
    keys = (("latency_mean", "mean latency, s"), ("goodput", "good requests/s"))
    for axes, (key, label) in zip(panels, keys):
        for i, name in enumerate(names):
            points = [row.figures[key] for row in rows if row.policy == name]
            style = {"color": "black", "ls": "--"} if name == PLAIN else {"color": f"C{i % 10}"}
            axes.plot(rates, [p.value for p in points], label=label_text(name), lw=1.2, **style)
        axes.set(xlabel="requests/s", ylabel=label)
    panels[0].set_yscale("log")
    panels[0].legend(fontsize=6)
    best = [best_policy(rows, rate, objective) for rate in rates]
    order = [name for name in names if name in best]
    panels[2].step(rates, [order.index(name) for name in best], "o-", where="post", ms=3, lw=1)
    panels[2].set_yticks(range(len(order)), list(map(label_text, order)), fontsize=7)
    panels[2].set(xlabel="requests/s", title=f"best by {objective}")
    figure.suptitle(label_text(title), fontsize="medium")
    settings: Any = {"svg.hashsalt": "load", "svg.fonttype": "none"}
    kind = Path(path).suffix.lower().removeprefix(".")
    with replacing(Path(path)) as temporary, rc_context(settings):
        figure.savefig(temporary, format=kind, dpi=130, metadata={"Date": None} if kind == "svg"
                       else None)  # fmt: skip
