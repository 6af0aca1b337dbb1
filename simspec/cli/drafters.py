"""simspec drafters: drafters compared by their recordings."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from simspec.cli.options import (
    LONGEST_DRAFT,
    Cost,
    Csv,
    Json,
    Level,
    Markdown,
    MixedCosts,
    Regimes,
    Seed,
    Traces,
    at_most,
    print_notes,
    print_result,
)

PANEL = "Simulate"


def drafters(
    traces: Traces = None,
    cost: Cost = None,
    mixed: MixedCosts = False,
    by_task: Annotated[
        bool,
        typer.Option("--by-task", help="A row per task too; --json and --csv have them anyway."),
    ] = False,
    longest: Annotated[
        int | None,
        typer.Option(
            "--K",
            "-k",
            callback=at_most(LONGEST_DRAFT),
            help="Longest draft to look at; default: each recording's.",
        ),
    ] = None,
    depth: Annotated[
        int,
        typer.Option(
            callback=at_most(LONGEST_DRAFT),
            help="Depths of acceptance to show; --json and --csv have them all.",
        ),
    ] = 4,
    level: Level = 0.95,
    cards: Annotated[
        Path | None,
        typer.Option(
            help="Folder with the drafters' training cards, NAME/card.json or NAME.json: "
            "the tokens that each learned are shown. Default: the cards of bundled recordings."
        ),
    ] = None,
    seed: Seed = 0,
    regimes: Regimes = False,
    as_json: Json = False,
    as_markdown: Markdown = False,
    out: Csv = None,
) -> None:
    """Compare drafters by their recordings: acceptance by depth, cost, best fixed K, speedup.

    Example: simspec drafters tiny-model-coupled tiny-early_exit-coupled --by-task

    Example: simspec drafters traces/smollm2/greedy/*.parquet --cards traces/smollm2/drafters
    """
    from simspec.evaluate.evaluation import covers, covers_text
    from simspec.output.files import check_output, write_csv
    from simspec.reports.drafters import (
        ALL,
        bundled_cards,
        check_depth,
        compare_drafters,
        frame,
        table,
        tokens_learned,
    )
    from simspec.reports.regimes import at_regimes, drafter_cells, regime_tables
    from simspec.trace.recordings import comparable_costs, locate

    check_depth(depth)
    if cards is not None and not cards.is_dir():
        raise ValueError(f"--cards is {cards}, expected a folder of drafters' training cards")
    paths = locate(traces)
    if out is not None:
        check_output(out, *paths.values(), cost or "")
    costs, notes = comparable_costs(paths, cost, mixed=mixed)
    print_notes(notes)

    def compared(chosen: Mapping[str, Any], priced: Mapping[str, Any]) -> list[Any]:
        rows = compare_drafters(chosen, priced, longest, level, seed=seed)
        folders = {name: cards or bundled_cards(path) for name, path in paths.items()}
        return [
            replace(row, learned=tokens_learned(folder, str(paths[row.recording]), row.drafter))
            for row in rows
            for folder in [folders[row.recording]]
        ]

    if regimes and out is not None:
        raise ValueError("--csv holds one price: drop --regimes, or take --json")
    if regimes:
        results = at_regimes(paths, costs, compared)
        cells = {label: drafter_cells(of) for label, of in results.items()}
        print_result({"regimes": results}, regime_tables("recording", cells), as_json, as_markdown)
        return
    rows = compared(paths, costs)
    for row in rows:
        if row.task == ALL and row.note:
            print_notes([f"{row.recording}: {row.note}"])
    if out is not None:
        write_csv(frame(rows), out)
    data = {"seed": seed, "level": level, "covers": covers(costs.values()), "drafters": rows}
    shown = [row for row in rows if by_task or row.task == ALL]
    covered = covers_text(costs.values(), level)
    print_result(data, [table(shown, depth, as_markdown, covered)], as_json, as_markdown)
