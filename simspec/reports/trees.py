"""Chains, CAPE's sets and draft trees compared on recordings at equal node budgets."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simspec import policies as policy_names
from simspec.cost.gate import Claim, check_claims, no_interval
from simspec.cost.model import CostModel
from simspec.numerics.stats import MIN_PROMPTS, Estimate, difference, estimate, quotient, stacked
from simspec.output.frames import frame
from simspec.policies.fixed import fixed
from simspec.policies.oracles import oracle
from simspec.policies.trees import RULES, cape, dynamic_tree, optimal_tree, tree_oracle
from simspec.policy.policy import Policy, PolicyError
from simspec.policy_kind import DeferredPolicy
from simspec.replay.evaluation import Sequences, halves, priced_recordings
from simspec.replay.sweep import PASSES, ROUNDS, SECONDS, TOKENS, priced_seconds, prompt_figures
from simspec.trace.trace import Trace, TraceError
from simspec.tree.tree import MAX_NODES, MAX_SUBMITTED, TreeError, TreePolicy

Array = NDArray[np.float64]


@dataclass(frozen=True)
class TreeRow:
    """One policy on one recording; low and high are NaN where there is no interval."""

    # recording, policy: what was replayed, the policy without what was chosen for it
    recording: str
    policy: str
    chosen: str  # what the other half of the prompts chose: k, or levels and nodes, one per half
    clairvoyant: bool  # whether the policy knows the recorded tokens
    tau: Estimate  # Estimate: committed tokens per round, EAGLE's tau
    nodes: Estimate  # Estimate: submitted tokens per round
    passes: float  # float: the drafter's passes per round
    # Estimate: tau less that of the chain as deep as the tree; NaN: no one depth
    depth_gain: Estimate
    speedup: Estimate  # Estimate at the costs
    gain: Estimate  # Estimate: speedup less the best chain's, paired by prompt


def row_figures(
    figures: Array, best_chain: Array, equal: Array | None, cost: CostModel,
    options: Mapping[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """tau, nodes, passes, depth_gain, speedup and gain of a TreeRow, from `prompt_figures`.

    best_chain, equal: the same of the best fixed length, and of the chain of each prompt's depth;
    options: level, resamples and seed of intervals.
    """
    tokens, rounds, nodes, _ = figures[:, :PASSES].T
    seconds, chain = map(priced_seconds, (figures, best_chain))
    plain = tokens * cost.baseline

    def of(*columns: Array) -> Estimate:
        statistic = quotient if len(columns) == 2 else difference
        return estimate(stacked(*columns), statistic, **options)

    def priced(*columns: Array) -> Estimate:
        found = of(*columns)
        return replace(found, low=np.nan, high=np.nan) if no_interval(cost) else found

    no_depth = Estimate(np.nan, np.nan, np.nan, options["level"], len(tokens))
    return {
        "tau": of(tokens, rounds),
        "nodes": of(nodes, rounds),
        "passes": float(figures[:, PASSES].sum() / rounds.sum()),
        "depth_gain": no_depth
        if equal is None
        else of(tokens, rounds, equal[:, TOKENS], equal[:, ROUNDS]),
        "speedup": priced(plain, seconds),
        "gain": priced(plain, seconds, plain, chain),
    }


Depths = NDArray[np.int64]
"""Longest path of a draft, by prompt; 0 where it is not fixed beforehand."""
Fitted = tuple[Array, str, Depths]
"""(`prompt_figures`, what was chosen, the depths)."""


def fit_length(
    trace: Trace, cost: CostModel, k: int | None, policy_of: Callable[[int], Policy | TreePolicy]
) -> Fitted:
    """The lengths of policies with a chain of k tokens, k chosen if None."""
    if k is not None:
        return prompt_figures(trace, policy_of(k), cost), f"k={k}", np.full(trace.sequences, k)
    lengths = range(1, min(trace.K, MAX_SUBMITTED) + 1)
    by_length = np.stack([prompt_figures(trace, policy_of(j), cost) for j in lengths])

    def choose(fit: Sequences) -> tuple[Array, str, int]:
        j = int(by_length[:, fit, SECONDS].sum(axis=1).argmin())
        return by_length[j], f"k={lengths[j]}", lengths[j]

    return _crossed(trace, choose)


def fit_tree(
    trace: Trace, cost: CostModel, policy_of: Callable[[Sequences], DeferredPolicy]
) -> Fitted:
    """The shapes of trees that `policy_of` makes from some sequences."""

    def choose(fit: Sequences) -> tuple[Array, str, int]:
        policy = policy_of(fit).resolve(trace, cost)
        return prompt_figures(trace, policy, cost), shape_of(policy), depth_of(policy, trace)

    return _crossed(trace, choose)


def _whole(trace: Trace, cost: CostModel, policy: Any) -> Fitted:
    """A policy for which nothing is chosen."""
    resolved = policy_names.make(policy, trace, cost)
    depth = np.full(trace.sequences, depth_of(resolved, trace))
    return prompt_figures(trace, resolved, cost), shape_of(resolved), depth


def _crossed(trace: Trace, choose: Callable[[Sequences], tuple[Array, str, int]]) -> Fitted:
    """What `choose` makes from each half of the prompts, counted on the other."""
    parts = [(rest, *choose(fit)) for fit, rest in halves(trace)]
    figures, depths = np.empty_like(parts[0][1]), np.zeros(trace.sequences, np.int64)
    for rest, of_half, _, depth in parts:
        figures[rest], depths[rest] = of_half[rest], depth
    return figures, " / ".join(dict.fromkeys(chosen for _, _, chosen, _ in parts)), depths


def shape_of(policy: Policy | TreePolicy) -> str:
    """Nodes and depth of a static tree, '' for anything else."""
    if isinstance(policy, TreePolicy) and policy.kind == "static":
        return f"{len(policy.tree)} nodes, depth {policy.tree.levels}"
    return ""


def depth_of(policy: Policy | TreePolicy, trace: Trace) -> int:
    """Levels of a tree that its policy and the recording fix beforehand; 0 for anything else."""
    if not isinstance(policy, TreePolicy):
        return 0
    if policy.kind == "static":
        return policy.tree.levels
    if policy.kind in ("dynamic", "beam"):
        return trace.meta.tree[1] if trace.meta.tree else 0
    return policy.longest(trace.K)


BUDGETS = (8, 16, 32)
SETS = (0, 1, 3, 4, 5, 7)

Attempt = Callable[[], Fitted]


@dataclass(frozen=True)
class Candidates:
    """The policies of a comparison."""

    nodes: Sequence[int]  # node budgets of trees
    k: int | None  # chain of CAPE and of sets; None: chosen on the other half of the prompts
    policies: Sequence[tuple[str, Any]]  # further ones, (name, policy)

    def attempts(self, trace: Trace, cost: CostModel) -> list[tuple[str, Attempt]]:
        """(name, function that replays it) of each candidate, in the table's order."""
        length = partial(fit_length, trace, cost, self.k)
        tree, whole = partial(fit_tree, trace, cost), partial(_whole, trace, cost)
        fits: list[tuple[str, Callable[[Any], Fitted], Any]] = []
        for width in SETS:
            fits.append((f"cape:{width}" if width else "none", length, partial(cape, width)))
        for source in ("section", "appendix"):
            fits.append((f"cape:{source}", length, partial(cape, source)))
        fits.append(("dynamic_tree:beams", whole, dynamic_tree("beams")))
        for n in self.nodes:
            for rule in reversed(RULES):
                name = optimal_tree(n, rule).name
                fits.append((name, tree, partial(optimal_tree, n, rule)))
            fits.append((f"dynamic_tree:{n}", whole, dynamic_tree(n)))
        fits.append(("optimal_tree", tree, partial(optimal_tree, None, RULES[0])))
        bounds = ("oracle", oracle), ("tree_oracle", tree_oracle)
        fits += [(name, whole, policy) for name, policy in (*self.policies, *bounds)]
        return [(name, partial(fit, of)) for name, fit, of in fits]


