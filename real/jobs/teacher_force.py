"""Running a policy with a recording's own sequences forced, so that rounds compare in any dtype."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from real.audit.forced_comparison import ForcedComparison, compare_forced
from real.audit.forced_decoding import decode_forced
from real.audit.forced_sampling import (
    SampledForcedComparison,
    compare_forced_sampled,
    decode_forced_sampled,
)
from real.decode.engine import engines_of
from real.decode.plan import chain_plan
from real.jobs.models import ModelSettings
from real.jobs.recordings import open_recording, policy_cost_of
from real.pair import check_predictors
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

    prompts: so many, spread over the tasks; 0: all. cost: what the policy observes.
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
