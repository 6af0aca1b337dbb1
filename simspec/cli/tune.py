"""simspec tune: a policy's arguments, chosen on half of the prompts and reported on the rest."""

import json
import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from simspec.cli.options import (
    Cost,
    Json,
    Level,
    MixedCosts,
    Replicates,
    Traces,
    check_seed,
    print_notes,
)

if TYPE_CHECKING:
    from simspec.reports.tuning import Half, Tuning

PANEL = "Simulate"


def tune(  # noqa: PLR0913
    policy: Annotated[
        str, typer.Argument(help="name[:arg,...]; arguments that are given are kept.")
    ],
    traces: Traces = None,
    cost: Cost = None,
    mixed: MixedCosts = False,
    trials: Annotated[int, typer.Option(help="Settings to replay, about.")] = 256,
    replicates: Replicates = 4,
    level: Level = 0.95,
    seed: Annotated[
        int, typer.Option(callback=check_seed, help="Seed of the search, draws and resamples.")
    ] = 0,
    as_json: Json = False,
) -> None:
    """Tune a policy's arguments on every second prompt, and report what is left on the others.

    One setting for all recordings that are named together.

    Example: simspec tune cost_ts tiny-model-greedy

    Example: simspec tune product:predictor=theta mine.parquet --cost cost.json --trials 1000
    """
    from simspec.cli.selection import servable_groups
    from simspec.output.terminal import progress_bar
    from simspec.reports.intervals import covers, covers_text
    from simspec.reports.tuning import Search, default_text
    from simspec.reports.tuning import tune as tune_policy
    from simspec.trace.recordings import comparable_costs, locate

    search = Search(trials, replicates, seed, level)
    start = default_text(policy)
    paths = locate(traces)
    costs, notes = comparable_costs(paths, cost, mixed=mixed)
    print_notes(notes)
    served = {
        name: trace
        for _, group in servable_groups(paths, [start], costs)
        for name, trace in group.items()
    }
    with progress_bar("tuning", search.trials) as advance:
        tuning = tune_policy(served, policy, costs, search, advance)
    if as_json:
        about = {"seed": seed, "level": level, "covers": covers(costs.values())}
        print(json.dumps(about | tuning.to_dict()))
        return
    _print(tuning, level, covers_text(costs.values(), level))


def _print(tuning: "Tuning", level: float, covered: str) -> None:
    from simspec.output.terminal import print_table, print_text

    headings = (
        "recording", "prompts", "default", "tuned", f"difference [{level:.0%}]", "p", "verdict",
    )  # fmt: skip
    rows = [
        cells
        for row in tuning.recordings
        for cells in (
            (row.recording, *_cells(row.fit, "tuned on"), "", ""),
            (row.recording, *_cells(row.held_out, "held out"), f"{row.p:.2g}", row.verdict),
        )
    ]
    print_table(headings, rows, names=2, optional=("default", "p"))
    fit, held_out = tuning.gain("fit"), tuning.gain("held_out")
    print_text(
        f"default {tuning.default}; {tuning.settings} settings replayed; "
        f"gain {fit:+.1%} on the prompts tuned on, {held_out:+.1%} on those held out."
    )
    print_text(covered)
    if len(tuning.recordings) > 1:
        print_text(f"p by Holm over {len(tuning.recordings)} recordings.")
    if tuning.tuned != tuning.default:
        print_text(f"simspec sweep --policy {shlex.quote(tuning.tuned)}")


def _cells(half: "Half", name: str) -> tuple[str, ...]:
    d = half.difference
    return (
        f"{half.default.prompts} {name}", f"{half.default.value:.3f}", f"{half.tuned.value:.3f}",
        f"{d.value:+.3f} [{d.low:+.3f}, {d.high:+.3f}]",
    )  # fmt: skip
