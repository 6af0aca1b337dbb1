"""simspec trees: chains, CAPE's sets and draft trees compared."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from simspec.cli.options import (
    Batch,
    Context,
    Cost,
    Csv,
    Json,
    Level,
    Markdown,
    MixedCosts,
    Regimes,
    Seed,
    Traces,
    print_notes,
    print_result,
)

PANEL = "Simulate"


def trees(
    traces: Traces = None,
    nodes: Annotated[
        list[int] | None,
        typer.Option(help="Node budgets of trees, repeatable; default: 8, 16 and 32."),
    ] = None,
    k: Annotated[
        int | None,
        typer.Option(
            "--k", "-k", help="Chain of CAPE and of sets; default: chosen on the other half."
        ),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="Further policies, repeatable: static:4x2x1, static:eagle-25, static:medusa-63, "
            "static:TREE.json, fixed:3."
        ),
    ] = None,
    cost: Cost = None,
    mixed: MixedCosts = False,
    batch: Batch = None,
    context: Context = None,
    level: Level = 0.95,
    seed: Seed = 0,
    regimes: Regimes = False,
    as_json: Json = False,
    as_markdown: Markdown = False,
    out: Csv = None,
) -> None:
    """Compare chains, CAPE's sets and draft trees at equal node budgets.

    Example: simspec trees tiny-model-greedy --nodes 8 --nodes 16 --policy static:4x2x1
    """
    from simspec.evaluate.evaluation import covers, covers_text
    from simspec.output.files import check_output, write_csv
    from simspec.reports.regimes import at_regimes, regime_tables, tree_cells
    from simspec.reports.trees import NODES, compare_trees, frame, tables
    from simspec.trace.recordings import comparable_costs, locate

    paths = locate(traces)
    if out is not None:
        check_output(out, *paths.values(), cost or "")
    costs, cost_notes = comparable_costs(paths, cost, batch, context, mixed)
    print_notes(cost_notes)

    def compared(chosen: Mapping[str, Any], priced: Mapping[str, Any]) -> Any:
        return compare_trees(
            chosen, priced, nodes or NODES, k, policy or (), level=level, seed=seed
        )

    if regimes and out is not None:
        raise ValueError("--csv holds one price: drop --regimes, or take --json")
    if regimes:
        found = at_regimes(paths, costs, compared)
        print_notes(dict.fromkeys(note for _, notes in found.values() for note in notes))
        results = {label: of for label, (of, _) in found.items()}
        cells = {label: tree_cells(of) for label, of in results.items()}
        print_result({"regimes": results}, regime_tables("policy", cells), as_json, as_markdown)
        return
    rows, notes = compared(paths, costs)
    print_notes(notes)
    if out is not None:
        write_csv(frame(rows), out)
    data = {"seed": seed, "level": level, "covers": covers(costs.values()), "trees": rows}
    shown = tables(rows, covers_text(costs.values(), level))
    print_result(data | {"notes": notes}, shown, as_json, as_markdown)
