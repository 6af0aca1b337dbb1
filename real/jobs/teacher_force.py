"""Running a policy with a recording's own sequences forced, so that rounds compare in any dtype."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from real.audit.forced_comparison import ForcedComparison, compare_forced
from real.audit.forced_decoding import decode_forced
from real.decode.engine import engines_of
from real.decode.plan import chain_plan
from real.jobs.models import ModelSettings
from real.jobs.recordings import open_recording, policy_cost_of
from real.pair import check_predictors
from real.progress import Progress, quiet, relabel
from real.rerun import rule_of
from simspec import Policy, policies, replay


@dataclass(frozen=True)
class ForcedRun:
    """A policy on forced sequences: its comparison with the recording, and the engines that ran."""

    policy: str
    dtype: str
    comparison: ForcedComparison
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
    rule_of(trace)
    policy_cost = policy_cost_of(path, cost, trace.K)
    # replay() rejects trees.
    chosen = cast(Policy, policies.make(policy, trace, policy_cost))
    replayed = replay(trace, chosen, seed=seed, cost=policy_cost)
    pair = models.load_for(trace, name)
    check_predictors(pair.drafter, trace, [chosen])
    results, divergences = decode_forced(
        pair.target,
        pair.drafter,
        chain_plan(chosen, trace.K, seed, policy_cost),
        trace,
        relabel(progress, f"forcing {chosen.name}"),
    )
    comparison = compare_forced(trace, replayed, results, divergences)
    return ForcedRun(chosen.name, models.dtype, comparison, engines_of(pair.target, pair.drafter))
