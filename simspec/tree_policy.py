"""Policies that submit trees, of one shape, by cumulative confidence, or with CAPE's sets: what a round at each row comes to."""

from dataclasses import dataclass, field

from simspec.cost import CostModel
from simspec.policy import PolicyError
from simspec.trace import Trace
from simspec.tree import MAX_NODES, Tree

KINDS = ("static", "dynamic", "beam", "cape", "planned")
MAX_SUBMITTED = 32
"""Tokens that a round of CAPE submits at most."""


@dataclass(frozen=True)
class TreePolicy:
    """What to submit in each round; `simspec.tree_replay.replay_tree` replays it, `outcomes` says what it comes to.

    | field | type             | of which kind it is a parameter, and its meaning                                            |
    | ----- | ---------------- | ----------------------------------------------------------------------------------------- |
    | name  | str              | label in tables                                                                           |
    | kind  | str              | static, dynamic, beam, cape, or planned: another choice at each row, made for one trace     |
    | tree  | Tree             | static: the shape, cut at the row's cap                                                   |
    | nodes | int, 0..63       | dynamic: the first so many in the order of cumulative confidence (EAGLE-2's rule)             |
    | k     | int or None      | cape: length of the chain, at most 32; None: the trace's K                                  |
    | sets  | str or int, 0..31 | cape: 'section' or 'appendix', which table of widths; or one width for every slot, 0: no set |
    | plan  | (choice, Outcome) | planned: choice int64[N, B] of row and rows owed, into outcomes of shape [C, N]              |

    PolicyError, one line, for what is outside these.
    """

    name: str
    kind: str
    tree: Tree = Tree()
    nodes: int = 0
    k: int | None = None
    sets: str | int = 0
    plan: tuple = field(default=(), compare=False, repr=False)
    random = False

    def __post_init__(self):
        if self.kind not in KINDS:
            raise PolicyError(
                f"tree policy {self.name!r}: kind is {self.kind!r}, expected one of {', '.join(KINDS)}"
            )
        if not isinstance(self.tree, Tree):
            raise PolicyError(f"{self.name}: tree is {self.tree!r}, expected a Tree")
        check_integer(self.name, "nodes", self.nodes, 0, MAX_NODES)
        if self.k is not None:
            check_integer(self.name, "k", self.k, 0, MAX_SUBMITTED)
        if isinstance(self.sets, str):
            if self.sets not in ("section", "appendix"):
                raise PolicyError(
                    f"{self.name}: the table of widths is {self.sets!r}, expected section or appendix"
                )
        else:
            check_integer(self.name, "width", self.sets, 0, MAX_SUBMITTED - 1)

    @property
    def reads(self) -> tuple:
        """Features that it is shown, and pays `CostModel.feature` for."""
        return ("confidence",) if self.kind == "cape" and isinstance(self.sets, str) else ()

    def resolve(self, trace: Trace, cost: CostModel) -> "TreePolicy":
        """The policy for this trace at these costs: itself."""
        return self

    def submitted(self, K: int) -> int:
        """Tree nodes that costs must price where drafts reach K."""
        nodes = {"static": len(self.tree), "dynamic": self.nodes, "beam": MAX_NODES}
        return max(K, nodes.get(self.kind, MAX_SUBMITTED))

    def longest(self, K: int) -> int:
        """The longest chain that the row's `depth` may cut where drafts reach K: 0 but for CAPE, whose chain is the greedy one."""
        return (min(K, MAX_SUBMITTED) if self.k is None else self.k) if self.kind == "cape" else 0


def check_integer(name, what, value, low, high):
    """PolicyError, one line, unless the value is an integer in low..high."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise PolicyError(f"{name}: {what} is {value!r}, expected an integer in {low}..{high}")
