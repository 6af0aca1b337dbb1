"""Timing passes of any width, batch and context on a model of any size."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from real.bench.latency_figure import draw_latency
from real.jobs.models import ModelSettings, check_models, dtype_of
from real.measure.latency_grid import Ladder
from real.measure.time_grid import BATCHES, CONTEXTS, WIDTHS, ladder
from real.model.random_models import read_target
from real.progress import Progress, quiet, relabel
from simspec.files import check_output
from simspec.rng import check_seed


@dataclass(frozen=True)
class LatencySettings:
    """Which passes are timed.

    | field | meaning |
    | --- | --- |
    | widths, batches, contexts | rows per sequence, sequences, cached rows |
    | drafters | `random_drafter`'s, of which one step is timed |
    | repeats, seed | timings of every cell; of weights and order |
    | captured, compiled | as CUDA graphs; with compiled layers (None: on CUDA) |
    """

    widths: Sequence[int] = WIDTHS
    batches: Sequence[int] = BATCHES
    contexts: Sequence[int] = CONTEXTS
    drafters: Sequence[str] = ()
    repeats: int = 20
    seed: int = 0
    captured: bool = True
    compiled: bool | None = None


@dataclass(frozen=True)
class LatencyFiles:
    """Where results go: all cells (.json, continued by a second call), a cost table, a figure."""

    out: Path
    table: Path | None = None
    plot: Path | None = None


def measure_latency(
    target: str,
    models: ModelSettings,
    settings: LatencySettings,
    files: LatencyFiles,
    progress: Progress = quiet,
) -> Ladder:
    """Times passes of the model `target` with random weights, beside the device's floor.

    Of `models` only device and dtype are used.
    """
    check_models(models)
    check_seed(settings.seed)
    _check(target, models, settings, files)
    shape = read_target(target)
    known = Ladder.from_json(files.out) if files.out.exists() else None
    timed = ladder(
        shape,
        settings.widths,
        settings.batches,
        settings.contexts,
        dtype_of(models.dtype),
        models.device,
        settings.repeats,
        settings.captured,
        settings.compiled,
        settings.drafters,
        settings.seed,
        known,
        lambda cells: cells.to_json(files.out),
        relabel(progress, f"timing {shape.name}"),
    )
    if files.table is not None:
        timed.table(settings.drafters[0]).to_json(files.table)
    if files.plot is not None:
        draw_latency(timed, files.plot)
    return timed


def _check(
    target: str, models: ModelSettings, settings: LatencySettings, files: LatencyFiles
) -> None:
    paths = [path for path in (files.out, files.table, files.plot) if path is not None]
    inputs = [text.partition(":")[2] for text in settings.drafters]
    for i, path in enumerate(paths):
        check_output(path, target, *inputs, *paths[:i])
    widths = sorted(set(settings.widths))
    if files.table is not None and not settings.drafters:
        raise ValueError(
            "--table needs --drafter, whose step prices the drafts: "
            "add one such as --drafter early_exit:4"
        )
    if files.table is not None and (1 not in widths or len(widths) < 2):
        raise ValueError(
            f"--table needs a pass of one row and a wider one, --width is {widths}: "
            "add --width 1 and another"
        )
    if settings.compiled and not (settings.captured and models.device.startswith("cuda")):
        where = models.device if settings.captured else "--eager"
        raise ValueError(f"--fuse is for captured passes on a GPU, not {where}: leave it out")
