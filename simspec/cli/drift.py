"""simspec drift: policies on a stream whose task switches."""

from typing import Annotated

import typer

from simspec.cli.options import (
    Cost,
    Json,
    MixedCosts,
    Policies,
    Seed,
    Traces,
    print_notes,
    print_result,
)

PANEL = "Simulate"


def drift(
    traces: Traces = None,
    policy: Policies = None,
    cost: Cost = None,
    mixed: MixedCosts = False,
    orders: Annotated[int, typer.Option(help="Orders of tasks and prompts.")] = 8,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Show how policies react to task switches and cold starts, and their spells without drafts.

    Example: simspec drift tiny-model-greedy --policy cost_ts --policy ema_tiers
    """
    from simspec.cli.selection import servable_groups
    from simspec.evaluate.evaluation import covers, covers_text
    from simspec.replay.sweep import cost_model
    from simspec.reports.drift import DEFAULT_POLICIES, drift_tables
    from simspec.reports.drift import drift as drift_of
    from simspec.trace.recordings import comparable_costs, locate

    paths = locate(traces)
    costs, notes = comparable_costs(paths, cost, mixed=mixed)
    print_notes(notes)
    rows = [
        row
        for served, group in servable_groups(
            paths, policy or DEFAULT_POLICIES, costs, quiet=not policy
        )
        for name, trace in group.items()
        for row in drift_of(name, trace, served, cost_model(costs[name], trace), orders, seed)
    ]
    about = {"orders": orders, "seed": seed, "covers": covers(costs.values())}
    print_result(about | {"rows": rows}, drift_tables(rows, covers_text(costs.values())), as_json)
