"""The policies and prompts that a campaign runs of a recording."""

from real.campaign.workspace import Workspace
from real.rerun import evenly_spaced
from simspec import CostModel, Policy, Trace, policies, replay


def best_fixed(trace: Trace, cost: CostModel, seed: int = 0) -> int:
    """The fixed draft length of the largest modeled speedup; 0 where none beats plain decoding."""

    def seconds(k: int) -> float:
        policy = policies.BUILTIN["fixed"](k)
        return float(cost.seconds(replay(trace, policy, seed=seed, cost=cost)).sum())

    return min(range(min(trace.K, cost.K) + 1), key=seconds)


def select_policies(workspace: Workspace, trace: Trace, cost: CostModel) -> list[Policy]:
    """The best fixed length, and the configured chains whose features are recorded."""
    shown = {name for name, _ in trace.meta.features}
    parsed = [
        policies.make(text, trace, cost)
        for text in workspace.config.policies.chains
        if set(policies.parse(text).reads) <= shown
    ]
    return [policies.BUILTIN["fixed"](max(1, best_fixed(trace, cost, workspace.seed))), *parsed]


def select_prompts(trace: Trace, prompts: int) -> Trace:
    """So many prompts of a recording, evenly spread."""
    return trace.select(evenly_spaced(trace.sequences, prompts))
