"""What a measurement of costs covers, and how often it repeats."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class MeasureSettings:
    """Sizes and repeats of a measurement.

    | field | meaning |
    | --- | --- |
    | batch | sequences that are decoded together, each size once, ascending |
    | context | tokens before the measured rounds, each size once, ascending |
    | rounds | rounds of a sequence, approximately |
    | repeats | counted runs of every job, after one warm-up run |
    | seed | of prompts, cached rows and the order of jobs |
    | tree_nodes | largest tree whose verification is priced; 0: chains only |

    ValueError for a batch or context below 1.
    """

    batch: tuple[int, ...] = (1,)
    context: tuple[int, ...] = (128,)
    rounds: int = 24
    repeats: int = 4
    seed: int = 0
    tree_nodes: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch", ascending("batch", self.batch))
        object.__setattr__(self, "context", ascending("context", self.context))


def ascending(name: str, values: Iterable[int], least: int = 1) -> tuple[int, ...]:
    """Each of `values` once, ascending; ValueError for none, or one below `least`."""
    values = list(values)
    sizes = sorted(set(values))
    if not sizes or sizes[0] < least:
        raise ValueError(f"{name} {values} given, expected sizes of at least {least}")
    return tuple(sizes)


DEFAULTS = MeasureSettings()
