"""Chains, CAPE's sets and draft trees compared on recordings at equal node budgets."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from simspec import policies as policy_names
from simspec.cost.model import CostModel
from simspec.evaluate.evaluation import priced_recordings
from simspec.numerics.stats import MIN_PROMPTS
from simspec.output.table import Table
from simspec.policies.fixed import fixed
from simspec.policies.oracles import oracle
from simspec.policies.trees import RULES, cape, dynamic_tree, optimal_tree, tree_oracle
from simspec.policy.policy import PolicyError
from simspec.reports.tree_rows import (
    SECONDS,
    Fitted,
    TreeRow,
    depth_of,
    fit_length,
    fit_tree,
    prompt_figures,
    row_figures,
    shape_of,
)
from simspec.trace.trace import Trace, TraceError
from simspec.tree.policy import MAX_SUBMITTED
from simspec.tree.tree import MAX_NODES, TreeError

NODES = (8, 16, 32)
SETS = (0, 1, 3, 4, 5, 7)

Attempt = Callable[[], Fitted]


@dataclass(frozen=True)
class Candidates:
    """The policies of a comparison.

    | field | meaning |
    | --- | --- |
    | nodes | node budgets of trees |
    | k | chain of CAPE and of sets; None: chosen on the other half of the prompts |
    | policies | further ones, (name, policy) |
    """

    nodes: Sequence[int]
    k: int | None
    policies: Sequence[tuple[str, Any]]

    def attempts(self, trace: Trace, cost: CostModel) -> list[tuple[str, int, Attempt]]:
        """(name, node budget, function that replays it) of each candidate, in the table's order."""

        def length(policy_of: Callable[[int], Any]) -> Attempt:
            return lambda: fit_length(trace, cost, policy_of, self.k)

        def tree(policy_of: Callable[[Any], Any]) -> Attempt:
            return lambda: fit_tree(trace, cost, policy_of)

        def whole(policy: Any) -> Attempt:
            def figures() -> Fitted:
                resolved = policy_names.make(policy, trace, cost)
                depth = np.full(trace.sequences, depth_of(resolved, trace))
                return prompt_figures(trace, resolved, cost), shape_of(resolved), depth

            return figures

        attempts: list[tuple[str, int, Attempt]] = []
        for width in SETS:
            attempts.append((f"cape:{width}" if width else "none", 0, length(partial(cape, width))))
        for source in ("section", "appendix"):
            attempts.append((f"cape:{source}", 0, length(partial(cape, source))))
        attempts.append(("dynamic_tree:beams", 0, whole(dynamic_tree("beams"))))
        for n in self.nodes:
            for rule in reversed(RULES):
                name = optimal_tree(n, rule).name
                attempts.append((name, n, tree(partial(optimal_tree, n, rule))))
            attempts.append((f"dynamic_tree:{n}", n, whole(dynamic_tree(n))))
        attempts.append(("optimal_tree", 0, tree(partial(optimal_tree, None, RULES[0]))))
        attempts += [(name, 0, whole(policy)) for name, policy in self.policies]
        return [*attempts, ("oracle", 0, whole(oracle)), ("tree_oracle", 0, whole(tree_oracle))]


