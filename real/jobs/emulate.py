"""Models of any size with random weights: latency of passes, and policies timed on them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from real.bench.emulation import Emulation, emulate, emulation_passes
from real.bench.figures import draw_latency
from real.bench.recorded_drafter import SequenceSettings
from real.drafters import drafter_shapes, random_drafter
from real.jobs.models import ModelSettings, check_models, dtype_of, open_recording, policy_cost_of
from real.measure.latency_grid import GridAxes, GridSettings, LatencyGrid
from real.measure.time_grid import grid_cost_table, measure_grid
from real.model.random_models import check_room, random_decoder, read_shape, read_target
from real.progress import Progress, quiet, relabel
from real.provenance import check_device
from simspec.numerics.rng import check_seed
from simspec.output.files import check_output


@dataclass(frozen=True)
class LatencyFiles:
    """Output files: all cells (.json, continued by a second call), a cost table, a figure."""

    out: Path
    table: Path | None = None
    plot: Path | None = None


def measure_latency(
    target: str,
    axes: GridAxes,
    settings: GridSettings,
    files: LatencyFiles,
    progress: Progress = quiet,
) -> LatencyGrid:
    """Times passes of the model `target` with random weights, and measures the device's floor."""
    check_device(settings.device)
    check_seed(settings.seed)
    _check_files(target, axes, settings, files)
    shape = read_target(target)
    grid = measure_grid(
        shape,
        axes,
        settings,
        LatencyGrid.from_json(files.out) if files.out.exists() else None,
        lambda measured: measured.to_json(files.out),
        relabel(progress, f"timing {shape.name}"),
    )
    if files.table is not None:
        grid_cost_table(grid, settings.drafters[0]).to_json(files.table)
    if files.plot is not None:
        draw_latency(grid, files.plot)
    return grid


def _check_files(target: str, axes: GridAxes, settings: GridSettings, files: LatencyFiles) -> None:
    paths = [path for path in (files.out, files.table, files.plot) if path is not None]
    inputs = [text.partition(":")[2] for text in settings.drafters]
    for i, path in enumerate(paths):
        check_output(path, target, *inputs, *paths[:i])
    if files.table is None:
        return
    if not settings.drafters:
        raise ValueError(
            "--table needs --drafter, whose step prices the drafts: "
            "add one such as --drafter early_exit:4"
        )
    if 1 not in axes.widths or len(axes.widths) < 2:
        raise ValueError(
            f"--table needs a pass of one row and a wider one, --width is {list(axes.widths)}: "
            "add --width 1 and another"
        )


POLICIES = ("fixed:1", "fixed:2", "fixed:4", "beta_ts")
"""Policies that are timed where none is named."""


@dataclass(frozen=True)
class EmulationSettings:
    """Settings of an emulation on one recording.

    | field | meaning |
    | --- | --- |
    | drafter | early_exit[:LAYERS], model:SHAPE, eagle, medusa or prompt_lookup |
    | policies | name[:arg,...] as in `simspec sweep` |
    | prompts | number of the recording's prompts, spread over the tasks; 0: all |
    | context | tokens of every prompt; None: as recorded |
    | cost | a cost file that policies observe |
    | seed | of weights, prompts and policies |
    """

    drafter: str = "early_exit"
    policies: Sequence[str] = POLICIES
    prompts: int = 12
    context: int | None = None
    cost: Path | None = None
    seed: int = 0


def emulate_recording(
    name: str,
    shape: str,
    models: ModelSettings,
    settings: EmulationSettings,
    progress: Progress = quiet,
) -> Emulation:
    """Times policies on a model of that shape; each round accepts what the recording `name` says.

    Of `models` only device, dtype and engine are used: weights are random.
    """
    check_models(models)
    check_seed(settings.seed)
    path, trace = open_recording(name, settings.prompts)
    policy_cost = policy_cost_of(path, settings.cost, trace.K)
    model, dtype, context = read_shape(shape), dtype_of(models.dtype), settings.context
    longest = int(np.diff(trace.prompt_offset).max()) if context is None else context
    capacity = longest + int(trace.budget.max())
    check_room([model, *drafter_shapes(settings.drafter, model)], dtype, capacity, models.device)
    decoder = random_decoder(model, dtype, models.device, settings.seed)
    drafter = random_drafter(
        settings.drafter, decoder, model, int(trace.depth.max()), settings.seed
    )
    label = {
        "text": "random",
        "acceptance": name,
        "target": model.name,
        "drafter": settings.drafter,
        "weights": "random",
        "rule": "greedy",
        "dtype": models.dtype,
        "engine": models.engine,
        "prompts": trace.sequences,
        "context": context or "as recorded",
    }
    emulation = emulate(
        decoder,
        drafter,
        trace,
        settings.policies,
        policy_cost,
        SequenceSettings(context, settings.seed),
        relabel(progress, f"emulating {model.name}"),
        emulation_passes(models.engine, trace, context),
    )
    return emulation.labeled(label)
