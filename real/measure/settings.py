"""Scope of a cost measurement, and the number of its repetitions."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

import torch

from real.decode.engine import engines_of
from real.draft import Drafter
from real.model.target import Target
from real.provenance import processor_name, versions
from simspec.cost.provenance import CostOrigin


@dataclass(frozen=True)
class MeasureSettings:
    """Sizes and repeats of a measurement.

    | field | meaning |
    | --- | --- |
    | batch | sequences that are decoded together, each size once, ascending |
    | context | tokens before the measured rounds, each size once, ascending |
    | rounds | of every job in one run of its block |
    | repeats | runs of every block at least, after one warm-up run |
    | seed | of prompts, cached rows and the order of jobs |
    | tree_nodes | largest tree whose verification is priced; 0: chains only |
    | seconds | time limit, warm-up included, of further runs; 0: none follow |
    | precision | further runs end where every interval's half-width is within this share, and the \
best draft length is settled |

    ValueError for a batch, context, rounds or repeats below 1, for negative seconds and for a
    precision outside 0 .. 1.
    """

    batch: tuple[int, ...] = (1,)
    context: tuple[int, ...] = (128,)
    rounds: int = 2
    repeats: int = 4
    seed: int = 0
    tree_nodes: int = 0
    seconds: float = 0.0
    precision: float = 0.05

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch", ascending("batch", self.batch))
        object.__setattr__(self, "context", ascending("context", self.context))
        if self.rounds < 1 or self.repeats < 1:
            raise ValueError(
                f"rounds are {self.rounds} and repeats {self.repeats}, "
                "expected at least one of each"
            )
        if not 0 <= self.seconds < float("inf"):
            raise ValueError(f"seconds are {self.seconds}, expected a finite number >= 0")
        if not 0 < self.precision < 1:
            raise ValueError(f"precision is {self.precision}, expected a share between 0 and 1")


def ascending(name: str, values: Iterable[int], least: int = 1) -> tuple[int, ...]:
    """Each of `values` once, ascending; ValueError for none, or one below `least`."""
    values = list(values)
    sizes = sorted(set(values))
    if not sizes or sizes[0] < least:
        raise ValueError(f"{name} {values} given, expected sizes of at least {least}")
    return tuple(sizes)


DEFAULTS = MeasureSettings()


def cost_origin(target: Target, drafter: Drafter, sitting: str = "") -> CostOrigin:
    """The origin of costs that are measured now; `sitting` is shared by one measurement's files."""
    decoder = target.decoder
    return CostOrigin(
        device=processor_name(decoder.device),
        threads=torch.get_num_threads(),
        dtype=str(decoder.dtype).removeprefix("torch."),
        engines=engines_of(target, drafter),
        versions=versions(),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        sitting=sitting,
    )
