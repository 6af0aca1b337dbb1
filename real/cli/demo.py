"""The command `simspec demo`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from real.cli.options import Json, Seed
from real.cli.progress import show_progress


def demo(
    prompts: Annotated[int, typer.Option(help="Prompts to run for real on each recording.")] = 10,
    seed: Seed = 0,
    plot: Annotated[Path, typer.Option(help="Where the picture goes.")] = Path("out/demo.png"),
    as_json: Json = False,
):
    """Sweep the bundled recordings, pick a policy, run it on the embedded models, compare with the replay.

    Exits with code 1 if a run and its replay differ. Example: simspec demo --prompts 48 --plot demo.png
    """
    from real.demo import demo as show
    from real.demo import draw

    with show_progress() as progress:
        found = show(prompts, seed, progress=progress)
    draw(found, plot)
    if as_json:
        print(json.dumps(found.summary() | {"plot": str(plot)}))
    else:
        _print_demo(found, plot)
    if not found.comparison.equal:
        raise typer.Exit(1)


def _print_demo(found, plot) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    means = found.table.groupby(["policy", "trace"], sort=False).speedup.mean().unstack(sort=False)
    table = Table("policy", *means.columns, title="modelled speedup, at costs measured here")
    for name, row in means.iterrows():
        table.add_row(name, *(f"{x:.3f}" for x in row))
    console.print(table)
    heads = (
        "recording",
        "its best policy",
        "simulated",
        "measured",
        "rounds",
        "exceptions",
        "failures",
    )
    table = Table(*heads, title="run for real, compared with the replay")
    for name, o in found.outcomes.items():
        c = o.comparison
        counts = c.rounds, len(c.exceptions), len(c.failures)
        table.add_row(name, o.policy, f"{o.simulated:.3f}", f"{o.measured:.3f}", *map(str, counts))
    console.print(table)
    best = found.outcomes[found.best]
    verdict = (
        "the runs did what the replays said"
        if found.comparison.equal
        else "RUNS AND REPLAYS DIFFER"
    )
    console.print(
        f"best: {best.policy} on {found.best}; {verdict}. Picture: {plot}. Device: {best.device}",
        highlight=False,
    )