def compare_trees(
    traces: Mapping[str, Trace | Path | str],
    costs: Any,
    nodes: Sequence[int] = BUDGETS,
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
        check_claims(
            (Claim(r.policy, r.speedup.value, r.tau.value, r.speedup.low) for r in of_recording),
            cost,
            f"{name}, costs {cost.name!r}",
        )
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

    def add(policy: str, fitted: Fitted) -> None:
        figures, chosen, depths = fitted
        clairvoyant = policy in policy_names.CLAIRVOYANT
        fixed_depth = depths.all() and not clairvoyant
        equal = chains[depths, np.arange(trace.sequences)] if fixed_depth else None
        measures = row_figures(figures, chains[best], equal, cost, options)
        rows.append(TreeRow(name, policy, chosen, clairvoyant, **measures))

    none = np.zeros(trace.sequences, np.int64)
    add("plain", (chains[0], "", none))
    add("best chain", (chains[best], f"k={best}, in hindsight", none))
    for policy, attempt in candidates.attempts(trace, cost):
        try:
            fitted = attempt()
        except (TraceError, PolicyError, TreeError) as error:
            failed.append((policy, error))
        else:
            add(policy, fitted)
    return rows, failed


def tree_frame(rows: Sequence[TreeRow]) -> Any:
    """The rows as a DataFrame."""
    names = ("recording", "policy", "chosen")
    figures = ("tau", "depth_gain", "nodes", "passes", "speedup", "gain")
    cells = [{name: getattr(row, name) for name in (*names, *figures)} for row in rows]
    for row, cell in zip(rows, cells):
        if row.clairvoyant:
            cell["policy"] += " (knows the text)"
    legend = (
        "tau: tokens a round, with the target's own; depth_gain: tau less that of the chain as "
        "deep. nodes: submitted a round; passes: of the drafter a round. gain: speedup less that "
        "of the best chain.",
        "k, shapes: chosen on half the prompts, counted on the other. "
        f"No intervals for fewer than {MIN_PROMPTS} prompts.",
    )
    return frame(
        cells, (*names, *figures), names=3, notes=legend,
        formats={"nodes": ".1f", "passes": ".2f", "speedup": ".3f", "gain": "+.3f",
                 "tau": ".2f", "depth_gain": "+.2f"},
        optional=("passes", "nodes", "depth_gain"),
    )  # fmt: skip
