"""The settings of a recording."""

from dataclasses import dataclass

from real.sampling import Rule
from simspec.tree.tree import MAX_RANKS

MAX_BATCH = 65536


class RecordError(ValueError):
    """A recording that cannot be made or continued."""


@dataclass(frozen=True)
class Settings:
    """What to record.

    | field | meaning |
    | --- | --- |
    | K | draft depth at every position, 1 .. 255 |
    | budget | most new tokens per sequence |
    | rule, end_tokens | of the target's sequences |
    | features | names of recorded features; none under the rejection rule |
    | tree | (width, levels) of dynamic trees, or () |
    | batch | sequences of the target that are written at a time |

    RecordError for anything else.
    """

    K: int
    budget: int
    rule: Rule
    end_tokens: tuple[int, ...]
    features: tuple[str, ...] = ("confidence", "entropy")
    tree: tuple[int, int] | tuple[()] = ()
    batch: int = 1

    def __post_init__(self):
        if self.rule.sampled and self.features:
            raise RecordError(
                "a recording of the rejection rule holds no features, because it replays in "
                "distribution only; record without features"
            )
        if not 1 <= self.K <= 255 or self.budget < 1:
            raise RecordError(
                f"K is {self.K} and budget {self.budget}; "
                "expected 1 <= K <= 255 and at least one token"
            )
        if not 1 <= self.batch <= MAX_BATCH:
            raise RecordError(
                f"batch is {self.batch}; expected 1 to {MAX_BATCH} sequences at a time"
            )
        if self.tree != () and not _is_tree(self.tree, self.K):
            raise RecordError(
                f"tree is {self.tree!r}; expected a width from 1 to {MAX_RANKS} and "
                f"levels from 1 to K, here {self.K}, or ()"
            )


def _is_tree(tree, K: int) -> bool:
    return (
        type(tree) is tuple
        and [*map(type, tree)] == [int, int]
        and 1 <= tree[0] <= MAX_RANKS
        and 1 <= tree[1] <= K
    )
