"""The command `simspec demo`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from real.commands.options import Json, Seed, show_progress
from simspec.cli.options import MOST_PROMPTS, MOST_THREADS, at_most
from simspec.output.table import print_table
from simspec.output.terminal import print_text

PANEL = "Run and verify"


def demo(
    prompts: Annotated[
        int,
        typer.Option(
            callback=at_most(MOST_PROMPTS), help="Prompts to run for real on each recording."
        ),
    ] = 10,
    seed: Seed = 0,
    threads: Annotated[
        int,
        typer.Option(
            callback=at_most(MOST_THREADS), help="Threads of torch; 0: torch's own choice."
        ),
    ] = 1,
    plot: Annotated[Path, typer.Option(help="Where the picture goes.")] = Path("out/demo.png"),
    as_json: Json = False,
) -> None:
    """Sweep the bundled recordings, and run the best policies on the embedded models.

    Exits with code 1 if a run and its replay differ.

    Example: simspec demo --prompts 48 --plot demo.png
    """
    from real.demo import demo as run_demo
    from real.demo import draw

    with show_progress() as progress:
        result = run_demo(prompts, seed, progress=progress, threads=threads)
    draw(result, plot)
    if as_json:
        print(json.dumps(result.summary() | {"plot": str(plot)}))
    else:
        _print(result, plot)
    if not result.comparison.equal:
        raise typer.Exit(1)


def _print(result, plot: Path) -> None:
    means = result.table.groupby(["policy", "trace"], sort=False).speedup.mean().unstack(sort=False)
    print_table(
        ("policy", *means.columns),
        [(name, *(f"{x:.3f}" for x in row)) for name, row in means.iterrows()],
        title="modeled speedup, at costs measured here",
    )
    rows = []
    for name, o in result.outcomes.items():
        c = o.comparison
        speedups = f"{o.simulated:.3f}", f"{o.measured:.3f}"
        rows.append((name, o.policy, *speedups, c.rounds, len(c.exceptions), len(c.failures)))
    print_table(
        (
            "recording", "its best policy", "simulated", "measured", "rounds", "exceptions",
            "failures",
        ),
        rows,
        title="run for real, compared with the replay",
    )  # fmt: skip
    best = result.outcomes[result.best]
    equal = result.comparison.equal
    outcome = "the runs did what the replays said" if equal else "RUNS AND REPLAYS DIFFER"
    print_text(
        f"best: {best.policy} on {result.best}; {outcome}. Picture: {plot}. Device: {best.device}"
    )
