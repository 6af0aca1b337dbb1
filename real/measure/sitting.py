"""A sitting: all blocks of a measurement in random order, until every cell is precise."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta

from real.measure import ROUNDS, MeasureSettings
from real.measure.blocks import Block
from real.measure.timing import Number, Pace, Samples, SavedRound
from real.progress import Progress, quiet
from simspec.output.files import reraised, write_json

SAVE_SECONDS = 20.0
"""Between two saves of an unfinished sitting."""


@dataclass
class Sitting:
    """Progress of a measurement: counted runs of the blocks, seconds of all runs, and {"block kind
    size": relative half-width} of cells that are not precise yet."""

    repeats: int = 0
    wall: float = 0.0
    wide: dict[str, float] = field(default_factory=dict)


def sit(
    blocks: Mapping[str, Block],
    settings: MeasureSettings,
    sitting: Sitting | None = None,
    warm: Callable[[], None] = lambda: None,
    save: Callable[[Sitting], None] = lambda sitting: None,
    progress: Progress = quiet,
    clock: Callable[[], float] = perf_counter,
    settled: Callable[[], bool] = lambda: True,
) -> Sitting:
    """Runs all blocks once uncounted, then again and again, in a new random order each time.

    The first `settings.repeats` runs are of every job of every block, later ones of the jobs whose
    interval is wider than `settings.precision`. Where no cell is wide but the best length is not
    `settled`, every job runs again. It ends settled without a wide cell, or after
    `settings.seconds` with the uncounted runs, checked before every block. A `sitting` that was
    saved goes on where it stopped.
    """
    sitting = sitting or Sitting()
    rng = np.random.default_rng((settings.seed, sitting.repeats))
    names = list(blocks)
    total = (settings.repeats + 1) * len(names)
    before, done = sitting.wall, 0
    saved = begin = clock()
    for i in rng.permutation(len(names)):  # warms caches, allocators and compiled policies
        blocks[names[i]].run(rng, 1, False, 0.0)
        done += 1
        progress("measuring", done, total, "warm-up")
    warm()

    def late() -> bool:
        sitting.wall = before + clock() - begin
        return sitting.repeats >= settings.repeats and sitting.wall >= settings.seconds

    while not late():
        least = sitting.repeats < settings.repeats
        sitting.wide = wide_cells(blocks, settings.precision)
        every = least or not sitting.wide
        if every and not least and settled():
            break
        todo = [n for n in names if every or any(c.startswith(f"{n} ") for c in sitting.wide)]
        for i in rng.permutation(len(todo)):
            if late():
                break
            precision = 0.0 if every else settings.precision
            blocks[todo[i]].run(rng, ROUNDS, True, precision)
            done = min(done + 1, total - 1)
            note = "" if least else f"{len(sitting.wide)} cells wider than {settings.precision:.0%}"
            progress("measuring", done, total, note)
            if clock() - saved >= SAVE_SECONDS:
                late()
                save(sitting)
                saved = clock()
        sitting.repeats += 1
    sitting.wide = wide_cells(blocks, settings.precision)
    progress("measuring", total, total, f"{len(sitting.wide)} wide cells")
    return sitting


def wide_cells(blocks: Mapping[str, Block], precision: float) -> dict[str, float]:
    """{"block kind size": relative half-width} of all cells above `precision`."""
    return {
        f"{name} {job.kind} {job.size}": width
        for name, block in blocks.items()
        for job, width in block.widths().items()
        if width > precision
    }


class Saved(msgspec.Struct):
    """The file of an unfinished sitting."""

    key: Any
    repeats: int
    wall: float
    blocks: list[Annotated[list[Number], Meta(min_length=1)]]
    samples: dict[str, list[SavedRound]]


class UnfinishedSitting:
    """Rounds at `path`, of a measurement that `key` describes; another key starts anew.

    `pace` holds the timing blocks that its rounds ran in.
    """

    def __init__(
        self, path: Path, key: Mapping[str, Any], samples: Mapping[str, Samples], pace: Pace
    ):
        self.path, self.samples, self.pace = path, samples, pace
        self.key = json.loads(json.dumps(dict(key)))

    def load(self) -> Sitting:
        """Fills the samples and returns the sitting; a new one where there is none of this key.

        ValueError for a damaged file.
        """
        if not self.path.exists():
            return Sitting()
        what, remedy = "holds no unfinished measurement", "delete it to start anew"
        with reraised(ValueError, f"{self.path} {what}", remedy):
            held = msgspec.json.decode(self.path.read_bytes(), type=Saved)
            if held.key != self.key:
                return Sitting()
            self.pace.extend(held.blocks)
            for name, samples in self.samples.items():
                samples.extend(held.samples[name])
        return Sitting(held.repeats, held.wall)

    def save(self, sitting: Sitting) -> None:
        """Replaces the file."""
        rows = {name: samples.to_list() for name, samples in self.samples.items()}
        held = Saved(self.key, sitting.repeats, sitting.wall, self.pace.to_list(), rows)
        write_json(self.path, msgspec.to_builtins(held))
