"""Chains, CAPE's sets and trees side by side on recordings, at equal node budgets, with intervals over prompts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from simspec import policies as policy_texts
from simspec.cost import CostModel
from simspec.policies import (
    beams,
    cape,
    dynamic_tree,
    fixed,
    full_tree,
    medusa_tree,
    optimal_tree,
    oracle,
    sets,
    tree_oracle,
)
from simspec.policy import Policy, PolicyError
from simspec.simulate import replay
from simspec.stats import FEWEST, Interval, ratio, ratio_difference
from simspec.trace import Trace, TraceError, load_trace
from simspec.tree import MOST, TreeError
from simspec.tree_policy import SUBMITTED, TreePolicy
from simspec.tree_replay import replay_tree, tree_seconds

NODES = (8, 16, 32)
SETS = (0, 1, 3, 5, 7)


@dataclass(frozen=True)
class Line:
    """One policy on one recording; low and high of an interval are NaN where it has none.

    | field      | meaning                                                                                             |
    | ---------- | --------------------------------------------------------------------------------------------------- |
    | recording, rule, policy | what was replayed, the policy without what was chosen for it                              |
    | chosen     | what the other half of the prompts chose for it: k or levels and nodes, one for each half            |
    | budget     | node budget of a tree, 0: none is set                                                              |
    | clairvoyant | whether it knows the text                                                                         |
    | tau        | Interval: committed tokens a round, EAGLE's tau                                                     |
    | nodes      | Interval: submitted tokens a round                                                                  |
    | passes     | float: the drafter's passes a round                                                                 |
    | alpha      | (float,) [K]: n-alpha of the rounds made, as in Metrics.accept_by_depth; NaN: never so deep          |
    | speedup    | Interval at the costs                                                                               |
    | gain       | Interval: speedup less the best chain's, the same prompts drawn for both                            |
    """

    recording: str
    rule: str
    policy: str
    chosen: str
    budget: int
    clairvoyant: bool
    tau: Interval
    nodes: Interval
    passes: float
    alpha: tuple
    speedup: Interval
    gain: Interval

    def to_dict(self) -> dict:
        """As plain data for JSON: an interval is {value, low, high}, and NaN None."""
        shown = {name: _plain(getattr(self, name)) for name in ("tau", "nodes", "speedup", "gain")}
        return (
            asdict(self)
            | shown
            | {"alpha": [None if np.isnan(a) else float(a) for a in self.alpha]}
        )


def grove(
    traces: Mapping, costs=0.1, nodes: Sequence[int] = NODES, k: int | None = None, policies: Sequence = (),
    level: float = 0.95, resamples: int = 2000, seed: int = 0, more: Callable | None = None,
) -> tuple[list[Line], list[str]]:  # fmt: skip
    """(a Line per policy and recording, notes on what was left out or extrapolated).

    The best chain is fixed:0 .. fixed:K's in hindsight, and what gains are taken against. Everything that needs a choice has it made on
    half the prompts (every second one) and is counted on the other half, both ways: the chain's length of CAPE and of sets (of k, if
    given, for all), the widths, depth and nodes of static trees. `verify` is widened, see `CostModel.widen`, where it prices fewer nodes
    than a budget or 32. traces {name: Trace or path}; costs as for `score`; policies: further ones, as they are. more(trace, cost)
    gives further {name: policy} for a recording: what was measured elsewhere, such as beams, enters there. ValueError, one line.
    """
    found, notes, failed = [], [], {}
    for n in nodes:
        if not 1 <= n <= MOST:
            raise TreeError(f"a budget of {n} nodes, expected 1 to {MOST}")
    if not 0 < level < 1:
        raise ValueError(f"level is {level}, expected a number in (0, 1), such as 0.95")
    given = [
        (getattr(p, "name", p), policy_texts.parse(p) if isinstance(p, str) else p)
        for p in policies
    ]
    for name, each in traces.items():
        trace = each if isinstance(each, Trace) else load_trace(each)
        if k is not None and not 1 <= k <= min(trace.K, SUBMITTED):
            raise PolicyError(
                f"k is {k}, expected a chain of 1 to {min(trace.K, SUBMITTED)} tokens on {name}"
            )
        cost = costs[name] if isinstance(costs, Mapping) else costs
        cost = cost if isinstance(cost, CostModel) else CostModel.from_ratio(cost, trace.K, MOST)
        most = max(SUBMITTED, *nodes)
        if cost.nodes < most:
            notes.append(
                f"{name}: cost {cost.name!r} prices {cost.nodes} submitted tokens, more are extrapolated: measure more rows"
            )
            cost = cost.widen(most)
        made, left_out = _recording(
            name,
            trace,
            cost,
            nodes,
            k,
            given,
            more,
            {"level": level, "resamples": resamples, "seed": seed},
        )
        found += made
        for reason in dict.fromkeys(str(error) for _, error in left_out):
            notes.append(
                f"{name}: without {', '.join(label for label, error in left_out if str(error) == reason)}: {reason}"
            )
        for label, error in left_out:
            failed.setdefault(label, []).append(error)
    for label, _ in given:
        if len(failed.get(label, [])) == len(traces):
            raise failed[label][0]
    return found, notes


def _recording(name, trace, cost, nodes, k, given, more, options):
    lengths = [_figures(trace, fixed(j), cost) for j in range(trace.K + 1)]
    best = int(np.argmin([figures[:, 3].sum() for figures in lengths]))
    found, left_out = [], []

    def line(policy, figures, chosen="", budget=0):
        clairvoyant = policy in policy_texts.CLAIRVOYANT
        found.append(
            _line(
                name,
                trace,
                cost,
                policy,
                chosen,
                budget,
                clairvoyant,
                figures,
                lengths[best],
                options,
            )
        )

    def attempt(policy, make, budget=0):
        try:
            figures, chosen = make()
        except (TraceError, PolicyError, TreeError) as error:
            left_out.append((policy, error))
        else:
            line(policy, figures, chosen, budget)

    def whole(policy):
        made = policy_texts.make(policy, trace, cost)
        return _figures(trace, made, cost), _shape(made)

    line("plain", lengths[0])
    line("best chain", lengths[best], f"k={best}, in hindsight")
    for width in SETS:
        attempt(
            "none" if not width else f"sets:{width}",
            lambda width=width: _chain(trace, cost, lambda j: sets(width, j), k),
        )
    for table in ("section", "appendix"):
        attempt(
            f"cape:{table}", lambda table=table: _chain(trace, cost, lambda j: cape(table, j), k)
        )
    attempt("beams", lambda: whole(beams()))
    for n in nodes:
        for maker in (full_tree, medusa_tree, optimal_tree):
            attempt(
                f"{maker.__name__}:{n}",
                lambda maker=maker, n=n: _fitted(trace, cost, lambda fit: maker(n, fit)),
                n,
            )
        attempt(f"dynamic_tree:{n}", lambda n=n: whole(dynamic_tree(n)), n)
    attempt("optimal_tree", lambda: _fitted(trace, cost, lambda fit: optimal_tree(None, fit)))
    for label, policy in [*given, *(more(trace, cost).items() if more else ())]:
        attempt(label, lambda policy=policy: whole(policy))
    attempt("oracle", lambda: whole(oracle))
    attempt("tree_oracle", lambda: whole(tree_oracle))
    return found, left_out


def _halves(trace):
    """[(sequences to choose on, sequences to count)]: every second prompt, both ways; all for both where there is one prompt only."""
    every = np.arange(trace.sequences)
    return (
        [(every[::2], every[1::2]), (every[1::2], every[::2])]
        if trace.sequences > 1
        else [(every, every)]
    )


def _chain(trace, cost, make, k):
    if k is not None:
        return _figures(trace, make(k), cost), f"k={k}"
    lengths = range(1, min(trace.K, SUBMITTED) + 1)
    by_length = np.stack([_figures(trace, make(j), cost) for j in lengths])
    figures, chosen = np.empty_like(by_length[0]), []
    for fit, rest in _halves(trace):
        j = int(by_length[:, fit, 3].sum(axis=1).argmin())
        figures[rest] = by_length[j, rest]
        chosen.append(f"k={lengths[j]}")
    return figures, _both(chosen)


def _fitted(trace, cost, make):
    figures, chosen = None, []
    for fit, rest in _halves(trace):
        policy = make(fit)(trace, cost)
        found = _figures(trace, policy, cost)
        figures = found if figures is None else figures
        figures[rest] = found[rest]
        chosen.append(_shape(policy))
    return figures, _both(chosen)


def _both(chosen):
    return " / ".join(dict.fromkeys(chosen))


def _shape(policy):
    if isinstance(policy, TreePolicy) and policy.kind == "static":
        return f"{len(policy.tree)} nodes, depth {policy.tree.levels}"
    return ""


def _figures(trace, policy, cost):
    """float64[S, 5 + 2 K]: tokens, rounds, nodes, seconds, passes of each prompt, and how often each depth was right, and tried."""
    cost = cost.reading(policy.reads)
    if isinstance(policy, Policy):
        rounds = replay(trace, policy, cost=cost)
        seconds = cost.seconds(rounds)
    else:
        rounds = replay_tree(trace, policy, cost)
        seconds = tree_seconds(rounds, trace, policy, cost)
    slot = np.arange(trace.K)
    right = slot < rounds.accepted[:, None]
    tried = (
        slot < np.minimum(np.minimum(rounds.computed, rounds.drafted), rounds.accepted + 1)[:, None]
    )
    parts = np.column_stack(
        (np.ones(len(rounds)), rounds.drafted, seconds, rounds.computed, right, tried)
    )
    return np.column_stack(
        (np.diff(trace.offset), np.add.reduceat(parts, rounds.offset[:-1], axis=0))
    )


def _line(name, trace, cost, policy, chosen, budget, clairvoyant, figures, reference, options):
    tokens, rounds, nodes, seconds = figures[:, :4].T
    plain = tokens * cost.baseline
    right, tried = figures[:, 5:].sum(axis=0).reshape(2, -1)
    alpha = tuple(float(r / t) if t else float("nan") for r, t in zip(right, tried))

    def interval(function, *columns):
        try:
            return function(*columns, **options)
        except ValueError:  # too few prompts
            columns = np.stack(columns, axis=-1).sum(axis=0)
            value = columns[0] / columns[1] - (columns[2] / columns[3] if len(columns) > 2 else 0)
            return Interval(float(value), np.nan, np.nan, options["level"], len(tokens))

    return Line(
        name, trace.meta.rule, policy, chosen, budget, clairvoyant,
        tau=interval(ratio, tokens, rounds),
        nodes=interval(ratio, nodes, rounds),
        passes=float(figures[:, 4].sum() / rounds.sum()),
        alpha=alpha,
        speedup=interval(ratio, plain, seconds),
        gain=interval(ratio_difference, plain, seconds, plain, reference[:, 3]),
    )  # fmt: skip


def table(lines: list[Line]):
    """The lines as a pandas DataFrame: tau, nodes, speedup, gain each with _low and _high, alpha_1 .. alpha_K."""
    import pandas

    flat = []
    for each in lines:
        row = {
            key: getattr(each, key)
            for key in ("recording", "rule", "policy", "chosen", "budget", "clairvoyant", "passes")
        }
        for key in ("tau", "nodes", "speedup", "gain"):
            interval = getattr(each, key)
            row |= {key: interval.value, f"{key}_low": interval.low, f"{key}_high": interval.high}
        flat.append(row | {f"alpha_{j}": a for j, a in enumerate(each.alpha, 1)})
    return pandas.DataFrame(flat)


HEADS = (
    "policy",
    "chosen",
    "tokens/round",
    "nodes/round",
    "passes/round",
    "speedup",
    "over the best chain",
)


def markdown(lines: list[Line]) -> str:
    """A Markdown table for each recording."""
    parts = []
    for name in dict.fromkeys(each.recording for each in lines):
        rows = [
            HEADS,
            ("---",) * len(HEADS),
            *(_cells(each) for each in lines if each.recording == name),
        ]
        parts.append("\n".join([f"**{name}**", "", *(f"| {' | '.join(row)} |" for row in rows)]))
    return "\n\n".join(parts)


def show(lines: list[Line], console) -> None:
    """Print a table for each recording to a rich Console."""
    from rich.table import Table

    for name in dict.fromkeys(each.recording for each in lines):
        shown = Table(*HEADS, title=name, title_justify="left")
        for each in lines:
            if each.recording == name:
                shown.add_row(*(cell.replace("[", "\\[") for cell in _cells(each)))
        console.print(shown)
    console.print(
        "tokens/round: tau, with the target's own. nodes/round: submitted. passes/round: of the drafter. Speedups at the costs."
    )
    said = f"k, shapes: chosen on half the prompts, counted on the other. Intervals: bootstrap over prompts, none for fewer than {FEWEST}."
    console.print(said, highlight=False)


def _cells(each):
    gain = _cell(each.gain, "+.3f") if each.policy != "best chain" else "-"
    return (
        each.policy + (" (knows the text)" if each.clairvoyant else ""), each.chosen or "-", _cell(each.tau), _cell(each.nodes, ".1f"),
        f"{each.passes:.2f}", _cell(each.speedup, ".3f"), gain,
    )  # fmt: skip


def _cell(each, form=".2f"):
    return f"{each.value:{form}}" + (
        "" if np.isnan(each.low) else f" [{each.low:{form}}, {each.high:{form}}]"
    )


def _plain(each):
    return {
        key: None if np.isnan(getattr(each, key)) else getattr(each, key)
        for key in ("value", "low", "high")
    }
