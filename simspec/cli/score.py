"""simspec score: the share of the gap to the oracle that policies gain."""

from collections.abc import Mapping
from typing import Any

from simspec.cli.options import (
    Cost,
    Json,
    Markdown,
    MixedCosts,
    Policies,
    Regimes,
    Replicates,
    Seed,
    Traces,
    print_notes,
    print_result,
)

PANEL = "Simulate"


def score(
    traces: Traces = None,
    policy: Policies = None,
    cost: Cost = None,
    mixed: MixedCosts = False,
    replicates: Replicates = 4,
    seed: Seed = 0,
    regimes: Regimes = False,
    as_json: Json = False,
    as_markdown: Markdown = False,
) -> None:
    """Score policies by their share of the gap from the best fixed K in hindsight to the oracle.

    Intervals are at 95%.

    Example: simspec score traces/prose.parquet --policy beta_ts --policy confidence:0.5 --markdown
    """
    from simspec.cli.selection import servable_groups
    from simspec.evaluate.evaluation import covers, covers_text
    from simspec.reports.oracle_gap import score as score_policies
    from simspec.reports.oracle_gap import score_tables, share_table
    from simspec.reports.regimes import at_regimes, regime_tables, score_cells
    from simspec.trace.recordings import comparable_costs, locate

    paths = locate(traces)
    costs, notes = comparable_costs(paths, cost, mixed=mixed)
    print_notes(notes)
    groups: list[tuple[Any, Any]] = [(None, paths)]
    if policy:
        groups = list(servable_groups(paths, policy, costs))

    def scored(chosen: Mapping[str, Any], priced: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [
            of_recording
            for served, group in groups
            for of_recording in score_policies(
                {name: group[name] for name in chosen if name in group},
                served, priced, replicates=replicates, seed=seed,
            )
        ]  # fmt: skip

    if regimes:
        results = at_regimes(paths, costs, scored)
        cells = {label: score_cells(of) for label, of in results.items()}
        print_result({"regimes": results}, regime_tables("policy", cells), as_json, as_markdown)
        return
    scores = scored(paths, costs)
    about = {
        "seed": seed,
        "replicates": replicates,
        "level": 0.95,
        "covers": covers(costs.values()),
    }
    covered = covers_text(costs.values())
    shown = [share_table(scores)] if as_markdown else score_tables(scores, covered)
    print_result(about | {"recordings": scores}, shown, as_json, as_markdown)
