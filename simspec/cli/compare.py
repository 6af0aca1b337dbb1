"""simspec compare: policies against one of them, paired by prompt."""

from typing import Annotated

import typer

from simspec.cli.options import (
    Cost,
    Json,
    Level,
    Markdown,
    MixedCosts,
    Replicates,
    Seed,
    Traces,
    print_notes,
    print_result,
)

PANEL = "Simulate"


def compare(
    traces: Traces = None,
    policy: Annotated[
        list[str] | None, typer.Option("--policy", help="name[:arg,...], repeatable.")
    ] = None,
    against: Annotated[
        str, typer.Option(help="The baseline: a policy, or the best fixed length in hindsight.")
    ] = "best_fixed",
    cost: Cost = None,
    mixed: MixedCosts = False,
    margin: Annotated[
        float, typer.Option(help="Speedups within this share of the baseline's are a tie.")
    ] = 0.01,
    power: Annotated[
        float, typer.Option(help="Chance to find the smallest detectable difference.")
    ] = 0.8,
    level: Level = 0.95,
    replicates: Replicates = 4,
    seed: Seed = 0,
    as_json: Json = False,
    as_markdown: Markdown = False,
) -> None:
    """Compare policies with one of them on the same prompts: is it faster, and could we know?

    Differences are paired by prompt; the chance of any false 'faster' or 'slower' among all rows is
    1 - level (Holm).

    Example: simspec compare tiny-model-greedy --policy cost_ts --policy confidence:0.5
    """
    from simspec.cli.selection import servable_groups
    from simspec.evaluate.evaluation import covers, covers_text
    from simspec.reports.comparison import Question, comparison_table, comparisons, corrected
    from simspec.trace.recordings import comparable_costs, locate

    if not policy:
        raise ValueError("no policy is named: give one or more by --policy, such as cost_ts")
    question = Question(level, margin, power, seed=seed)
    paths = locate(traces)
    costs, notes = comparable_costs(paths, cost, mixed=mixed)
    print_notes(notes)
    found = [
        comparison
        for served, group in servable_groups(paths, policy, costs)
        for comparison in comparisons(group, served, costs, against, replicates, question)
    ]
    rows = corrected(found, question)
    covered = covers_text(costs.values(), level)
    about = {"level": level, "margin": margin, "power": power, "seed": seed}
    data = about | {"covers": covers(costs.values()), "comparisons": rows}
    print_result(data, [comparison_table(rows, question, covered)], as_json, as_markdown)
