"""simspec: replay speculative-decoding policies exactly, on recordings of real drafters."""

from simspec.output import interrupts  # noqa: F401  # isort: skip  # first: signals during imports
from simspec import policies
from simspec.cost.model import CostModel
from simspec.numerics import formulas
from simspec.policy.policy import Policy, PolicyError, Stepper
from simspec.policy_kind import DeferredPolicy
from simspec.replay.metrics import Metrics, summary
from simspec.replay.replay import replay
from simspec.replay.sweep import sweep
from simspec.trace import synthetic
from simspec.trace.recordings import load_example, load_example_cost, recordings
from simspec.trace.trace import Rounds, Trace, TraceError, TraceMeta, committed, load_trace
from simspec.tree.replay import replay_tree
from simspec.tree.tree import Tree, TreeError, TreePolicy

__all__ = [
    "CostModel", "DeferredPolicy", "Metrics", "Policy", "PolicyError", "Rounds", "Stepper",
    "Trace", "TraceError", "TraceMeta",
    "Tree", "TreeError", "TreePolicy", "committed", "formulas", "load_example",
    "load_example_cost", "load_trace", "policies", "recordings", "replay", "replay_tree", "summary",
    "sweep", "synthetic",
]  # fmt: skip


def __getattr__(name: str) -> str:
    if name == "__version__":
        from importlib.metadata import version

        return version("simspec")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
