"""The command `simspec exits`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from real.commands.options import Device, Dtype, Json, Models, TargetPath, Threads, Weights

PANEL = "Record"


def exits(
    trace: Annotated[str, typer.Argument(help="A recording of drafter sorted.")],
    out: Annotated[
        Path | None, typer.Option(help="The file; default: NAME.exits.parquet next to it.")
    ] = None,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    threads: Threads = 0,
    models: Models = None,
    target: TargetPath = None,
    weights: Weights = None,
    as_json: Json = False,
) -> None:
    """Record what every exit of a sorted drafter drafts, so that thresholds are a replay.

    Example: simspec exits out/sorted.parquet --models models/mine
    """
    from real.jobs import ModelSettings, exits_of_recording

    models_ = ModelSettings(models, device, dtype, "eager", target, weights)
    drafts, path = exits_of_recording(trace, models_, out)
    if as_json:
        written = {"path": str(path), "layers": drafts.layers, "nodes": len(drafts.token)}
        print(json.dumps(written))
    else:
        print(f"wrote {path}: {drafts.exits} exits of {len(drafts.token):,} drafts")
