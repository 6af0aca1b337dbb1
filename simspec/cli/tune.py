"""simspec tune: a policy's arguments, chosen on half of the prompts and reported on the rest."""

from typing import Annotated

import typer

from simspec.cli.options import (
    Cost,
    Json,
    Level,
    MixedCosts,
    Replicates,
    Seed,
    Traces,
    print_notes,
    print_result,
)

PANEL = "Simulate"


def tune(
    policy: Annotated[
        str, typer.Argument(help="name[:arg,...]; arguments that are given are kept.")
    ],
    traces: Traces = None,
    cost: Cost = None,
    mixed: MixedCosts = False,
    trials: Annotated[int, typer.Option(help="Settings to replay, about.")] = 256,
    replicates: Replicates = 4,
    level: Level = 0.95,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Tune a policy's arguments on every second prompt, and report what is left on the others.

    One setting for all recordings that are named together.

    Example: simspec tune cost_ts tiny-model-greedy

    Example: simspec tune product:predictor=theta mine.parquet --cost cost.json --trials 1000
    """
    from simspec.cli.selection import servable_groups
    from simspec.evaluate.evaluation import covers, covers_text
    from simspec.output.terminal import progress_bar
    from simspec.reports.tuning import Search, default_text, tuning_table
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
    about = {"seed": seed, "level": level, "covers": covers(costs.values())}
    shown = tuning_table(tuning, level, covers_text(costs.values(), level))
    print_result(about | tuning.to_dict(), [shown], as_json)
