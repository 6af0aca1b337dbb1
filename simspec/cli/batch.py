"""simspec batch: draft lengths and policies by batch size, and where drafting stops paying."""

from dataclasses import replace
from typing import Annotated, Any

import typer

from simspec.cli.options import (
    MOST_BATCH,
    Cost,
    Json,
    Level,
    Policies,
    Replicates,
    Seed,
    Traces,
    at_most,
    print_notes,
    print_result,
)  # fmt: skip

PANEL = "Simulate"


def batch(
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
    captured: Annotated[
        int,
        typer.Option(
            callback=at_most(MOST_BATCH),
            help="Pad passes to vLLM's captured sizes up to this many rows; 0: no padding.",
        ),
    ] = 0,
    draft_row: Annotated[
        float | None,
        typer.Option(help="Seconds of each further row of a draft step; default: the cost's."),
    ] = None,
    replicates: Replicates = 4,
    seed: Seed = 0,
    level: Level = 0.95,
    as_json: Json = False,
) -> None:
    """Find the best draft length by batch size and context, and where drafting stops paying.

    Sequences run in lock step, one round of each a step, each with its own policy state. A step's
    verification is priced by all its tokens. Costs of one sequence are extrapolated to batches; a
    cost table prices the sizes that it was measured at. Policies of a whole batch (simspec policies
    --group batches) choose which drafted tokens are verified; `shared:goodput` gives all requests
    one state and one length.

    Example: simspec batch tiny-eagle-greedy --policy adaptive_verification --batch 1 --batch 8

    Contexts need a cost with seconds for cached tokens (kv_verify), or a table.
    """
    from simspec.cli.selection import servable_groups
    from simspec.cost.batch import with_draft_row
    from simspec.policies import parse_batch
    from simspec.replay.batch_replay import supported_batch_policies
    from simspec.replay.lock_step import BatchRules
    from simspec.replay.sweep import cost_model
    from simspec.reports.batches import (
        SHARED,
        BatchPlan,
        batch_notes,
        batch_rows,
        batch_table,
        conventions,
        crossings,
        speed_table,
    )
    from simspec.trace.recordings import locate, whole_cost
    from simspec.trace.trace import load_trace

    paths = locate(traces)
    groups: list[Any] = [((), {name: load_trace(path) for name, path in paths.items()})]
    of_batches = [made for text in policy or () if (made := parse_batch(text)) is not None]
    shared = [text for text in policy or () if text.startswith(SHARED)]
    of_requests = [
        text for text in policy or () if parse_batch(text) is None and text not in shared
    ]
    if of_requests:
        groups = list(servable_groups(paths, of_requests, dict.fromkeys(paths, 0.1)))
    rules, found = BatchRules(ends, padded, captured), []
    for served, group in groups:
        for name, trace in group.items():
            priced = whole_cost(paths[name], cost)
            model = cost_model(priced, trace) if isinstance(priced, float) else priced
            model = model if draft_row is None else with_draft_row(model, draft_row)
            whole, notes = supported_batch_policies(trace, model, of_batches)
            if len(paths) == 1 and notes:
                raise ValueError(notes[0])
            print_notes(f"{name}: {note}" for note in notes)
            policies = [*served, *shared, *whole]
            plan = BatchPlan(size or (), context or (), policies, rules, replicates, seed, level)
            rows = batch_rows(trace, model, plan)
            found.append(
                (name, rows, crossings(trace, model, plan, rows), batch_notes(model, plan))
            )
    keys = ("recording", "rows", "crossings", "notes")
    tables = [batch_table(*of) for of in found]
    tables[-1] = replace(tables[-1], notes=(*tables[-1].notes, *conventions(rules)))
    tables += [speed_table(name, rows) for name, rows, *_ in found if rows[0].verified]
    about = {
        "ends": ends,
        "padded": padded,
        "captured": captured,
        "seed": seed,
        "level": level,
        "covers": ["prompts"],
    }
    data = about | {"recordings": [dict(zip(keys, of)) for of in found]}
    print_result(data, tables, as_json)
