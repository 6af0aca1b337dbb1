"""simspec hybrid: Cali-TS's predictor beside its sampling side."""

import json
from collections.abc import Mapping
from typing import Annotated, Any

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

PANEL = "Simulate"


def hybrid(  # noqa: PLR0913
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
    seed: Annotated[
        int, typer.Option(callback=check_seed, help="Seed of draws and of the bootstrap.")
    ] = 0,
    as_json: Json = False,
    as_markdown: Markdown = False,
) -> None:
    """Cali-TS: weight of its predictor by round, gain over Beta-TS and over sampling alone.

    Example: simspec hybrid tiny-early_exit-greedy --predictor theta

    Example: simspec hybrid --search --predictor fitted
    """
    from simspec.reports.hybrid import gains, markdown
    from simspec.reports.hybrid_search import predictors
    from simspec.reports.intervals import covers, covers_text
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
        _print_choices(choices, seed, as_json, as_markdown)
        return
    served = {name: path for name, path in paths.items() if name in recordings}
    costs, notes = comparable_costs(served, cost, mixed=mixed)
    print_notes(notes)
    found = gains(recordings, costs, predictor or (), replicates, level, seed)
    if as_json:
        print(json.dumps(_data(found, level, seed) | {"covers": covers(costs.values())}))
    elif as_markdown:
        print(markdown(found))
    else:
        _print(found, level, covers_text(costs.values(), level))


def _data(found: list[Any], level: float, seed: int) -> dict[str, Any]:
    from simspec.policies.calibrated import DEFAULTS
    from simspec.reports.hybrid_search import weights

    names = ("sigma_m", "sigma_s", "theta0")
    defaults = {
        kind: dict(zip(names, constants)) | {"weight": weights(*constants[:2])}
        for kind, constants in DEFAULTS.items()
    }
    gains = [row.to_dict() for row in found]
    return {"seed": seed, "level": level, "defaults": defaults, "gains": gains}


def _search(
    recordings: Mapping[str, Any], predictor: list[str] | None, replicates: int, seed: int
) -> list[Any]:
    from simspec.reports.hybrid_search import predictors, search

    there = dict.fromkeys(head for trace in recordings.values() for head in predictors(trace))
    heads = [*(predictor or there), ""]
    return [search(recordings, head, replicates, seed) for head in heads]


def _print_choices(choices: list[Any], seed: int, as_json: bool, as_markdown: bool) -> None:
    from simspec.output.terminal import markdown_table, print_table, print_text
    from simspec.reports.hybrid import CHOICE_HEADINGS, choice_rows

    if as_json:
        print(json.dumps({"seed": seed, "choices": [choice.to_dict() for choice in choices]}))
    elif as_markdown:
        print(markdown_table(CHOICE_HEADINGS, choice_rows(choices)))
    else:
        print_table(CHOICE_HEADINGS, choice_rows(choices), names=2, optional=("reading", "n=10"))
        print_text(
            "Every second prompt of each task at c = 0.05, 0.10 and 0.15; n: weight of theta after "
            "so many rounds. chosen: the least committed within one standard error of the best."
        )


def _print(found: list[Any], level: float, covered: str) -> None:
    from simspec.output.terminal import print_table, print_text
    from simspec.reports.hybrid import GAIN_HEADINGS, WEIGHT_HEADINGS, gain_rows, weight_rows

    print_table(WEIGHT_HEADINGS, weight_rows(), title="Weight of theta after n verified rounds")
    print_table(GAIN_HEADINGS, gain_rows(found), names=4, optional=("cali_ts",))
    print_text(
        f"Speedups on prompts that nothing was chosen on; differences with {level:.0%} intervals, "
        "paired by prompt. features: what reading them costs is charged, or free. "
        f"Measured prices: {covered}"
    )
