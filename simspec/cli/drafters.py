"""simspec drafters: drafters compared by their recordings."""

import json
from collections.abc import Mapping, Sequence
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
    Traces,
    at_most,
    check_seed,
    print_notes,
)
from simspec.cli.regimes import print_regimes, recordings_of

PANEL = "Simulate"


def drafters(  # noqa: PLR0913
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
    seed: Annotated[int, typer.Option(callback=check_seed, help="Seed of the bootstrap.")] = 0,
    regimes: Regimes = False,
    as_json: Json = False,
    as_markdown: Markdown = False,
    out: Csv = None,
) -> None:
    """Compare drafters by their recordings: acceptance by depth, cost, best fixed K, speedup.

    Example: simspec drafters tiny-model-coupled tiny-early_exit-coupled --by-task

    Example: simspec drafters traces/smollm2/greedy/*.parquet --cards traces/smollm2/drafters
    """
    from simspec.output.files import check_output, write_csv
    from simspec.reports.drafters import (
        ALL,
        bundled_cards,
        check_depth,
        compare_drafters,
        markdown,
        table,
        tokens_learned,
    )
    from simspec.reports.intervals import covers, covers_text
    from simspec.reports.regimes import at_regimes, drafter_cells
    from simspec.trace.recordings import comparable_costs, locate

    check_depth(depth)
    if cards is not None and not cards.is_dir():
        raise ValueError(f"--cards is {cards}, expected a folder of drafters' training cards")
    paths = locate(traces)
    if out is not None:
        check_output(out, *paths.values(), cost or "")
    costs, notes = comparable_costs(paths, cost, mixed=mixed)
    print_notes(notes)

    def compared(names: Sequence[str], priced: Mapping[str, Any]) -> list[Any]:
        chosen = recordings_of(paths, names)
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
        data_of = (lambda of: [row.to_dict() for row in of]) if as_json else None
        print_regimes("recording", results, drafter_cells, data_of, as_markdown)
        return
    rows = compared(list(paths), costs)
    for row in rows:
        if row.task == ALL and row.note:
            print_notes([f"{row.recording}: {row.note}"])
    if out is not None:
        write_csv(table(rows), out)
    shown = [row for row in rows if by_task or row.task == ALL]
    if as_json:
        data = [row.to_dict() for row in rows]
        about = {"seed": seed, "level": level, "covers": covers(costs.values())}
        print(json.dumps(about | {"drafters": data}))
    elif as_markdown:
        print(markdown(shown, depth))
    else:
        _print(shown, depth, covers_text(costs.values(), level))


def _print(rows: list[Any], depth: int, covered: str) -> None:
    from simspec.numerics.stats import MIN_PROMPTS
    from simspec.output.terminal import print_table, print_text
    from simspec.reports.drafters import cells, headings, tells_training

    learned = tells_training(rows)
    print_table(
        headings(depth, learned),
        [cells(row, depth, alpha_limits=False, learned=learned) for row in rows],
        names=3,
        optional=("expected", "then", *(f"a{j}" for j in range(depth, 1, -1)), "c"),
    )
    print_text(
        "a1, a2 ..: acceptance by depth, given the tokens before. "
        "c, then: the first draft step and a further one, in plain steps."
    )
    print_text(
        "speedup: at the best K in hindsight, replayed at the recording's costs; "
        "expected: by GLIDE's formula from a1, a2 .."
    )
    print_text(
        f"Speedups: {covered} None for fewer than {MIN_PROMPTS} prompts; those of a1, a2 .., over "
        "prompts, with --json, --csv and --markdown."
    )
