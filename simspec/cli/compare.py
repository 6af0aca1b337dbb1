"""simspec compare: policies against one of them, paired by prompt."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simspec.cli.options import (
    Cost,
    Json,
    Level,
    Markdown,
    MixedCosts,
    Replicates,
    Traces,
    check_seed,
    print_notes,
)

if TYPE_CHECKING:
    from simspec.reports.comparison import Comparison

PANEL = "Simulate"


def compare(  # noqa: PLR0913
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
    seed: Annotated[
        int, typer.Option(callback=check_seed, help="Seed of draws and resamples.")
    ] = 0,
    as_json: Json = False,
    as_markdown: Markdown = False,
) -> None:
    """Compare policies with one of them on the same prompts: is it faster, and could we know?

    Differences are paired by prompt; the chance of any false 'faster' or 'slower' among all rows is
    1 - level (Holm).

    Example: simspec compare tiny-model-greedy --policy cost_ts --policy confidence:0.5
    """
    from simspec.cli.selection import servable_groups
    from simspec.output.terminal import markdown_table, print_table, print_text
    from simspec.reports.comparison import Question, comparisons, corrected
    from simspec.reports.intervals import covers, covers_text
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
    if as_json:
        options: dict[str, Any] = {"level": level, "margin": margin, "power": power, "seed": seed}
        options["covers"] = covers(costs.values())
        print(json.dumps(options | {"comparisons": [row.to_dict() for row in rows]}))
        return
    headings = (
        "recording", "policy", "against", "speedup", "baseline",
        f"difference [{level:.0%}]", "error", "p", "verdict", "detectable", "prompts needed",
    )  # fmt: skip
    cells = [_cells(row) for row in rows]
    if as_markdown:
        print(markdown_table(headings, cells))
        return
    print_table(
        headings, cells, names=3, optional=("error", "p", "baseline", "detectable", "speedup")
    )
    print_text(
        f"{len(rows)} comparisons, paired by prompt; p by Holm over all of them. tie: the interval "
        f"lies within {margin:.1%} of the baseline. detectable: found with a chance of {power:.0%}."
    )
    print_text(covers_text(costs.values(), level))


def _cells(row: "Comparison") -> tuple[str, ...]:
    d = row.difference
    return (
        row.recording, row.policy, row.against, f"{row.speedup.value:.3f}",
        f"{row.baseline.value:.3f}", f"{d.value:+.3f} [{d.low:+.3f}, {d.high:+.3f}]",
        f"{row.error:.3f}", f"{row.p:.2g}", row.verdict, f"{row.detectable:.3f}",
        "-" if row.prompts_needed is None else f"{row.prompts_needed:,}",
    )  # fmt: skip
