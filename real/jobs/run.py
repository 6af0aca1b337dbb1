"""Running a policy for real on a recording, and comparing every round with the replay."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from real.audit.engine_runs import emitted_sequences, run_header
from real.audit.run_file import save_run
from real.decode.beam_search import BeamSearch, parse_beam
from real.decode.engine import engines_of
from real.equality import Comparison, compare, rounds_of
from real.jobs.models import ModelSettings
from real.jobs.recordings import open_recording
from real.jobs.run_sampled import SampledOutcome, chain_policy, run_sampled
from real.measure import MeasureSettings, max_new_tokens, measure
from real.pair import Pair
from real.progress import Progress, quiet, relabel
from real.rerun import recorded_rule, rerun, rerun_rule, rule_of, total_seconds
from simspec import CostModel, Policy, Rounds, Trace, policies, replay
from simspec.output.files import check_output
from simspec.policy_kind import DeferredPolicy
from simspec.replay.tests import check_risk
from simspec.tree.outcomes import check_trace
from simspec.tree.policy import TreePolicy
from simspec.tree.replay import prepare_tree, replay_tree, tree_seconds


@dataclass(frozen=True)
class Outcome:
    """A policy run for real on a recording, compared with its replay.

    | field | meaning |
    | --- | --- |
    | simulated, measured | speedup over plain decoding: modelled (None for a drafter that was not \
recorded), and in wall-clock time |
    | committed | output tokens per round |
    | engines | engine that the target and the drafter ran on |

    Beams have no replay: their output is compared, and their own rounds are priced.
    """

    policy: str
    comparison: Comparison
    simulated: float | None
    measured: float
    device: str
    texts: tuple
    committed: float
    results: tuple = ()
    engines: Mapping[str, str] = field(default_factory=dict)

    @property
    def equal(self) -> bool:
        """Whether the rounds equal the replay's."""
        return self.comparison.equal

    def describe(self) -> str:
        """The line that `simspec run` prints."""
        compared = self.comparison
        known = self.simulated is not None
        simulated = f"{self.simulated:.3f} simulated" if known else "no replay of this drafter"
        return (
            f"{self.policy}: {compared.rounds} rounds compared, "
            f"{len(compared.exceptions)} exceptions, {len(compared.failures)} failures; "
            f"speedup {self.measured:.3f} measured, {simulated}"
        )

    def summary(self) -> dict:
        """The object that `simspec run --json` prints."""
        found = self.comparison
        return {
            "policy": self.policy,
            "replay_equal": found.equal,
            "lossless": found.lossless,
            "rounds_compared": found.rounds,
            "exceptions": [asdict(f) for f in found.exceptions],
            "failures": [asdict(f) for f in found.failures],
            "text_flips": len(found.text_flips),
            "speedup_simulated": None if self.simulated is None else round(self.simulated, 4),
            "speedup_measured": round(self.measured, 4),
            "committed_per_round": round(self.committed, 4),
            "device": self.device,
            "engines": dict(self.engines),
        }


def run_on(
    trace: Trace,
    pair: Pair,
    policy: Policy | TreePolicy | BeamSearch | str | Callable,
    cost: CostModel,
    seed: int = 0,
    progress: Progress = quiet,
) -> Outcome:
    """Runs `policy` and plain decoding on a trace's prompts, and compares rounds with the replay.

    Both speedups are time per token of plain decoding over that of the policy, without prefill.
    A drafter other than the recording's has no replay there: only its tokens are compared.
    ValueError for a recording of the rejection rule, see `run_sampled`.
    """
    rule_of(trace)
    if not isinstance(policy, BeamSearch):
        policy = policies.make(policy, trace, cost)
    foreign = pair.drafter.name != trace.meta.drafter
    if foreign:
        check_foreign(pair.drafter.name, policy, trace)
    if isinstance(policy, TreePolicy):
        prepare_tree(trace, policy, cost.reading(policy.reads))
    ran, plain = rerun(
        pair, trace, [policy], seed, cost, relabel(progress, f"running {policy.name}")
    )
    cost = cost.reading(policy.reads)
    simulated = None
    if foreign:
        replayed = rounds_of(trace, ran)
    else:
        replayed, spent = _replayed(trace, policy, seed, cost, ran)
        simulated = float(trace.rows * cost.baseline / spent.sum())
    tokens = [sum(len(r.token) for r in results) for results in (ran, plain)]
    return Outcome(
        policy.name,
        # the recording's draft margins are no evidence for another drafter
        compare(trace, policies.BUILTIN["fixed"](0) if foreign else policy, replayed, ran),
        simulated,
        total_seconds(plain) / tokens[1] * tokens[0] / total_seconds(ran),
        cost.device,
        tuple(r.token for r in ran),
        tokens[0] / sum(len(r.position) for r in ran),
        tuple(ran),
        engines_of(pair.target, pair.drafter),
    )


