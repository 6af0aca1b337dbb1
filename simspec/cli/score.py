"""simspec score: the share of the gap to the oracle that policies gain."""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from simspec.cli.options import (
    Cost,
    Json,
    Markdown,
    MixedCosts,
    Policies,
    Regimes,
    Replicates,
    Traces,
    check_seed,
    print_notes,
)
from simspec.cli.regimes import print_regimes

PANEL = "Simulate"


def score(  # noqa: PLR0913
    traces: Traces = None,
    policy: Policies = None,
    cost: Cost = None,
    mixed: MixedCosts = False,
    replicates: Replicates = 4,
    seed: Annotated[
        int,
        typer.Option(callback=check_seed, help="Seed of the first replicate and of the bootstrap."),
    ] = 0,
    regimes: Regimes = False,
    as_json: Json = False,
    as_markdown: Markdown = False,
) -> None:
    """Score policies by their share of the gap from the best fixed K in hindsight to the oracle.

    Intervals are at 95%.

    Example: simspec score traces/prose.parquet --policy beta_ts --policy confidence:0.5 --markdown
    """
    from simspec.cli.selection import servable_groups
    from simspec.reports.intervals import covers, covers_text
    from simspec.reports.oracle_gap import markdown
    from simspec.reports.oracle_gap import score as score_policies
    from simspec.reports.regimes import at_regimes, score_cells
    from simspec.trace.recordings import comparable_costs, locate

    paths = locate(traces)
    costs, notes = comparable_costs(paths, cost, mixed=mixed)
    print_notes(notes)
    groups: list[tuple[Any, Any]] = [(None, paths)]
    if policy:
        groups = list(servable_groups(paths, policy, costs))

    def scored(names: Sequence[str], priced: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [
            of_recording
            for served, group in groups
            for of_recording in score_policies(
                {name: group[name] for name in names if name in group},
                served, priced, replicates=replicates, seed=seed,
            )
        ]  # fmt: skip

    if regimes:
        results = at_regimes(paths, costs, scored)
        print_regimes("policy", results, score_cells, list if as_json else None, as_markdown)
        return
    scores = scored(list(paths), costs)
    if as_json:
        report = {"seed": seed, "replicates": replicates, "level": 0.95}
        print(json.dumps(report | {"covers": covers(costs.values()), "recordings": scores}))
    elif as_markdown:
        print(markdown(scores))
    else:
        _print(scores, covers_text(costs.values()))


def _print(scores: list[dict[str, Any]], covered: str) -> None:
    from simspec.output.terminal import print_table, print_text
    from simspec.reports.oracle_gap import share_cell

    headings = ("policy", "speedup", "time over best fixed", "time over oracle")
    for of_recording in scores:
        fixed = f"best fixed K {of_recording['best_fixed']} {of_recording['speedup_fixed']:.3f}"
        source = f"{of_recording['prompts']} prompts, cost {of_recording['cost']}"
        print_table(
            (*headings, "share of the gap [95%]"),
            [
                (
                    row["policy"],
                    f"{row['speedup']:.3f}",
                    *(f"{row[name]:+.1%}" for name in ("regret_fixed", "regret_oracle")),
                    share_cell(row),
                )
                for row in of_recording["policies"]
            ],
            title=f"{of_recording['recording']}: {fixed}, "
            f"signals in hindsight {of_recording['speedup_signals']['hindsight']:.3f}, "
            f"oracle {of_recording['speedup_oracle']:.3f} ({source})",
            optional=headings[3:],
        )
    print_text(
        f"{covered} The best fixed K is held at its choice on all prompts. "
        "Signals in hindsight: stopping rules on the recorded signals, fitted to the recording."
    )
