"""simspec: replay speculative-decoding policies exactly, on recordings of real drafters."""

from simspec import interrupts  # noqa: F401  # isort: skip  # first: signals during imports
from simspec import formulas, policies, synthetic
from simspec.cost import CostModel
from simspec.deferred_policy import DeferredPolicy
from simspec.metrics import Metrics, summary
from simspec.policy import Policy, PolicyError
from simspec.rounds import Rounds, committed
from simspec.simulate import replay
from simspec.stepper import Stepper
from simspec.sweep import sweep
from simspec.trace import Trace, TraceError, TraceMeta, load_trace
from simspec.tree import Tree, TreeError
from simspec.tree_policy import TreePolicy
from simspec.tree_replay import replay_tree

__all__ = [
    "CostModel", "DeferredPolicy", "Metrics", "Policy", "PolicyError", "Rounds", "Stepper",
    "Trace", "TraceError", "TraceMeta",
    "Tree", "TreeError", "TreePolicy", "committed", "formulas", "load_trace", "policies", "replay",
    "replay_tree", "summary", "sweep", "synthetic",
]  # fmt: skip
