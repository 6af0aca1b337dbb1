"""Timings of policies in an emulation."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from real.bench.recorded_drafter import (
    END,
    RECORDED,
    RecordedDrafter,
    RecordedFeatures,
    RecordedSequence,
    SequenceSettings,
    constant_predictors,
    recorded_sequences,
)
from real.decode.engine import attach_engine, engines_of, make_passes
from real.decode.features import GRIDS
from real.decode.loop import DecodeResult, decode
from real.decode.plan import ChainDrafting
from real.decode.protocol import Plan
from real.draft import Drafter, Silent
from real.equality import rounds_of
from real.model.decoder import Decoder
from real.model.runner import EAGER, EagerPasses
from real.model.target import Target
from real.progress import Progress, quiet
from real.prompts import groups
from real.provenance import device_name
from real.sampling import Rule
from simspec import CostModel, Policy, Rounds, Stepper, Trace, policies, replay

PLAIN = "plain"


@dataclass(frozen=True)
class PolicyTiming:
    """One policy on all sequences of a recording.

    | field | meaning |
    | --- | --- |
    | policy | its name; "plain" is plain decoding without a drafter |
    | rounds, tokens | target passes, and tokens that they committed |
    | drafting, verification, policy_time, other | seconds of all rounds (EESD Table 8's split) |
    | tokens_per_second | tokens / all of these seconds; prefill is not included |
    | speedup | over plain decoding in the same run |
    | equal | whether the rounds are those of the replay |
    | groups | the speedup by `real.prompts.groups` of the recorded sequences |
    """

    policy: str
    rounds: int
    tokens: int
    drafting: float
    verification: float
    policy_time: float
    other: float
    tokens_per_second: float
    speedup: float
    equal: bool
    groups: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Emulation:
    """Timings of all policies, the device, and a label: engines, and what a caller adds."""

    label: dict
    device: str
    timings: tuple[PolicyTiming, ...]

    @property
    def equal(self) -> bool:
        """Whether every policy's rounds are those of its replay."""
        return all(t.equal for t in self.timings)

    def labeled(self, label: Mapping) -> "Emulation":
        """The same with more entries in front of its label."""
        return replace(self, label={**label, **self.label})

    def summary(self) -> dict:
        """The object that `simspec emulate --json` prints."""
        return {
            "label": self.label,
            "device": self.device,
            "replay_equal": self.equal,
            "rows": [asdict(t) for t in self.timings],
        }


def policy_timing(
    trace: Trace,
    name: str,
    replayed: Rounds,
    results: Sequence[DecodeResult],
    plain: Sequence[DecodeResult],
    groups: Mapping[str, Sequence[int]],
) -> PolicyTiming:
    """The timing of one policy; `groups` are numbers of sequences by name."""
    seconds = np.concatenate([r.seconds for r in results]).sum(0).tolist()
    drafting, verification, policy, other = seconds
    rate = _rate(results)
    return PolicyTiming(
        policy=name,
        rounds=len(replayed),
        tokens=trace.rows,
        drafting=drafting,
        verification=verification,
        policy_time=policy,
        other=other,
        tokens_per_second=rate,
        speedup=rate / _rate(plain),
        equal=rounds_of(trace, results) == replayed,
        groups={
            group: _rate([results[s] for s in members]) / _rate([plain[s] for s in members])
            for group, members in groups.items()
            if members
        },
    )


def _rate(results: Sequence[DecodeResult]) -> float:
    """Tokens a second."""
    return sum(len(r.token) for r in results) / sum(float(r.seconds.sum()) for r in results)


def emulation_passes(engine: str, trace: Trace, context: int | None = None) -> EagerPasses:
    """That engine's passes for `emulate` on a recording, with prompts of `context` tokens."""
    length = np.diff(trace.prompt_offset) if context is None else context
    return make_passes(engine, trace.K + 1, int(np.max(length + trace.budget)) + 2)


def emulate(
    decoder: Decoder,
    drafter: Drafter,
    trace: Trace,
    policies_: Sequence[Policy | str],
    policy_cost: CostModel | None = None,
    settings: SequenceSettings = RECORDED,
    progress: Progress = quiet,
    passes: EagerPasses = EAGER,
) -> Emulation:
    """Times every policy and plain decoding on every sequence of `trace`, sequence by sequence.

    The first sequence also runs once as a warm-up. Decoding is greedy whatever the recording's
    rule: drawing noise is not timed. Policies observe recorded features and seconds of
    `policy_cost` (default: a ratio of 0.1), as in `simspec.replay`, whose rounds these are.
    ValueError for a recording of the rejection rule, whose acceptances are drawn anew.
    """
    if trace.meta.rule == "rejection":
        raise ValueError(
            "the recording is of the rejection rule, which draws acceptances anew each time; "
            "use a greedy or coupled one"
        )
    seed, cost = settings.seed, policy_cost or CostModel.from_ratio(0.1, trace.K)
    built: list[Any] = [policies.make(policy, trace, cost) for policy in policies_]
    replays = [replay(trace, policy, seed=seed, cost=cost) for policy in built]
    attach_engine(passes, decoder, drafter)
    recorded_drafter = RecordedDrafter(drafter, constant_predictors(built, decoder, drafter))
    target = Target(decoder, drafter.taps, passes=passes)
    features = _features(trace, built)

    def steppers() -> list[Stepper]:
        return [Stepper(p, trace.K, seed, cost, f) for p, f in zip(built, features)]

    plans = [RecordedFeatures(s, trace.features(s.policy.reads)) for s in steppers()]
    no_drafts = policies.BUILTIN["fixed"](0)
    plain = ChainDrafting(Stepper(no_drafts, trace.K, seed, cost))
    runs: list[tuple[Drafter, Plan]] = [(recorded_drafter, plan) for plan in plans]
    runs.append((Silent(), plain))
    results: list[list[DecodeResult]] = [[] for _ in runs]
    sequences = recorded_sequences(trace, decoder.config.vocab, settings)
    for i, recorded in enumerate([sequences[0], *sequences]):  # the first one warms the device up
        recorded_drafter.follow(recorded)
        for policy_results, (model, plan) in zip(results, runs):
            result = _decode(target, model, plan, recorded)
            policy_results += [result] if i else []
        progress("emulating", i + 1, len(sequences) + 1)
        if not i:
            passes.warm()
            for plan, stepper in zip(plans, steppers()):  # streams start anew
                plan.stepper = stepper
    names = [*(p.name for p in built), PLAIN]
    replays.append(replay(trace, no_drafts, seed=seed, cost=cost))
    tokens = [trace.token[a:b] for a, b in zip(trace.offset, trace.offset[1:])]
    members = groups(tokens, trace.task)
    timings = [
        policy_timing(trace, name, replayed, policy_results, results[-1], members)
        for name, replayed, policy_results in zip(names, replays, results)
    ]
    label = {"engines": engines_of(target, drafter)}
    return Emulation(label, device_name(decoder.device), tuple(timings))


def _features(trace: Trace, policies_: Sequence[Policy]) -> list[tuple[tuple[str, str], ...]]:
    """(name, grid) of the features that each policy reads."""
    if unknown := [name for p in policies_ for name in p.reads if name not in GRIDS]:
        raise ValueError(
            f"feature {unknown[0]!r} is not one that the loop reads; "
            f"expected policies that read some of {', '.join(GRIDS)}"
        )
    grids = dict(trace.meta.features)
    return [tuple((name, grids[name]) for name in policy.reads) for policy in policies_]


def _decode(
    target: Target, drafter: Drafter, plan: Plan, recorded: RecordedSequence
) -> DecodeResult:
    return decode(
        target,
        drafter,
        plan,
        Rule(),
        recorded.prompt,
        recorded.budget,
        (END,),
        recorded.sequence,
        forced=recorded.tokens,
    )
