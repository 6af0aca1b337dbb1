"""Latency measurements of the parts of a round, in the decode loop: `MeasureSettings` of all.

`real.measure.price` measures; this module costs no import of torch.
"""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from simspec.cli.options import MOST_CONTEXT
from simspec.settings import Settings, option
from simspec.tree.tree import MAX_NODES

__all__ = ["MeasureSettings", "max_new_tokens"]

ROOM = 64
"""New tokens of a timed sequence: its cells share one prompt, whose length they barely change."""
ROUNDS = 2
"""Rounds of every job in one run of its block."""


@dataclass(frozen=True)
class MeasureSettings(Settings):
    """Sizes and time of a measurement: a group of options."""

    context: Annotated[
        tuple[Annotated[int, Meta(ge=1, le=MOST_CONTEXT)], ...],
        option("Tokens before the round, repeatable.", min_length=1),
    ] = (128,)
    seconds: Annotated[
        float,
        option(
            "Time limit of each cost file: runs go on until all intervals are within 5% and the "
            "best draft length is settled.",
            ge=0,
            le=1e9,
        ),
    ] = 40.0
    tree_nodes: Annotated[
        int,
        option(
            "Price trees too, of at most this number of submitted tokens; 0: chains alone.",
            "--rows",
            ge=0,
            le=MAX_NODES,
        ),
    ] = 0
    repeats: Annotated[int, Meta(ge=1)] = 1
    """Runs of every job at least, after a warm-up."""
    precision: Annotated[float, Meta(gt=0, lt=1)] = 0.05
    """Half-width of every cell's 95% interval, as a share of it."""
    seed: Annotated[int, Meta(ge=0)] = 0
    """Of prompts, the order of jobs, and all draws."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "context", tuple(sorted(set(self.context))))  # each once


def max_new_tokens(K: int) -> int:
    """Tokens that a timed sequence may add to its context: the room that static caches need."""
    return ROOM + 2 * (K + 1)
