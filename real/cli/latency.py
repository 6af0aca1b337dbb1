"""The command `simspec latency`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from real.cli.options import Device, Json, Seed
from real.cli.progress import show_progress
from real.cli.tables import _table
from real.progress import relabel


def latency(
    target: Annotated[
        str,
        typer.Option(
            help="A name such as llama-3-8b, SHAPE.json, LAYERSxWIDTHxHEADSxVOCAB, or a model's folder."
        ),
    ],
    out: Annotated[
        Path, typer.Option(help="Every cell, .json; what it holds already is not measured again.")
    ],
    width: Annotated[
        list[int] | None,
        typer.Option(help="Rows a sequence passes, repeatable [1 2 3 4 5 6 8 12 16 17 24 32]."),
    ] = None,
    batch: Annotated[
        list[int] | None, typer.Option(help="Sequences together, repeatable [1 4 16 64].")
    ] = None,
    context: Annotated[
        list[int] | None, typer.Option(help="Rows cached before, repeatable [128 1024 4096].")
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
            help="Write a cost table for `simspec sweep --cost`; the first --drafter prices its drafts."
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Write a PNG: milliseconds against width, floors dashed.")
    ] = None,
    repeats: Annotated[int, typer.Option(help="Timings of every cell.")] = 20,
    eager: Annotated[
        bool, typer.Option("--eager", help="Kernel by kernel from Python, nothing captured.")
    ] = False,
    compiled: Annotated[
        bool | None,
        typer.Option(
            "--fuse/--no-fuse", help="Compile layers before the capture; default: on a card."
        ),
    ] = None,
    device: Device = "cpu",
    dtype: Annotated[str, typer.Option(help="float32, float64 or bfloat16.")] = "bfloat16",
    seed: Seed = 0,
    as_json: Json = False,
):
    """Time passes of every width, batch and context on a model of any size with random weights, beside what the device allows at best.

    The floor is bytes / copy bandwidth (read and written bytes both count) or operations / matrix rate, whichever is longer, both
    measured in the same run. Medians as they are, nothing smoothed. By estimate all defaults on llama-3-8b
    take 90 s on an H200; give a CPU small shapes. Killed, it continues.

    Example: simspec latency --target llama-3-8b --device cuda --drafter early_exit:4 --out out/8b.json --table out/8b.cost.json
    """
    from real.measure.grid_costs import grid_cost_table
    from real.measure.grid_settings import BATCHES, CONTEXTS, WIDTHS, GridAxes, GridSettings
    from real.measure.latency_grid import LatencyGrid
    from real.measure.time_grid import measure_grid
    from real.model.random_models import read_target
    from real.pair import DTYPES
    from real.provenance import check_device
    from simspec.files import check_output
    from simspec.rng import check_seed

    check_device(device)
    check_seed(seed)
    if dtype not in DTYPES:
        raise ValueError(f"dtype {dtype!r} is unknown; expected one of {', '.join(DTYPES)}")
    paths = [path for path in (out, table, plot) if path is not None]
    read = [text.partition(":")[2] for text in drafter or ()]
    for i, path in enumerate(paths):
        check_output(path, target, *read, *paths[:i])
    if table is not None and not drafter:
        raise ValueError(
            "--table needs --drafter, whose step prices the drafts: add one such as --drafter early_exit:4"
        )
    if table is not None and width and (1 not in width or len(set(width)) < 2):
        raise ValueError(
            f"--table needs a pass of one row and a wider one, --width is {sorted(set(width))}: add --width 1 and another"
        )
    if compiled and (eager or not device.startswith("cuda")):
        raise ValueError(
            f"--fuse is for captured passes on a card, not {'--eager' if eager else device}: leave it out"
        )
    shape = read_target(target)
    axes = GridAxes(tuple(width or WIDTHS), tuple(batch or BATCHES), tuple(context or CONTEXTS))
    settings = GridSettings(
        DTYPES[dtype],
        device,
        repeats,
        graphs=not eager,
        compiled=compiled,
        drafters=tuple(drafter or ()),
        seed=seed,
    )
    measured = LatencyGrid.from_json(out) if out.exists() else None
    with show_progress() as progress:
        found = measure_grid(
            shape,
            axes,
            settings,
            measured,
            lambda grid: grid.to_json(out),
            relabel(progress, f"timing {shape.name}"),
        )
    if table is not None:
        grid_cost_table(found, drafter[0]).to_json(table)
    if plot is not None:
        draw(found, plot)
    print(json.dumps(found.to_dict())) if as_json else _print(found)


def draw(found, path: Path) -> None:
    """Writes a PNG: for every context milliseconds against width, a line a batch with its 10th to 90th percentile, its floor dashed."""
    from matplotlib.figure import Figure

    from real.files import replacing

    contexts, batches = found.axis("context"), found.axis("batch")
    figure = Figure(figsize=(1 + 4.2 * len(contexts), 4.6), layout="constrained")
    panels = figure.subplots(1, len(contexts), sharey=True, squeeze=False)[0]
    for panel, context in zip(panels, contexts):
        for i, batch in enumerate(batches):
            cells = [c for c in found.by_width(batch, context) if c.fits]
            if not cells:
                continue
            across, colour = [c.width for c in cells], f"C{i % 10}"
            panel.plot(
                across,
                [1e3 * c.median_s for c in cells],
                "o-",
                ms=3,
                lw=1,
                color=colour,
                label=f"batch {batch}",
            )
            panel.fill_between(
                across,
                [1e3 * c.p10_s for c in cells],
                [1e3 * c.p90_s for c in cells],
                color=colour,
                alpha=0.2,
                lw=0,
            )
            panel.plot(across, [1e3 * c.floor_s for c in cells], "--", lw=0.8, color=colour)
        panel.set(xlabel="rows a sequence", title=f"context {context}", yscale="log")
    panels[0].set_ylabel("milliseconds a pass (dashed: floor)")
    if panels[0].get_legend_handles_labels()[0]:
        panels[0].legend(fontsize="small")
    figure.suptitle(
        f"{found.shape.name}, {found.dtype}, {found.device}, {_how(found)}", fontsize="medium"
    )
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=130)


def _how(found) -> str:
    return "eager" if not found.graphed else "captured" + (", fused" if found.fused else "")


def _print(found) -> None:
    from real.measure.pass_latency import TARGET

    parts = [TARGET, *dict.fromkeys(c.part for c in found.cells if c.part != TARGET)]
    for part in parts:
        widths = found.axis("width", part)
        name = found.shape.name if part == TARGET else f"{part}, one step"
        title = f"{name}: milliseconds (times the floor) by rows; {_how(found)}, {found.dtype}, {found.device}"
        shown, console = _table(title, "batch", "context", *map(str, widths))
        for batch in found.axis("batch", part):
            for context in found.axis("context", part):
                by = {c.width: c for c in found.by_width(batch, context, part)}
                said = (
                    f"{1e3 * by[w].median_s:.3f} ({by[w].distance:.2f})"
                    if w in by and by[w].fits
                    else "-"
                    for w in widths
                )
                shown.add_row(str(batch), str(context), *said)
        console.print(shown)
    speeds = found.speeds
    for what, unit, each in (
        ("copy bandwidth", "GB/s", speeds.bandwidth),
        ("matrix rate", "GFLOP/s", speeds.rate),
    ):
        low, middle, high = (f"{x / 1e9:,.1f}" for x in (each.p10, each.median, each.p90))
        print(f"{what} {middle} {unit} (10th to 90th percentile {low} to {high})")
