"""simspec show: what a recording holds."""

import json
from typing import Annotated

import typer

from simspec.cli.options import Json

PANEL = "Simulate"


def show(
    trace: Annotated[str, typer.Argument(help="A recording's file, or the name of a bundled one.")],
    as_json: Json = False,
) -> None:
    """Describe a recording: where it comes from, its size, its acceptance by depth.

    Example: simspec show traces/prose.parquet
    """
    from simspec.output.terminal import print_fields
    from simspec.reports.summaries import trace_summary
    from simspec.trace.recordings import locate
    from simspec.trace.trace import load_trace

    (path,) = locate([trace]).values()
    summary = trace_summary(load_trace(path))
    if as_json:
        print(json.dumps(summary))
        return
    print_fields(
        {
            key: ", ".join(map(str, value)) if isinstance(value, list) else value
            for key, value in summary.items()
        }
    )
