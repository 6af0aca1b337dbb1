"""simspec cascade: a sorted drafter's recording at other thresholds."""

from pathlib import Path
from typing import Annotated

import typer

from simspec.cli.options import Json, check_seed, print_result

PANEL = "Simulate"


def cascade(
    trace: Annotated[Path, typer.Argument(help="A recording of a sorted drafter.")],
    exits: Annotated[
        Path | None, typer.Option(help="Its file of exits; default: NAME.exits.parquet next to it.")
    ] = None,
    thresholds: Annotated[
        list[str] | None,
        typer.Option(
            help="Of each exit but the last, repeatable: 0.75/0.7; default: a range of them."
        ),
    ] = None,
    policy: Annotated[str, typer.Option(help="name[:arg,...], as in `simspec sweep`.")] = "fixed:4",
    ratio: Annotated[
        list[float] | None,
        typer.Option(help="A step through all exits over a target step [0.05, 0.1, 0.15]."),
    ] = None,
    seed: Annotated[int, typer.Option(callback=check_seed, help="Seed of the policy's draws.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Write the recording at the one tuple given to this file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Replay a recording of a sorted drafter at other thresholds, exactly.

    Example: simspec cascade out/sorted.parquet --thresholds 0.75/0.7 --thresholds 0.9/0.8
    """
    from simspec.output.files import check_output
    from simspec.reports.cascades import RATIOS, cascade_table, compare_thresholds, parse_thresholds
    from simspec.trace.exits import cascade as derive
    from simspec.trace.exits import exits_path, read_exits
    from simspec.trace.trace import load_trace

    chosen = [parse_thresholds(text) for text in thresholds or ()]
    if out is not None:
        if len(chosen) != 1:
            raise ValueError(f"--out with {len(chosen)} --thresholds; expected one")
        check_output(out, trace)
    recorded = load_trace(trace)
    drafts = read_exits(exits or exits_path(trace), recorded)
    rows = compare_thresholds(recorded, drafts, chosen, policy, ratio or RATIOS, seed)
    if out is not None:
        derive(recorded, drafts, chosen[0])[0].save(out)
    data = {"layers": drafts.layers, "rows": rows}
    print_result(data, [cascade_table(rows, drafts.layers, policy)], as_json)