def compare_trees(
    traces: Mapping[str, Trace | Path | str],
    costs: Any = 0.1,
    nodes: Sequence[int] = NODES,
    k: int | None = None,
    policies: Sequence[Any] = (),
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> tuple[list[TreeRow], list[str]]:
    """(a TreeRow per policy and recording, notes on what was left out or extrapolated).

    Gains are over the best chain: the best of fixed:0 .. fixed:K in hindsight. A setting (the
    chain of CAPE and of sets, the shape of static trees) is chosen on every second prompt and
    counted on the others, both ways; see `Candidates`. depth_gain compares trees with chains as
    EAGLE's Table 5 does, at equal depth. Where `verify` prices fewer nodes than needed it is
    widened, see `CostModel.widen`. traces {name: Trace or path}; costs as for
    `score`. ValueError for what cannot run, and for a policy that no recording can serve.
    """
    for n in nodes:
        if not 1 <= n <= MAX_NODES:
            raise TreeError(f"a budget of {n} nodes, expected 1 to {MAX_NODES}")
    if not 0 < level < 1:
        raise ValueError(f"level is {level}, expected a number in (0, 1), such as 0.95")
    named = [
        (getattr(p, "name", p), policy_names.parse(p) if isinstance(p, str) else p)
        for p in policies
    ]
    candidates = Candidates(nodes, k, named)
    options = {"level": level, "resamples": resamples, "seed": seed}
    rows: list[TreeRow] = []
    notes: list[str] = []
    errors: dict[str, list[ValueError]] = {}
    for name, trace, cost in priced_recordings(traces, costs):
        longest = min(trace.K, MAX_SUBMITTED)
        if k is not None and not 1 <= k <= longest:
            raise PolicyError(f"k is {k}, expected a chain of 1 to {longest} tokens on {name}")
        most = max(MAX_SUBMITTED, *nodes)
        if cost.nodes < most:
            notes.append(
                f"{name}: cost {cost.name!r} prices {cost.nodes} submitted tokens, "
                "more are extrapolated: measure more rows"
            )
            cost = cost.widen(most)
        of_recording, failed = _rows(name, trace, cost, candidates, options)
        rows += of_recording
        for reason in dict.fromkeys(str(error) for _, error in failed):
            without = ", ".join(policy for policy, error in failed if str(error) == reason)
            notes.append(f"{name}: without {without}: {reason}")
        for policy, error in failed:
            errors.setdefault(policy, []).append(error)
    for policy, _ in named:
        if len(errors.get(policy, [])) == len(traces):
            raise errors[policy][0]
    return rows, notes


def _rows(
    name: str, trace: Trace, cost: CostModel, candidates: Candidates, options: Mapping[str, Any]
) -> tuple[list[TreeRow], list[tuple[str, ValueError]]]:
    """(the rows of a recording, (policy, error) of each that it cannot serve)."""
    chains = np.stack([prompt_figures(trace, fixed(j), cost) for j in range(trace.K + 1)])
    best = int(chains[:, :, SECONDS].sum(axis=1).argmin())
    rows: list[TreeRow] = []
    failed: list[tuple[str, ValueError]] = []

    def add(policy: str, fitted: Fitted, budget: int = 0) -> None:
        figures, chosen, depths = fitted
        clairvoyant = policy in policy_names.CLAIRVOYANT
        fixed_depth = depths.all() and not clairvoyant
        equal = chains[depths, np.arange(trace.sequences)] if fixed_depth else None
        measures = row_figures(figures, chains[best], equal, cost, options)
        rows.append(TreeRow(name, trace.meta.rule, policy, chosen, budget, clairvoyant, **measures))

    none = np.zeros(trace.sequences, np.int64)
    add("plain", (chains[0], "", none))
    add("best chain", (chains[best], f"k={best}, in hindsight", none))
    for policy, budget, attempt in candidates.attempts(trace, cost):
        try:
            fitted = attempt()
        except (TraceError, PolicyError, TreeError) as error:
            failed.append((policy, error))
        else:
            add(policy, fitted, budget)
    return rows, failed


HEADINGS = (
    "policy",
    "chosen",
    "tokens/round",
    "over a chain as deep",
    "nodes/round",
    "passes/round",
    "speedup",
    "over the best chain",
)


def frame(rows: Sequence[TreeRow]) -> Any:
    """The rows as a pandas DataFrame: intervals with _low and _high, alpha_1 .. alpha_K."""
    import pandas

    keys = ("recording", "rule", "policy", "chosen", "budget", "clairvoyant", "passes")
    flat = []
    for row in rows:
        columns = {key: getattr(row, key) for key in keys}
        for key in ("tau", "nodes", "depth_gain", "speedup", "gain"):
            columns |= getattr(row, key).columns(key)
        flat.append(columns | {f"alpha_{j}": alpha for j, alpha in enumerate(row.alpha, 1)})
    return pandas.DataFrame(flat)


def tables(rows: Sequence[TreeRow], covered: str = "") -> list[Table]:
    """A table for each recording, the last with the legend and what its intervals cover."""
    notes = (
        "tokens/round: tau, with the target's own; over a chain as deep: tau less that of "
        "fixed:K, K the levels. nodes/round: submitted. passes/round: of the drafter. Speedups at "
        "the costs.",
        "k, shapes: chosen on half the prompts, counted on the other. "
        f"Speedups: {covered} None for fewer than {MIN_PROMPTS} prompts.",
    )
    names = list(dict.fromkeys(row.recording for row in rows))
    return [
        Table(
            HEADINGS,
            [_cells(row) for row in rows if row.recording == name],
            title=name,
            optional=("passes/round", "nodes/round", "chosen", "over a chain as deep"),
            notes=notes if name == names[-1] else (),
        )
        for name in names
    ]


def _cells(row: TreeRow) -> tuple[str, ...]:
    return (
        row.policy + (" (knows the text)" if row.clairvoyant else ""),
        row.chosen or "-",
        row.tau.text(),
        row.depth_gain.text("+.2f"),
        row.nodes.text(".1f"),
        f"{row.passes:.2f}",
        row.speedup.text(".3f"),
        "-" if row.policy == "best chain" else row.gain.text("+.3f"),
    )
