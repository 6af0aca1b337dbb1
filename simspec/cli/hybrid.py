"""simspec hybrid: Cali-TS's predictor compared with its sampling side."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

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


def hybrid(
    traces: Traces = None,
    predictor: Annotated[
        list[str] | None,
        typer.Option(help="theta, theta_low_rank or fitted, repeatable; default: all there are."),
    ] = None,
    search: Annotated[
        bool,
        typer.Option("--search", help="Choose the constants anew, on the other half of prompts."),
    ] = False,
    cost: Cost = None,
    mixed: MixedCosts = False,
    replicates: Replicates = 4,
    level: Level = 0.95,
    seed: Seed = 0,
    as_json: Json = False,
    as_markdown: Markdown = False,
) -> None:
    """Cali-TS: weight of its predictor by round, gain over Beta-TS and over sampling alone.

    Example: simspec hybrid tiny-early_exit-greedy --predictor theta

    Example: simspec hybrid --search --predictor fitted
    """
    from simspec.evaluate.evaluation import covers, covers_text
    from simspec.policies.calibrated import DEFAULTS
    from simspec.reports.hybrid import choice_table, gain_table, gains, weight_table
    from simspec.reports.hybrid_search import predictors, weights
    from simspec.trace.recordings import comparable_costs, locate
    from simspec.trace.trace import load_trace

    paths = locate(traces)
    loaded = {name: load_trace(path) for name, path in paths.items()}
    recordings = {
        name: trace
        for name, trace in loaded.items()
        if any(not predictor or head in predictor for head in predictors(trace))
    }
    if search:
        choices = _search(recordings, predictor, replicates, seed)
        print_result(
            {"seed": seed, "choices": choices}, [choice_table(choices)], as_json, as_markdown
        )
        return
    served = {name: path for name, path in paths.items() if name in recordings}
    costs, notes = comparable_costs(served, cost, mixed=mixed)
    print_notes(notes)
    found = gains(recordings, costs, predictor or (), replicates, level, seed)
    names = ("sigma_m", "sigma_s", "theta0")
    defaults = {
        kind: dict(zip(names, constants)) | {"weight": weights(*constants[:2])}
        for kind, constants in DEFAULTS.items()
    }
    data = {"seed": seed, "level": level, "defaults": defaults, "gains": found}
    note = (
        f"Speedups on prompts that nothing was chosen on; differences with {level:.0%} intervals, "
        "paired by prompt. features: what reading them costs is charged, or free. "
        f"Measured prices: {covers_text(costs.values(), level)}"
    )
    shown = [weight_table(), replace(gain_table(found), notes=(note,))]
    print_result(data | {"covers": covers(costs.values())}, shown, as_json, as_markdown)


def _search(
    recordings: Mapping[str, Any], predictor: list[str] | None, replicates: int, seed: int
) -> list[Any]:
    from simspec.reports.hybrid_search import predictors, search

    there = dict.fromkeys(head for trace in recordings.values() for head in predictors(trace))
    heads = [*(predictor or there), ""]
    return [search(recordings, head, replicates, seed) for head in heads]
