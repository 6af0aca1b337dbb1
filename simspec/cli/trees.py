"""simspec trees: chains, CAPE's sets and draft trees compared."""

import json
from collections.abc import Mapping, Sequence
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
    Traces,
    check_seed,
    print_notes,
)
from simspec.cli.regimes import print_regimes, recordings_of

PANEL = "Simulate"


def trees(  # noqa: PLR0913
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
    seed: Annotated[int, typer.Option(callback=check_seed, help="Seed of the bootstrap.")] = 0,
    regimes: Regimes = False,
    as_json: Json = False,
    as_markdown: Markdown = False,
    out: Csv = None,
) -> None:
    """Compare chains, CAPE's sets and draft trees at equal node budgets.

    Example: simspec trees tiny-model-greedy --nodes 8 --nodes 16 --policy static:4x2x1
    """
    from simspec.output.files import check_output, write_csv
    from simspec.reports.intervals import covers, covers_text
    from simspec.reports.regimes import at_regimes, tree_cells
    from simspec.reports.trees import NODES, compare_trees, markdown, table
    from simspec.trace.recordings import comparable_costs, locate

    paths = locate(traces)
    if out is not None:
        check_output(out, *paths.values(), cost or "")
    costs, cost_notes = comparable_costs(paths, cost, batch, context, mixed)
    print_notes(cost_notes)

    def compared(names: Sequence[str], priced: Mapping[str, Any]) -> tuple[list[Any], list[str]]:
        chosen, budgets = recordings_of(paths, names), nodes or NODES
        return compare_trees(chosen, priced, budgets, k, policy or (), level=level, seed=seed)

    if regimes and out is not None:
        raise ValueError("--csv holds one price: drop --regimes, or take --json")
    if regimes:
        found = at_regimes(paths, costs, compared)
        print_notes(dict.fromkeys(note for _, notes in found.values() for note in notes))
        results = {label: of for label, (of, _) in found.items()}
        data_of = (lambda of: [row.to_dict() for row in of]) if as_json else None
        print_regimes("policy", results, tree_cells, data_of, as_markdown)
        return
    rows, notes = compared(list(paths), costs)
    print_notes(notes)
    if out is not None:
        write_csv(table(rows), out)
    if as_json:
        data = [row.to_dict() for row in rows]
        about = {"seed": seed, "level": level, "covers": covers(costs.values())}
        print(json.dumps(about | {"trees": data, "notes": notes}))
    elif as_markdown:
        print(markdown(rows))
    else:
        _print(rows, covers_text(costs.values(), level))


def _print(rows: list[Any], covered: str) -> None:
    from simspec.numerics.stats import MIN_PROMPTS
    from simspec.output.terminal import print_table, print_text
    from simspec.reports.trees import HEADINGS, by_recording

    for name, cells in by_recording(rows).items():
        optional = ("passes/round", "nodes/round", "chosen", "over a chain as deep")
        print_table(HEADINGS, cells, title=name, optional=optional)
    print_text(
        "tokens/round: tau, with the target's own; over a chain as deep: tau less that of fixed:K, "
        "K the levels. nodes/round: submitted. passes/round: of the drafter. Speedups at the costs."
    )
    print_text(
        "k, shapes: chosen on half the prompts, counted on the other. "
        f"Speedups: {covered} None for fewer than {MIN_PROMPTS} prompts."
    )
