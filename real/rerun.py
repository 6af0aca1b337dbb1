"""Policies run for real on a recording's prompts, and every round compared with the replay.

`run_on` compares rounds one by one; under the rejection rule, where a run draws its own tokens,
`run_sampled` tests them in distribution.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from real.decode.engine import engines_of
from real.decode.loop import DecodeResult, decode
from real.decode.plans import make_plan
from real.pair import Pair, check_predictors
from real.progress import Progress, quiet, relabel
from real.prompts import prompts_of
from real.record.rows import check_history_free, record_emitted
from real.sampling import Rule
from simspec import CostModel, Policy, PolicyError, Rounds, Trace, policies, replay
from simspec.policy_kind import DeferredPolicy
from simspec.replay.replay import prepare
from simspec.replay.round_tests import POWER, ReplaySettings, RoundTests, check_rounds
from simspec.trace.file import SAMPLED
from simspec.trace.quantization import decode_margin
from simspec.tree.replay import check_trace, replay_tree
from simspec.tree.tree import TreePolicy

AnyPolicy = Policy | TreePolicy

SEEDS = 1 << 64
"""Seeds of draws are smaller."""


def recorded_rule(trace: Trace) -> Rule:
    """The rule that a trace was recorded under, with its seed; ValueError for a synthetic one."""
    meta = trace.meta
    if meta.rule == "greedy":
        return Rule()
    if meta.rule not in ("coupled", *SAMPLED):
        raise ValueError(
            f"rule {meta.rule!r} cannot be run; expected a greedy or coupled recording"
        )
    return Rule(meta.rule, meta.temperature, meta.seed, meta.top_k, meta.top_p)


def rule_of(trace: Trace) -> Rule:
    """The `recorded_rule` of a trace whose rounds can be repeated; ValueError for others."""
    rule = recorded_rule(trace)
    if rule.sampled:
        raise ValueError(
            f"the recording is of the {rule.name} rule: its rounds replay in distribution, "
            "not one by one; use a greedy or coupled one"
        )
    return rule


def rerun_rule(trace: Trace, seed: int = 0) -> Rule:
    """The rule under which a trace's prompts are run again.

    That of the recording. Under the rejection rule the tokens are drawn anew, by another seed than
    the recorded ones: only then are the two independent.
    """
    rule = recorded_rule(trace)
    if not rule.sampled:
        return rule
    return replace(rule, seed=(rule.seed + 1 + seed % (SEEDS - 1)) % SEEDS)


def rerun(
    pair: Pair,
    trace: Trace,
    policy: AnyPolicy,
    seed: int,
    cost: CostModel,
    progress: Progress = quiet,
) -> tuple[DecodeResult, ...]:
    """Decodes all sequences of a trace under a policy that observes `cost`.

    `seed` is of the policy's draws, and of the tokens where the rule draws them (`rerun_rule`).
    """
    check_predictors(pair.drafter, trace, [policy])
    rule, ends, results = rerun_rule(trace, seed), trace.meta.end_tokens, list[DecodeResult]()
    plan = make_plan(policy, trace.K, seed, cost, trace.meta.tree)
    for s, prompt in enumerate(prompts_of(trace)):
        budget, sequence = int(trace.budget[s]), int(trace.sequence[s])
        results.append(
            decode(pair.target, pair.drafter, plan, rule, prompt, budget, ends, sequence)
        )
        progress("running", s + 1, trace.sequences)
    return tuple(results)


@dataclass(frozen=True)
class Ran:
    """A policy run for real."""

    policy: str
    results: tuple[DecodeResult, ...]  # of all sequences
    engines: Mapping[str, str]  # that the target and the drafter ran on

    @property
    def committed(self) -> float:
        """Output tokens a round."""
        tokens = sum(len(result.token) for result in self.results)
        return tokens / sum(len(result.position) for result in self.results)

    def summary(self) -> dict:
        """The object that `simspec run --json` prints."""
        return {
            "policy": self.policy,
            "committed_per_round": round(self.committed, 4),
            "engines": dict(self.engines),
        }


NEAR_TIE = 1e-4
"""A decision with a smaller margin may differ between two orders of float32 arithmetic."""
MAX_EXCEPTIONS = 1e-3
"""Largest share of rounds that may end in such a difference."""


@dataclass(frozen=True)
class Flip:
    """The first difference of one sequence."""

    # sequence, round, row: where it is
    sequence: int
    round: int
    row: int
    margin: float  # of the decision nearest to a tie
    text: bool  # whether committed tokens differ


@dataclass(frozen=True)
class Comparison:
    """The outcome of a comparison."""

    rounds: int  # all up to and including each sequence's first difference
    exceptions: tuple[Flip, ...]  # a recorded margin, or a gap in a run's tree, is under NEAR_TIE
    failures: tuple[Flip, ...]  # all other differences

    @property
    def equal(self) -> bool:
        """No failure, and exceptions in at most a share MAX_EXCEPTIONS of the rounds."""
        return not self.failures and len(self.exceptions) <= MAX_EXCEPTIONS * self.rounds

    @property
    def exact(self) -> bool:
        """No difference at all."""
        return not self.failures and not self.exceptions

    @property
    def lossless(self) -> bool:
        """No failure in the committed tokens."""
        return not any(f.text for f in self.failures)

    @property
    def text_flips(self) -> tuple[Flip, ...]:
        """The differences in committed tokens."""
        return tuple(f for f in (*self.exceptions, *self.failures) if f.text)


def rounds_of(trace: Trace, results: Sequence[DecodeResult]) -> Rounds:
    """The rounds of runs of all of a trace's sequences, with the trace's row numbers."""
    columns = [np.stack((r.position, r.computed, r.drafted, r.accepted), 1) for r in results]
    return Rounds.join(columns, start=trace.offset)


def compare(
    trace: Trace, policy: AnyPolicy, replayed: Rounds, results: Sequence[DecodeResult]
) -> Comparison:
    """Compares runs of all sequences with their replay, each up to its first difference.

    Not for the rejection rule, under which runs commit other tokens.
    """
    ran = rounds_of(trace, results)
    total = 0
    excused: list[Flip] = []
    failed: list[Flip] = []
    for s, result in enumerate(results):
        wanted, found = (_table(r, s) for r in (replayed, ran))
        tokens = trace.token[trace.offset[s] : trace.offset[s + 1]]
        first = _first_difference(wanted, found)
        token = _first_difference(tokens[:, None], result.token[:, None])
        if token is not None:  # the round whose pass committed the token that differs
            position = trace.offset[s] + token
            inside = int(np.searchsorted(wanted[:, 0], position, side="right")) - 1
            first = inside if first is None else min(first, inside)
        if first is None:
            total += len(wanted)
            continue
        total += first + 1
        expected = wanted[min(first, len(wanted) - 1)]
        depth = max(expected[1], found[first, 1] if first < len(found) else 0)
        row = int(expected[0])
        margin = _evidence(trace, policy, row, int(trace.offset[s + 1]), int(depth))
        margin = min(margin, float(result.gap[first]) if first < len(result.gap) else margin)
        flip = Flip(sequence=s, round=first, row=row, margin=margin, text=token is not None)
        (excused if flip.margin < NEAR_TIE else failed).append(flip)
    return Comparison(total, tuple(excused), tuple(failed))


def _table(rounds: Rounds, s: int) -> np.ndarray:
    part = slice(rounds.offset[s], rounds.offset[s + 1])
    return np.stack(
        (rounds.row[part], rounds.computed[part], rounds.drafted[part], rounds.accepted[part]), 1
    )


def _first_difference(a: np.ndarray, b: np.ndarray) -> int | None:
    shared = min(len(a), len(b))
    differ = (a[:shared] != b[:shared]).any(1)
    if differ.any():
        return int(differ.argmax())
    return None if len(a) == len(b) else shared


def _evidence(trace: Trace, policy: AnyPolicy, row: int, end: int, depth: int) -> float:
    """Smallest recorded margin of the decisions at `row`, up to `depth` draft tokens; inf without
    any.

    A draft margin belongs to the drafter's own chain, and is no evidence for a tree's ranks.
    """
    assert trace.margin is not None  # recorded under every exact rule
    codes = [trace.margin[row : min(row + depth + 1, end)]]
    if policy.longest(trace.K):
        assert trace.draft_margin is not None
        codes.append(trace.draft_margin[row, :depth])
    if policy.reads:
        assert trace.feature_margin is not None
        codes.append(trace.feature_margin[row, :depth])
    margins = np.concatenate(codes)
    # a code is rounded up: the one of exactly NEAR_TIE may be of a smaller margin, and is not
    # excused
    return float(decode_margin(margins.min())) if len(margins) else float("inf")


REPLAYS = 32
"""Replays of the recording whose mean length of rounds is shown with the run's."""


