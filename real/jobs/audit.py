"""Auditing an emitted run against its target, and running with the recorded tokens forced."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from real.audit import audit as audit_tokens
from real.audit.forced_decoding import (
    ForcedComparison,
    SampledForcedComparison,
    compare_forced,
    compare_forced_sampled,
    decode_forced,
    decode_forced_sampled,
)
from real.audit.result import AuditResult
from real.audit.runs import EmittedRun, load_run, recorded_run
from real.decode.engine import engines_of
from real.decode.plans import chain_plan
from real.drafters import BUILTIN
from real.model_settings import ModelSettings, open_recording, policy_cost_of
from real.pair import Pair, check_predictors
from real.progress import Progress, quiet, relabel
from real.rerun import recorded_rule
from simspec import Policy, policies, replay


@dataclass(frozen=True)
class ForcedRun:
    """A policy on forced sequences: its comparison with the recording, and the engines that ran."""

    policy: str
    dtype: str
    comparison: ForcedComparison | SampledForcedComparison
    engines: dict[str, str] = field(default_factory=dict)

    def summary(self) -> dict:
        """The object that `simspec teacher-force --json` prints."""
        about = {"policy": self.policy, "dtype": self.dtype, "engines": self.engines}
        return about | self.comparison.summary()


def force_recording(
    name: str,
    models: ModelSettings,
    policy: str = "fixed:3",
    prompts: int = 0,
    cost: Path | None = None,
    seed: int = 0,
    progress: Progress = quiet,
) -> ForcedRun:
    """Runs a policy on the sequences of the recording `name`, and compares its rounds with them.

    prompts: number of prompts, spread over the tasks; 0: all. cost: what the policy observes.
    """
    path, trace = open_recording(name, prompts)
    sampled = recorded_rule(trace).sampled
    policy_cost = policy_cost_of(path, cost, trace.K)
    # replay() rejects trees.
    chosen = cast(Policy, policies.make(policy, trace, policy_cost))
    replayed = replay(trace, chosen, seed=seed, cost=policy_cost)
    pair = models.load_for(trace, name)
    check_predictors(pair.drafter, trace, [chosen])
    models_ = pair.target, pair.drafter
    plan = chain_plan(chosen, trace.K, seed, policy_cost)
    forcing = relabel(progress, f"forcing {chosen.name}")
    comparison: ForcedComparison | SampledForcedComparison
    if sampled:
        ran, tested = decode_forced_sampled(*models_, plan, trace, seed, forcing)
        comparison = compare_forced_sampled(trace, replayed, ran, tested, models.dtype, seed)
    else:
        ran, divergences = decode_forced(*models_, plan, trace, forcing)
        comparison = compare_forced(trace, replayed, ran, divergences)
    return ForcedRun(chosen.name, models.dtype, comparison, engines_of(*models_))


def audit_run(
    name: str,
    models: ModelSettings,
    against: str | None = None,
    dtype: str | None = None,
    risk: float = 1e-4,
    progress: Progress = quiet,
) -> tuple[AuditResult, EmittedRun, Pair]:
    """Audits a saved run (.jsonl) or a recording: (findings, what was audited, models).

    against: a recording of the same prompts. dtype: the run's own where None. risk: largest
    probability of a false alarm of the tests of sampled sequences. The drafter's bias is tested for
    runs under the rejection rule whose drafter is in the model folder.
    """
    if not 0 < risk < 1:
        raise ValueError(f"--risk is {risk}; expected a probability in (0, 1) such as 1e-4")
    if name.endswith(".jsonl"):
        emitted = load_run(Path(name))
    else:
        emitted = recorded_run(open_recording(name)[1])
    reference = None if against is None else open_recording(against)[1]
    header = emitted.header
    biased = (
        header.rule == "rejection"
        and header.drafter in BUILTIN
        and (models.weights or models.folder / header.drafter).is_dir()
    )
    models = replace(
        models, dtype=dtype or header.dtype, weights=models.weights if biased else None
    )
    pair = models.load(header.drafter if biased else "prompt_lookup")
    if header.target and header.target.split("/")[-1] != pair.name.split("/")[-1]:
        raise ValueError(
            f"{name} was made with target {header.target}, this is {pair.name}; "
            "name that one by --models or --target"
        )
    drafter = pair.drafter if biased else None
    return audit_tokens(pair.target, emitted, reference, drafter, risk, progress), emitted, pair
