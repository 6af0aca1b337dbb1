"""The command `simspec latency`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from real.commands.options import MOST_TOKENS, MOST_WIDTH, Device, Json, Seed, show_progress
from simspec.cli.options import MOST_BATCH, MOST_REPEATS, at_most
from simspec.output.table import print_table

PANEL = "Record"


def latency(
    target: Annotated[
        str,
        typer.Option(
            help="A name such as llama-3-8b, SHAPE.json, LAYERSxWIDTHxHEADSxVOCAB, "
            "or a model's folder."
        ),
    ],
    out: Annotated[
        Path, typer.Option(help="Every cell, .json; what it holds already is not measured again.")
    ],
    width: Annotated[
        list[int] | None,
        typer.Option(
            callback=at_most(MOST_WIDTH),
            help="Rows a sequence passes, repeatable [1 2 3 4 5 6 8 12 16 17 24 32].",
        ),
    ] = None,
    batch: Annotated[
        list[int] | None,
        typer.Option(
            callback=at_most(MOST_BATCH), help="Sequences together, repeatable [1 4 16 64]."
        ),
    ] = None,
    context: Annotated[
        list[int] | None,
        typer.Option(
            callback=at_most(MOST_TOKENS), help="Rows cached before, repeatable [128 1024 4096]."
        ),
    ] = None,
    drafter: Annotated[
        list[str] | None,
        typer.Option(
            help="A step of early_exit[:LAYERS], model:SHAPE, eagle or medusa too, repeatable."
        ),
    ] = None,
    table: Annotated[
        Path | None,
        typer.Option(
            help="Write a cost table for `simspec sweep --cost`; "
            "the first --drafter prices its drafts."
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Write a PNG: milliseconds against width, floors dashed.")
    ] = None,
    repeats: Annotated[
        int, typer.Option(callback=at_most(MOST_REPEATS), help="Timings of every cell.")
    ] = 20,
    eager: Annotated[
        bool, typer.Option("--eager", help="Kernel by kernel from Python, nothing captured.")
    ] = False,
    compiled: Annotated[
        bool | None,
        typer.Option(
            "--fuse/--no-fuse", help="Compile layers before the capture; default: on a GPU."
        ),
    ] = None,
    device: Device = "cpu",
    dtype: Annotated[str, typer.Option(help="float32, float64 or bfloat16.")] = "bfloat16",
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Time passes of every width, batch and context on a model of any size with random weights.

    Each is compared with the device's floor: bytes / copy bandwidth or operations / matrix rate,
    whichever is longer, both measured in the same run. Values are medians. A second call
    continues. All defaults on llama-3-8b take about 90 s on an H200; give a CPU small shapes.

    Example: simspec latency --target llama-3-8b --device cuda --drafter eagle --out 8b.json
    """
    from real.jobs import LatencyFiles, dtype_of, measure_latency
    from real.measure.latency_grid import BATCHES, CONTEXTS, WIDTHS, GridAxes, GridSettings
    from real.provenance import check_device

    check_device(device)
    if compiled and (eager or not device.startswith("cuda")):
        where = "--eager" if eager else device
        raise ValueError(f"--fuse is for captured passes on a GPU, not {where}: leave it out")
    axes = GridAxes(tuple(width or WIDTHS), tuple(batch or BATCHES), tuple(context or CONTEXTS))
    settings = GridSettings(
        dtype_of(dtype),
        device,
        repeats,
        graphs=not eager,
        compiled=compiled,
        drafters=tuple(drafter or ()),
        seed=seed,
    )
    with show_progress() as progress:
        grid = measure_latency(target, axes, settings, LatencyFiles(out, table, plot), progress)
    print(json.dumps(grid.to_dict())) if as_json else _print(grid)


def _print(grid) -> None:
    from real.bench.figures import execution
    from real.measure.latency_grid import TARGET

    for part in [TARGET, *dict.fromkeys(c.part for c in grid.cells if c.part != TARGET)]:
        widths = grid.axis("width", part)
        name = grid.shape.name if part == TARGET else f"{part}, one step"
        rows = []
        for batch in grid.axis("batch", part):
            for context in grid.axis("context", part):
                cells = {c.width: c for c in grid.by_width(batch, context, part) if c.fits}
                times = (
                    f"{1e3 * cells[w].median_s:.3f} ({cells[w].distance:.2f})"
                    if w in cells
                    else "-"
                    for w in widths
                )
                rows.append((batch, context, *times))
        print_table(
            ("batch", "context", *map(str, widths)),
            rows,
            names=2,
            title=f"{name}: milliseconds (times the floor) by rows; "
            f"{execution(grid)}, {grid.dtype}, {grid.device}",
        )
    for label, unit, speed in (
        ("copy bandwidth", "GB/s", grid.speeds.bandwidth),
        ("matrix rate", "GFLOP/s", grid.speeds.rate),
    ):
        low, middle, high = (f"{x / 1e9:,.1f}" for x in (speed.p10, speed.median, speed.p90))
        print(f"{label} {middle} {unit} (10th to 90th percentile {low} to {high})")
