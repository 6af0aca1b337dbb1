"""PolicyKind: what the package knows of a built-in policy; DeferredPolicy, made for one trace.

A file of `simspec.policies` declares its policies in `POLICIES`, and those that decide for a whole
batch in `BATCH_POLICIES`. The names that `parse` knows, the
exam of the tests, what `simspec tune` looks for and the tables of `simspec policies` follow from
it.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from simspec.cost.model import CostModel
from simspec.policy.policy import Policy
from simspec.trace.trace import Trace
from simspec.tree.tree import TreePolicy


@dataclass(frozen=True)
class DeferredPolicy:
    """A policy that needs the trace and the costs before it can run; calling it resolves it.

    reads are features, submits the most tree nodes of a round (0 for chains); a clairvoyant one
    knows the recorded tokens, so that it is replayed and never run.
    """

    name: str
    make: Callable[[Trace, CostModel], Policy | TreePolicy]
    reads: tuple[str, ...] = ()
    submits: int = 0
    clairvoyant: bool = False

    def resolve(self, trace: Trace, cost: CostModel) -> Policy | TreePolicy:
        """The policy for this trace at these costs; whatever `make` raises."""
        return self.make(trace, cost)

    __call__ = resolve

    def submitted(self, K: int) -> int:
        """Tree nodes that costs must price where drafts reach K: 0 for chains."""
        return self.submits


DIGITS = 3
"""Significant digits of tuned numbers: what a user would type."""
GROUPS = {
    "outcomes": "By outcomes of earlier rounds",
    "costs": "By outcomes and modeled costs",
    "features": "By features of the drafted tokens",
    "batches": "For all requests of a batch",
    "bounds": "Bounds",
    "trees": "Trees",
}
"""{group: its heading}: what a policy decides by."""


@dataclass(frozen=True)
class Real:
    """A number between two others, by its logarithm where `log`."""

    low: float
    high: float
    log: bool = False
    whole = False

    @property
    def bounds(self) -> tuple[float, float]:
        """Of the optimizer's coordinate."""
        return (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)

    def value(self, x: float) -> float:
        """The argument at this coordinate, rounded to DIGITS."""
        number = float(f"{math.exp(x) if self.log else x:.{DIGITS}g}")
        return min(max(number, self.low), self.high)


@dataclass(frozen=True)
class Option:
    """One of a few values, in their stated order."""

    values: tuple[Any, ...]
    whole = True

    @property
    def bounds(self) -> tuple[float, float]:
        """Of the optimizer's coordinate, a place in `values`."""
        return 0.0, len(self.values) - 1.0

    def value(self, x: float) -> Any:
        """The argument at this coordinate."""
        return self.values[int(round(x))]


Argument = Real | Option
SHARE = Real(0.01, 0.99)
PRIOR = Real(0.05, 20, log=True)
FLAG = Option((False, True))
SCOPE = Option(("sequence", "stream"))
LENGTHS = Option(("1/2", "1/2/3/4", "1/3", "1/3/5", "1/3/5/7", "0/1/2/4", "2/4/6", "2/4/8"))
ROUNDS = Option((1, 2, 5, 10, 20, 50))


@dataclass(frozen=True)
class PolicyKind:
    """A built-in policy, as its file declares it."""

    make: Callable[..., Any]  # its factory, or a `DeferredPolicy` without arguments
    group: str  # what it decides by, a key of GROUPS
    # source, signal, rule: who published it, what it reads, what it does
    source: str
    signal: str
    rule: str
    # defaults, released: its arguments; whether it equals released code
    defaults: str = ""
    released: str = ""
    examples: tuple[str, ...] = ()  # texts that the tests examine; at least one
    # {argument: where `simspec tune` looks for it}; {}: nothing is tuned
    space: Mapping[str, Argument] = field(default_factory=dict)
    # values, for tuning, of arguments that have no default
    required: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The start of its text form."""
        return self.make.name if isinstance(self.make, DeferredPolicy) else self.make.__name__

    @property
    def clairvoyant(self) -> bool:
        """Whether it knows the recorded tokens: it is replayed and never run."""
        return isinstance(self.make, DeferredPolicy) and self.make.clairvoyant