def _replayed(
    trace: Trace, policy: Policy | TreePolicy | BeamSearch, seed: int, cost: CostModel, ran
) -> tuple[Rounds, np.ndarray]:
    """The rounds of the replay, of beams those of the run, and their modeled seconds."""
    if isinstance(policy, BeamSearch):
        rounds = rounds_of(trace, ran)
        return rounds, cost.seconds_tree(rounds, policy.rows(rounds.computed), rounds.accepted)
    if isinstance(policy, TreePolicy):
        rounds = replay_tree(trace, policy, cost)
        return rounds, tree_seconds(rounds, trace, policy, cost)
    rounds = replay(trace, policy, seed=seed, cost=cost)
    return rounds, cost.seconds(rounds)


@dataclass(frozen=True)
class RunSettings:
    """How a recording is run.

    | field | meaning |
    | --- | --- |
    | policy | name[:arg,...] as in `simspec sweep`, or beam:width,k=levels |
    | cost | a cost model's file that policies observe; None: measured first |
    | prompts | so many of its prompts, spread over the tasks; 0: all |
    | seed | of the policy's draws |
    | drafter | another drafter than the recording's; "": the recording's |
    | save | where the sequences and rounds are written, .jsonl, for `simspec audit` |
    | risk | probability of a false alarm of the tests under the rejection rule |
    """

    policy: str = "beta_ts"
    cost: Path | None = None
    prompts: int = 0
    seed: int = 0
    save: Path | None = None
    drafter: str = ""
    risk: float = 1e-3


def run_recording(
    name: str, models: ModelSettings, settings: RunSettings, progress: Progress = quiet
) -> tuple[Outcome | SampledOutcome, Trace, Pair]:
    """Runs a policy on prompts of the recording `name`: (outcome, selected recording, models)."""
    check_risk(settings.risk)
    path, trace = open_recording(name, settings.prompts)
    if settings.save is not None:
        check_output(settings.save, path, settings.cost or "")
    policy = parse_runnable(settings.policy, trace)
    cost = None if settings.cost is None else CostModel.from_json(settings.cost)
    if settings.drafter not in ("", trace.meta.drafter):
        check_foreign(settings.drafter, policy, trace)
        cost = cost or CostModel.from_ratio(0.1, trace.K)  # policies observe it, nothing is priced
    rule, submitted = recorded_rule(trace), policy.submitted(trace.K)
    if rule.sampled:
        chain_policy(trace, policy, CostModel.from_ratio(0.1, trace.K))
    timing = MeasureSettings(rounds=8, repeats=2, tree_nodes=submitted)
    timed = timing.context[-1] + max_new_tokens(max(trace.K, submitted))
    pair = models.load_for(trace, name, submitted, timed if cost is None else 0, settings.drafter)
    if cost is None:
        measuring = relabel(progress, "measuring")
        offered = pair.drafter.longest(trace.K)
        cost = measure(pair.target, pair.drafter, rule, offered, timing, measuring)
        if offered < trace.K:  # so deep the policy may ask, and nothing is drafted
            cost = cost.extend(trace.K)
    outcome: Outcome | SampledOutcome
    if rule.sampled:
        chosen = chain_policy(trace, policy, cost)
        outcome = run_sampled(trace, pair, chosen, cost, settings.seed, settings.risk, progress)
    else:
        outcome = run_on(trace, pair, policy, cost, settings.seed, progress)
    if settings.save is not None:
        drawn = rerun_rule(trace, settings.seed)
        header = run_header(drawn, pair, outcome.policy, trace.meta.end_tokens)
        save_run(settings.save, header, emitted_sequences(trace, outcome.results))
    return outcome, trace, pair


def parse_runnable(text: str, trace: Trace) -> Policy | TreePolicy | BeamSearch | DeferredPolicy:
    """The policy of that name; ValueError where it cannot run on the prompts of `trace`."""
    policy = parse_beam(text, trace.K) if text.startswith("beam") else policies.parse(text)
    if trace.ratio is None:  # under the rejection rule `chain_policy` says why it reads none
        trace.features(policy.reads)
    if isinstance(policy, TreePolicy):
        check_trace(trace, policy)
    elif policy is policies.tree_oracle:
        raise ValueError(
            "tree_oracle is only replayed (simspec sweep); "
            "run a tree that does not know the text, such as optimal_tree:16"
        )
    return policy


def check_foreign(drafter: str, policy: object, trace: Trace) -> None:
    """ValueError for trees and oracles: they know what the recording's own drafter drafted."""
    name = getattr(policy, "name", "")
    clairvoyant = name.partition(":")[0] in policies.CLAIRVOYANT
    if clairvoyant or isinstance(policy, (BeamSearch, TreePolicy)):
        raise ValueError(
            f"policy {name!r} knows what {trace.meta.drafter!r} drafted here; "
            f"expected a policy of chains such as fixed:4 for drafter {drafter!r}"
        )
