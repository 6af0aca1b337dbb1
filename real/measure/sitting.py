"""A sitting: all blocks of a measurement in random order, until every cell is precise."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np

from real.measure import ROUNDS, MeasureSettings
from real.measure.blocks import Block
from real.measure.timing import Job, Pace, Samples
from real.progress import Progress, quiet
from simspec.output.files import write_json

SAVE_SECONDS = 20.0
"""Between two saves of an unfinished sitting."""


@dataclass(frozen=True)
class Clocks:
    """Wall-clock and processor seconds of this process; tests inject their own."""

    wall: Callable[[], float] = perf_counter
    processor: Callable[[], float] = process_time


REAL = Clocks()


@dataclass
class Sitting:
    """Progress of a measurement.

    | field | meaning |
    | --- | --- |
    | repeats | counted runs of the blocks |
    | wall, processor | seconds of all runs, of the wall clock and of this process |
    | wide | {"block kind size": relative half-width} of cells that are not precise yet |
    """

    repeats: int = 0
    wall: float = 0.0
    processor: float = 0.0
    wide: dict[str, float] = field(default_factory=dict)


Save = Callable[[Sitting], None]


def sit(
    blocks: Mapping[str, Block],
    settings: MeasureSettings,
    sitting: Sitting | None = None,
    warm: Callable[[], None] = lambda: None,
    save: Save = lambda sitting: None,
    progress: Progress = quiet,
    clocks: Clocks = REAL,
    pace: Callable[[], None] = lambda: None,
    settled: Callable[[], bool] = lambda: True,
) -> Sitting:
    """Runs all blocks once uncounted, then again and again, in a new random order each time.

    | runs | of |
    | --- | --- |
    | the first `settings.repeats` | every job of every block |
    | later ones | jobs whose interval is wider than `settings.precision` |

    `pace` is called before the first counted run of a block and after every one. Where no cell is
    wide but the best length is not `settled`, every job runs again. It ends settled without a wide
    cell, or after `settings.seconds` with the uncounted runs, checked before every block. A
    `sitting` that was saved goes on where it stopped.
    """
    sitting = sitting or Sitting()
    rng = np.random.default_rng((settings.seed, sitting.repeats))
    names = list(blocks)
    total = (settings.repeats + 1) * len(names)
    before = sitting.wall, sitting.processor
    done = 0
    begin, busy = clocks.wall(), clocks.processor()
    saved = begin
    for i in rng.permutation(len(names)):  # warms caches, allocators and compiled policies
        blocks[names[i]].run(rng, 1, False, 0.0)
        done += 1
        progress("measuring", done, total, "warm-up")
    warm()
    pace()

    def late() -> bool:
        sitting.wall = before[0] + clocks.wall() - begin
        sitting.processor = before[1] + clocks.processor() - busy
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
            pace()
            done = min(done + 1, total - 1)
            note = "" if least else f"{len(sitting.wide)} cells wider than {settings.precision:.0%}"
            progress("measuring", done, total, note)
            if clocks.wall() - saved >= SAVE_SECONDS:
                late()
                save(sitting)
                saved = clocks.wall()
        sitting.repeats += 1
    sitting.wide = wide_cells(blocks, settings.precision)
    progress("measuring", total, total, f"{len(sitting.wide)} wide cells")
    return sitting


def wide_cells(blocks: Mapping[str, Block], precision: float) -> dict[str, float]:
    """{"block kind size": relative half-width} of all cells above `precision`."""
    return {
        f"{name} {_cell(job)}": width if isfinite(width) else float("inf")
        for name, block in blocks.items()
        for job, width in block.widths().items()
        if width > precision
    }


def _cell(job: Job) -> str:
    return f"{job.kind} {job.size}"


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
        try:
            held = json.loads(self.path.read_text(encoding="utf-8"))
            if held["key"] != self.key:
                return Sitting()
            rows = {name: held["samples"][name] for name in self.samples}
            sitting = Sitting(int(held["repeats"]), float(held["wall"]), float(held["processor"]))
            self.pace.extend(held["blocks"])
            for name, samples in self.samples.items():
                samples.extend(rows[name])
        except (
            OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError,
            RecursionError,
        ) as error:  # fmt: skip
            reason = " ".join(str(error).split())[:200]
            raise ValueError(
                f"{self.path} holds no unfinished measurement ({reason}): delete it to start anew"
            ) from None
        return sitting

    def save(self, sitting: Sitting) -> None:
        """Replaces the file."""
        write_json(
            self.path,
            {
                "key": self.key,
                "repeats": sitting.repeats,
                "wall": sitting.wall,
                "processor": sitting.processor,
                "blocks": self.pace.to_list(),
                "samples": {name: samples.to_list() for name, samples in self.samples.items()},
            },
        )
