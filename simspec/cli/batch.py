"""simspec batch: draft lengths and policies by batch size, and where drafting stops paying."""

from dataclasses import replace
from typing import Annotated, Any

import typer

from simspec.cli.options import Cost, Json, Level, Policies, Replicates, Seed, Traces, print_result

PANEL = "Simulate"


def batch(  # noqa: PLR0913
    traces: Traces = None,
    cost: Cost = None,
    size: Annotated[
        list[int] | None,
        typer.Option(
            "--batch", "-b", help="Sequences decoded together, repeatable; default: 1 to 128."
        ),
    ] = None,
    context: Annotated[
        list[int] | None,
        typer.Option(
            help="Cached tokens of every sequence, repeatable; default: its prompt and output."
        ),
    ] = None,
    policy: Policies = None,
    ends: Annotated[
        str,
        typer.Option(
            help="refill: a slot takes the next sequence at once; shrink: batches wait for the "
            "last."
        ),
    ] = "refill",
    padded: Annotated[
        bool, typer.Option("--padded", help="Every sequence pays for a step's longest draft.")
    ] = False,
    draft_row: Annotated[
        float | None,
        typer.Option(help="Seconds of each further row of a draft step; default: the cost's."),
    ] = None,
    replicates: Replicates = 4,
    seed: Seed = 0,
    level: Level = 0.95,
    published: Annotated[
        bool, typer.Option("--published", help="Compare lock steps with published batches instead.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Find the best draft length by batch size and context, and where drafting stops paying.

    Sequences run in lock step, one round of each a step, each with its own policy state. A step's
    verification is priced by all its tokens. Costs of one sequence are extrapolated to batches; a
    cost table prices the sizes that it was measured at.

    Example: simspec batch tiny-eagle-greedy --policy confidence:0.5 --batch 1 --batch 8

    Contexts need a cost with terms for cached tokens (simspec cost --kv-verify), or a table.
    """
    from simspec.cli.selection import servable_groups
    from simspec.cost.batch import with_draft_row
    from simspec.replay.lock_step import BatchRules
    from simspec.replay.sweep import cost_model
    from simspec.reports.batches import (
        BatchPlan,
        batch_notes,
        batch_rows,
        batch_table,
        conventions,
        crossings,
    )
    from simspec.trace.recordings import locate, whole_cost
    from simspec.trace.trace import load_trace
    from simspec.validation.published_costs import published_batches, published_batches_table

    if published:
        if traces:
            raise ValueError(f"--published reads no recording, {traces[0]} was given: drop one")
        speeds = published_batches(seed)
        table = published_batches_table(speeds)
        print_result({"seed": seed, "rows": speeds}, [table], as_json)
        return
    paths = locate(traces)
    groups: list[Any] = [((), {name: load_trace(path) for name, path in paths.items()})]
    if policy:
        groups = list(servable_groups(paths, policy, dict.fromkeys(paths, 0.1)))
    rules, found = BatchRules(ends, padded), []
    for served, group in groups:
        plan = BatchPlan(size or (), context or (), served, rules, replicates, seed, level)
        for name, trace in group.items():
            priced = whole_cost(paths[name], cost)
            model = cost_model(priced, trace) if isinstance(priced, float) else priced
            model = model if draft_row is None else with_draft_row(model, draft_row)
            rows = batch_rows(trace, model, plan)
            found.append(
                (name, rows, crossings(trace, model, plan, rows), batch_notes(model, plan))
            )
    keys = ("recording", "rows", "crossings", "notes")
    tables = [batch_table(*of) for of in found]
    tables[-1] = replace(tables[-1], notes=(*tables[-1].notes, *conventions(rules)))
    about = {"ends": ends, "padded": padded, "seed": seed, "level": level, "covers": ["prompts"]}
    data = about | {"recordings": [dict(zip(keys, of)) for of in found]}
    print_result(data, tables, as_json)
