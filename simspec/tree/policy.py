"""TreePolicy: which tree to submit in each round."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from simspec.cost.model import CostModel
from simspec.policy.arguments import check_integer
from simspec.policy.policy import PolicyError
from simspec.trace.trace import Trace
from simspec.tree.tree import MAX_NODES, Tree

KINDS = ("static", "dynamic", "beam", "cape", "planned")
MAX_SUBMITTED = 32
"""Tokens that a round of CAPE submits at most."""


@dataclass(frozen=True)
class TreePolicy:
    """Nodes to submit in each round; `simspec.tree.replay.replay_tree` replays it.

    | field | type              | kind    | meaning                                              |
    | ----- | ----------------- | ------- | ---------------------------------------------------- |
    | name  | str               |         | label in tables                                      |
    | kind  | str               |         | static, dynamic, beam, cape or planned               |
    | tree  | Tree              | static  | the shape, cut at the row's cap                      |
    | nodes | int, 0..63        | dynamic | submitted, by cumulative confidence (EAGLE-2)        |
    | k     | int or None       | cape    | length of the chain, at most 32; None: K             |
    | sets  | str or int, 0..31 | cape    | section or appendix (tables of widths), or one width |
    | plan  | (choice, Outcome) | planned | int64[N, B] by row and backlog, into [C, N]          |

    PolicyError, one line, for a value outside these.
    """

    name: str
    kind: str
    tree: Tree = Tree()
    nodes: int = 0
    k: int | None = None
    sets: str | int = 0
    plan: tuple[Any, ...] = field(default=(), compare=False, repr=False)
    random: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise PolicyError(
                f"tree policy {self.name!r}: kind is {self.kind!r}, "
                f"expected one of {', '.join(KINDS)}"
            )
        if not isinstance(self.tree, Tree):
            raise PolicyError(f"{self.name}: tree is {self.tree!r}, expected a Tree")
        check_integer(self.name, "nodes", self.nodes, 0, MAX_NODES)
        if self.k is not None:
            check_integer(self.name, "k", self.k, 0, MAX_SUBMITTED)
        if not isinstance(self.sets, str):
            check_integer(self.name, "width", self.sets, 0, MAX_SUBMITTED - 1)
        elif self.sets not in ("section", "appendix"):
            raise PolicyError(
                f"{self.name}: the table of widths is {self.sets!r}, expected section or appendix"
            )

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the features that it receives, which `CostModel.feature` prices."""
        return ("confidence",) if self.kind == "cape" and isinstance(self.sets, str) else ()

    def resolve(self, trace: Trace, cost: CostModel) -> "TreePolicy":
        """The policy for this trace at these costs: itself."""
        return self

    def submitted(self, K: int) -> int:
        """Tree nodes that costs must price where drafts reach K."""
        nodes = {"static": len(self.tree), "dynamic": self.nodes, "beam": MAX_NODES}
        return max(K, nodes.get(self.kind, MAX_SUBMITTED))

    def longest(self, K: int) -> int:
        """The longest chain that `depth` may cut where drafts reach K: 0 for all kinds but CAPE."""
        if self.kind != "cape":
            return 0
        return min(K, MAX_SUBMITTED) if self.k is None else self.k
