"""Running a policy for real on a recording, and comparing every round with the replay."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from real.audit.runs import emitted_sequences, run_header, save_run
from real.decode.engine import engines_of
from real.decode.plans import BeamSearch, parse_beam
from real.equality import Comparison, compare, rounds_of
from real.measure import MeasureSettings, max_new_tokens
from real.measure.price import measure
from real.model_settings import ModelSettings, open_recording
from real.pair import Pair
from real.progress import Progress, quiet, relabel
from real.record.rows import check_history_free, record_emitted
from real.rerun import SEEDS, recorded_rule, rerun, rerun_rule, rule_of, total_seconds
from simspec import CostModel, Policy, PolicyError, Rounds, Trace, policies, replay
from simspec.output.files import check_output
from simspec.policy_kind import DeferredPolicy
from simspec.replay.replay import prepare
from simspec.replay.round_tests import POWER, ReplaySettings, RoundTests, check_risk, check_rounds
from simspec.tree.replay import check_trace, prepare_tree, replay_tree, tree_seconds
from simspec.tree.tree import TreePolicy

REPLAYS = 32
"""Replays of the recording whose mean is the modelled speedup."""


@dataclass(frozen=True)
class SampledOutcome:
    """A policy run for real under the rejection rule, with tests of its rounds.

    | field | meaning |
    | --- | --- |
    | tests | of the rounds, against replays of the run's own tokens and of the recording |
    | simulated, measured | speedup over plain decoding: modelled, the mean over replays of the \
recording (None for a drafter that was not recorded), and in wall-clock time |
    | committed, replayed | output tokens a round: of the run, and over replays of the recording |
    | results, texts | runs of all sequences, and their tokens |
    | engines | engine that the target and the drafter ran on |
    """

    policy: str
    tests: RoundTests
    simulated: float | None
    measured: float
    device: str
    committed: float
    replayed: float | None
    results: tuple
    engines: Mapping[str, str] = field(default_factory=dict)

    @property
    def equal(self) -> bool:
        """Whether no test raises an alarm."""
        return self.tests.equal

    @property
    def texts(self) -> tuple:
        return tuple(result.token for result in self.results)

    def summary(self) -> dict:
        """The object that `simspec run --json` prints for a recording of the rejection rule."""
        tests = asdict(self.tests) | {"p_values": dict(self.tests.p_values), "power": POWER}
        if self.tests.detectable == float("inf"):
            tests["detectable"] = None
        return {
            "policy": self.policy,
            "rule": "rejection",
            "replay_equal": self.equal,
            "alarms": self.tests.alarms,
            "tests": tests,
            "speedup_simulated": None if self.simulated is None else round(self.simulated, 4),
            "speedup_measured": round(self.measured, 4),
            "committed_per_round": round(self.committed, 4),
            "committed_per_round_replayed": self.replayed and round(self.replayed, 4),
            "device": self.device,
            "engines": dict(self.engines),
        }

    def describe(self) -> str:
        """The lines that `simspec run` prints."""
        tests = self.tests
        p_values = ", ".join(f"{name} p = {p:.3g}" for name, p in tests.p_values)
        known = self.simulated is not None
        simulated = f"{self.simulated:.3f} simulated" if known else "no replay of this drafter"
        lengths = f"{self.committed:.3f} tokens a round"
        if self.replayed is not None:
            lengths += f", {self.replayed:.3f} in replays of the recording"
        outcome = f"NOT EQUAL: {', '.join(tests.alarms)}" if tests.alarms else "no alarm"
        return (
            f"{self.policy}: {tests.rounds} rounds, {tests.replayed:.1f} +- {tests.spread:.1f} in "
            f"{tests.replays} replays of its tokens; {lengths}\n"
            f"{p_values}\n"
            f"{outcome}; a false alarm has probability {tests.risk:g} at most (each test "
            f"{tests.level:.2g}); a loss of {tests.detectable:.2%} of accepted tokens is detected "
            f"with probability {POWER}\n"
            f"speedup {self.measured:.3f} measured, {simulated}"
        )


def run_sampled(
    trace: Trace,
    pair: Pair,
    policy: Policy | str | Callable,
    cost: CostModel,
    seed: int = 0,
    risk: float = 1e-3,
    progress: Progress = quiet,
) -> SampledOutcome:
    """Runs `policy` and plain decoding on a trace's prompts, and tests rounds against replays.

    The run draws its own tokens, by another seed than the recording's. Both speedups are time per
    token of plain decoding over that of the policy, without prefill. A drafter other than the
    recording's is tested on the run's own tokens only. PolicyError for policies that do not replay
    under this rule, RecordError for a drafter that is not history-free.
    """
    chosen = chain_policy(trace, policy, cost)
    check_history_free(pair.drafter)
    rule = rerun_rule(trace, seed)
    settings = ReplaySettings(chosen, cost, (rule.seed + 1) % SEEDS, risk)
    running = relabel(progress, f"running {chosen.name}")
    ran, plain = rerun(pair, trace, [chosen], seed, cost, running)
    own = record_emitted(pair.target, pair.drafter, rule, trace, [r.token for r in ran])
    rounds = rounds_of(own, ran)
    recorded = pair.drafter.name == trace.meta.drafter
    tests = check_rounds(rounds, own, settings, trace if recorded else None)
    simulated = replayed = None
    if recorded:
        replays = list(settings.replays(trace, REPLAYS))
        seconds = np.mean([cost.seconds(r).sum() for r in replays])
        simulated = float(trace.rows * cost.baseline / seconds)
        replayed = float(trace.rows / np.mean([len(r) for r in replays]))
    tokens = [sum(len(r.token) for r in results) for results in (ran, plain)]
    return SampledOutcome(
        policy=chosen.name,
        tests=tests,
        simulated=simulated,
        measured=total_seconds(plain) / tokens[1] * tokens[0] / total_seconds(ran),
        device=cost.device,
        committed=tokens[0] / len(rounds),
        replayed=replayed,
        results=tuple(ran),
        engines=engines_of(pair.target, pair.drafter),
    )


def chain_policy(trace: Trace, policy: object, cost: CostModel) -> Policy:
    """The policy, if it replays on a recording of the rejection rule; else PolicyError."""
    chosen = policy if isinstance(policy, BeamSearch) else policies.make(policy, trace, cost)
    if not isinstance(chosen, Policy):
        raise PolicyError(
            f"{chosen.name} is no policy of chains, whose rounds alone are tested under the "
            "rejection rule; expected one such as fixed:3, or a greedy or coupled recording"
        )
    prepare(trace, chosen, cost)
    return chosen


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
    | prompts | number of its prompts, spread over the tasks; 0: all |
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
    timing = MeasureSettings(repeats=8, seconds=0, tree_nodes=submitted)
    timed = timing.context[-1] + max_new_tokens(max(trace.K, submitted))
    pair = models.load_for(trace, name, submitted, timed if cost is None else 0, settings.drafter)
    if cost is None:
        measuring = relabel(progress, "measuring costs, which --cost skips")
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
