"""Policies made for one trace at given costs: oracles, and trees fitted to ranks."""

from collections.abc import Callable
from dataclasses import dataclass

from simspec.cost import CostModel
from simspec.policy import Policy
from simspec.trace import Trace
from simspec.tree_policy import TreePolicy


@dataclass(frozen=True)
class DeferredPolicy:
    """A policy that needs the trace and the costs before it can run.

    | field       | type     | meaning                                                            |
    | ----------- | -------- | ------------------------------------------------------------------ |
    | name        | str      | label in tables                                                    |
    | make        | function | (trace, cost) -> Policy or TreePolicy                              |
    | reads       | (str,)   | names of the features that the policy reads                        |
    | submits     | int      | most tree nodes that a round submits; 0 for chains                 |
    | clairvoyant | bool     | it knows the recorded tokens, so that it is replayed and never run |

    Calling it is the same as `resolve`.
    """

    name: str
    make: Callable[[Trace, CostModel], Policy | TreePolicy]
    reads: tuple[str, ...] = ()
    submits: int = 0
    clairvoyant: bool = False

    def __call__(self, trace: Trace, cost: CostModel) -> Policy | TreePolicy:
        return self.resolve(trace, cost)

    def resolve(self, trace: Trace, cost: CostModel) -> Policy | TreePolicy:
        """The policy for this trace at these costs; whatever `make` raises."""
        return self.make(trace, cost)

    def submitted(self, K: int) -> int:
        """Tree nodes that costs must price where drafts reach K: 0 for chains."""
        return self.submits
