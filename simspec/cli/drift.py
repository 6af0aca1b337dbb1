"""simspec drift: policies on a stream whose task switches."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from simspec.cli.options import Cost, Json, MixedCosts, Policies, Traces, check_seed, print_notes

if TYPE_CHECKING:
    from simspec.reports.drift import Drift

PANEL = "Simulate"


def drift(  # noqa: PLR0913
    traces: Traces = None,
    policy: Policies = None,
    cost: Cost = None,
    mixed: MixedCosts = False,
    orders: Annotated[int, typer.Option(help="Orders of tasks and prompts.")] = 8,
    seed: Annotated[
        int, typer.Option(callback=check_seed, help="Seed of orders, draws and resamples.")
    ] = 0,
    as_json: Json = False,
) -> None:
    """Show how policies react to task switches and cold starts, and their spells without drafts.

    Example: simspec drift tiny-model-greedy --policy cost_ts --policy ema_tiers
    """
    from simspec.cli.selection import servable_groups
    from simspec.replay.sweep import cost_model
    from simspec.reports.drift import POLICIES
    from simspec.reports.drift import drift as drift_of
    from simspec.reports.intervals import covers, covers_text
    from simspec.trace.recordings import comparable_costs, locate

    paths = locate(traces)
    costs, notes = comparable_costs(paths, cost, mixed=mixed)
    print_notes(notes)
    rows = [
        row
        for served, group in servable_groups(paths, policy or POLICIES, costs, quiet=not policy)
        for name, trace in group.items()
        for row in drift_of(name, trace, served, cost_model(costs[name], trace), orders, seed)
    ]
    if as_json:
        about = {"orders": orders, "seed": seed, "covers": covers(costs.values())}
        print(json.dumps(about | {"rows": [row.to_dict() for row in rows]}))
        return
    _print(rows, covers_text(costs.values()))


def _print(rows: "list[Drift]", covered: str) -> None:
    from simspec.output.terminal import print_table, print_text
    from simspec.reports.drift import STARTS, WITHIN

    headings = (
        "recording", "policy", "task by task", "in turn", "reset", "by task - in turn [95%]",
        "settled", "from start", "idle", "longest idle",
    )  # fmt: skip
    cells = [
        (
            row.recording, row.policy,
            *(f"{value.value:.3f}" for value in (row.blocks, row.mixed, row.reset)),
            f"{row.switching.value:+.3f} [{row.switching.low:+.3f}, {row.switching.high:+.3f}]",
            _rounds(row.settled), _rounds(row.recovered), f"{row.idle:.1%}", str(row.longest_idle),
        )
        for row in rows
    ]  # fmt: skip
    print_table(headings, cells, names=2, optional=("from start", "longest idle", "reset"))
    print_text(
        f"settled: rounds since a switch from which the time is within {WITHIN:.0%} of the task's "
        "best fixed length; from start: since a cold start; -: never. idle: rounds without a draft."
    )
    print_text(covered)
    later = [*(f"{a}-{b - 1}" for a, b in zip(STARTS, STARTS[1:])), f"{STARTS[-1]}-"]
    regret = [
        (row.recording, row.policy, since, *("-" if r is None else f"{r:+.1%}" for r in bins))
        for row in rows
        for since, bins in (("switch", row.after_switch), ("text", row.after_text))
    ]
    print_table(
        ("recording", "policy", "since", *later), regret, names=3,
        title="Time over the task's best fixed length, by rounds since a switch, or since a text "
        "of the same task began",
    )  # fmt: skip


def _rounds(count: int | None) -> str:
    return "-" if count is None else str(count)
