"""Running a policy under the rejection rule, where rounds equal replays in distribution."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field

import numpy as np

from real.decode.beam_search import BeamSearch
from real.decode.engine import engines_of
from real.equality import rounds_of
from real.pair import Pair
from real.progress import Progress, quiet, relabel
from real.record.emitted_sequences import record_emitted
from real.record.stepwise import check_history_free
from real.rerun import SEEDS, rerun, rerun_rule, total_seconds
from simspec import CostModel, Policy, PolicyError, Trace, policies
from simspec.replay.replay import prepare
from simspec.replay.tests import POWER, ReplaySettings, RoundTests, check_rounds

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
