"""simspec batch: draft lengths and policies by batch size, and where drafting stops paying."""

import json
from typing import Annotated, Any

import typer

from simspec.cli.options import Cost, Json, Level, Policies, Replicates, Traces, check_seed

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
    seed: Annotated[
        int, typer.Option(callback=check_seed, help="Seed of all draws and of the bootstrap.")
    ] = 0,
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
    from simspec.reports.batches import BatchPlan, batch_notes, batch_rows, crossings
    from simspec.trace.recordings import locate, whole_cost
    from simspec.trace.trace import load_trace

    if published:
        if traces:
            raise ValueError(f"--published reads no recording, {traces[0]} was given: drop one")
        _published(seed, as_json)
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
            notes = batch_notes(model, plan)
            found.append((name, rows, crossings(trace, model, plan, rows), notes))
    if as_json:
        options: dict[str, Any] = {"ends": ends, "padded": padded, "seed": seed, "level": level}
        options["covers"] = ["prompts"]
        print(json.dumps(options | {"recordings": [_data(*item) for item in found]}))
        return
    for item in found:
        _print(*item)
    _print_conventions(ends, padded)


def _data(name: str, rows: list[Any], crossed: list[Any], notes: list[str]) -> dict[str, Any]:
    from simspec.reports.intervals import interval_data

    points = ("batch", "K", "speedup")
    return {
        "recording": name,
        "rows": [
            {
                "batch": row.batch,
                "context": row.context,
                "best": row.best,
                "drafting": row.drafting,
                "plain_tokens_per_second": row.plain_tokens_per_second,
                "speedup": {k: interval_data(v) for k, v in row.speedup.items()},
            }
            for row in rows
        ],
        "crossings": [
            {"context": crossing.context}
            | {
                key: None if point is None else dict(zip(points, point))
                for key, point in (("last", crossing.last), ("first", crossing.first))
            }
            for crossing in crossed
        ],
        "notes": notes,
    }


def _print(name: str, rows: list[Any], crossed: list[Any], notes: list[str]) -> None:
    from simspec.output.terminal import print_table, print_text
    from simspec.reports.intervals import interval_text

    policies = [policy for policy in rows[0].speedup if not policy.startswith("fixed:")]
    cells = [
        (
            row.batch,
            _context(row.context),
            row.best,
            f"fixed:{row.drafting}",
            interval_text(row.fixed(row.drafting)),
            *(interval_text(row.speedup[policy]) for policy in policies),
        )
        for row in rows
    ]
    headings = ("batch", "context", "best K", "best draft", "its speedup", *policies)
    print_table(headings, cells, names=2, title=name)
    for crossing in crossed:
        print_text(_crossing(crossing))
    for note in notes:
        print_text(note)


def _context(context: float | None) -> str:
    return "own" if context is None else f"{context:g}"


def _crossing(crossing: Any) -> str:
    where = "" if crossing.context is None else f" at context {crossing.context:g}"
    if crossing.last is None:
        return f"drafting pays at none of these batch sizes{where}"
    batch, K, speedup = crossing.last
    if crossing.first is None:
        return (
            f"drafting pays up to batch {batch}, the largest here (fixed:{K}, {speedup:.2f}){where}"
        )
    lost, worse, less = crossing.first
    return (
        f"drafting pays up to batch {batch} (fixed:{K}, {speedup:.3f}), and stops paying at "
        f"{lost} (fixed:{worse}, {less:.3f}){where}"
    )


def _print_conventions(ends: str, padded: bool) -> None:
    from simspec.numerics.stats import MIN_PROMPTS
    from simspec.output.terminal import print_text

    full = "the batch is always full" if ends == "refill" else "a batch waits for its last text"
    rows = "padded to the longest draft" if padded else "of each sequence's own draft"
    print_text(f"Ends: {ends}, {full}. A step verifies the tokens {rows}.")
    print_text(
        "Speedups over plain decoding of the same batch; intervals over prompts, none for fewer "
        f"than {MIN_PROMPTS}."
    )


def _published(seed: int, as_json: bool) -> None:
    from simspec.output.terminal import print_table, print_text
    from simspec.validation.published_costs import published_batches

    rows = published_batches(seed)
    if as_json:
        print(json.dumps({"seed": seed, "rows": rows}))
        return
    print_table(
        ("table", "task", "batch", "K", "costs from", "measured", "lock step", "same side of 1"),
        [
            (
                *(row[key] or "-" for key in ("table", "task", "batch", "K", "cost")),
                f"{row['measured']:.2f}",
                f"{row['predicted']:.2f}",
                "yes" if row["agrees"] else "NO",
            )
            for row in rows
        ],
        names=5,
    )
    for cost in dict.fromkeys(row["cost"] for row in rows):
        agrees = [row["agrees"] for row in rows if row["cost"] == cost]
        print_text(f"costs from {cost}: {sum(agrees)} of {len(agrees)} on the same side of 1")
    print_text(
        "Speedups of published batches, and of i.i.d. recordings of the same accepted length. "
        "SpecDecode-Bench: its costs of an H100; the batches ran on other hardware."
    )