@dataclass(frozen=True)
class SampledOutcome(Ran):
    """A run whose tokens are drawn."""

    rule: str
    tests: RoundTests  # of the rounds, against replays of the run's own tokens and the recording
    replayed: float | None  # output tokens a round over replays of the recording

    @property
    def equal(self) -> bool:
        """Whether no test raises an alarm."""
        return self.tests.equal

    def summary(self) -> dict:
        tests = asdict(self.tests) | {"p_values": dict(self.tests.p_values), "power": POWER}
        if self.tests.detectable == float("inf"):
            tests["detectable"] = None
        return super().summary() | {
            "rule": self.rule,
            "replay_equal": self.equal,
            "alarms": self.tests.alarms,
            "tests": tests,
            "committed_per_round_replayed": self.replayed and round(self.replayed, 4),
        }

    def describe(self) -> str:
        """The lines that `simspec run` prints."""
        tests = self.tests
        p_values = ", ".join(f"{name} p = {p:.3g}" for name, p in tests.p_values)
        lengths = f"{self.committed:.3f} tokens a round"
        if self.replayed is not None:
            lengths += f", {self.replayed:.3f} in replays of the recording"
        else:
            lengths += ", no replay of this drafter"
        outcome = f"NOT EQUAL: {', '.join(tests.alarms)}" if tests.alarms else "no alarm"
        return (
            f"{self.policy}: {tests.rounds} rounds, {tests.replayed:.1f} +- {tests.spread:.1f} in "
            f"{tests.replays} replays of its tokens; {lengths}\n"
            f"{p_values}\n"
            f"{outcome}; a false alarm has probability {tests.risk:g} at most (each test "
            f"{tests.level:.2g}); a loss of {tests.detectable:.2%} of accepted tokens is detected "
            f"with probability {POWER}"
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
    """Runs `policy` on a trace's prompts, and tests its rounds against replays.

    The run draws its own tokens, by another seed than the recording's. A drafter other than the
    recording's is tested on the run's own tokens only. PolicyError for policies that do not replay
    under this rule, RecordError for a drafter that is not history-free.
    """
    chosen = chain_policy(trace, policy, cost)
    check_history_free(pair.drafter)
    rule = rerun_rule(trace, seed)
    settings = ReplaySettings(chosen, cost, (rule.seed + 1) % SEEDS, risk)
    running = relabel(progress, f"running {chosen.name}")
    ran = rerun(pair, trace, chosen, seed, cost, running)
    own = record_emitted(pair.target, pair.drafter, rule, trace, [r.token for r in ran])
    rounds = rounds_of(own, ran)
    recorded = pair.drafter.name == trace.meta.drafter
    tests = check_rounds(rounds, own, settings, trace if recorded else None)
    replayed = None
    if recorded:
        lengths = [len(rounds) for rounds in settings.replays(trace, REPLAYS)]
        replayed = float(trace.rows / np.mean(lengths))
    engines = engines_of(pair.target, pair.drafter)
    return SampledOutcome(chosen.name, ran, engines, rule.name, tests, replayed)


def chain_policy(trace: Trace, policy: object, cost: CostModel) -> Policy:
    """The policy, if it replays on a recording of the rejection rule; else PolicyError."""
    chosen = policies.make(policy, trace, cost)
    if not isinstance(chosen, Policy):
        raise PolicyError(
            f"{chosen.name} is no policy of chains, whose rounds alone are tested under the "
            "rejection rule; expected one such as fixed:3, or a greedy or coupled recording"
        )
    prepare(trace, chosen, cost)
    return chosen


@dataclass(frozen=True)
class Outcome(Ran):
    """A run on a recording, compared with its replay."""

    comparison: Comparison
    foreign: bool  # whether its drafter is another than the recording's: only texts are compared

    @property
    def equal(self) -> bool:
        """Whether the rounds equal the replay's."""
        return self.comparison.equal

    def describe(self) -> str:
        """The line that `simspec run` prints."""
        compared = self.comparison
        same = "the texts are as recorded" if self.foreign else "the rounds equal the replay"
        equal = same if self.equal else "THE ROUNDS DIFFER"
        return (
            f"{self.policy}: {compared.rounds} rounds compared, "
            f"{len(compared.exceptions)} exceptions, {len(compared.failures)} failures: {equal}; "
            f"{self.committed:.3f} tokens a round"
        )

    def summary(self) -> dict:
        found = self.comparison
        return super().summary() | {
            "replay_equal": found.equal,
            "lossless": found.lossless,
            "rounds_compared": found.rounds,
            "exceptions": [asdict(f) for f in found.exceptions],
            "failures": [asdict(f) for f in found.failures],
            "text_flips": len(found.text_flips),
        }


def run_on(
    trace: Trace,
    pair: Pair,
    policy: AnyPolicy | str | Callable,
    cost: CostModel,
    seed: int = 0,
    progress: Progress = quiet,
) -> Outcome:
    """Runs `policy` on a trace's prompts, and compares its rounds with the replay.

    A drafter other than the recording's has no replay there: only its tokens are compared.
    ValueError for a recording of the rejection rule, see `run_sampled`.
    """
    rule_of(trace)
    policy = policies.make(policy, trace, cost)
    foreign, replayed = pair.drafter.name != trace.meta.drafter, None
    if foreign:
        check_foreign(pair.drafter.name, policy, trace)
    elif isinstance(policy, TreePolicy):
        replayed = replay_tree(trace, policy)
    else:
        replayed = replay(trace, policy, seed=seed, cost=cost)
    running = relabel(progress, f"running {policy.name}")
    ran = rerun(pair, trace, policy, seed, cost, running)
    # the recording's draft margins are no evidence for another drafter
    known = policies.BUILTIN["fixed"](0) if foreign else policy
    replayed = rounds_of(trace, ran) if replayed is None else replayed
    comparison = compare(trace, known, replayed, ran)
    engines = engines_of(pair.target, pair.drafter)
    return Outcome(policy.name, ran, engines, comparison, foreign)


def parse_runnable(text: str, trace: Trace) -> AnyPolicy | DeferredPolicy:
    """The policy of that name; ValueError where it cannot run on the prompts of `trace`."""
    policy = policies.parse(text)
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
    if clairvoyant or isinstance(policy, TreePolicy):
        raise ValueError(
            f"policy {name!r} knows what {trace.meta.drafter!r} drafted here; "
            f"expected a policy of chains such as fixed:4 for drafter {drafter!r}"
        )
