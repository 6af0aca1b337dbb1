"""The command `simspec measure`."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from real.commands.options import (
    DRAFTERS,
    MOST_TOKENS,
    Device,
    Dtype,
    Engine,
    Json,
    Models,
    Seed,
    TargetPath,
    Temperature,
    Threads,
    TopK,
    TopP,
    Weights,
    check_recordings,
    describe_engines,
    parse_rule,
    show_progress,
)
from simspec import CostModel
from simspec.cli.options import LONGEST_DRAFT, MOST_BATCH, MOST_REPEATS, at_most
from simspec.output.table import print_table
from simspec.output.terminal import print_text
from simspec.tree.tree import MAX_NODES

if TYPE_CHECKING:
    from real.jobs import CostRequest

PANEL = "Record"

SHOWN = 1, 2, 4, 8, 16, 32, 48
"""Lengths of verification that are printed for several drafters."""


Drafters = Annotated[
    list[str] | None,
    typer.Option(
        "--drafter", help=f"{DRAFTERS}; repeatable, then --out is a folder.", show_default="model"
    ),
]
Rules = Annotated[
    list[str] | None,
    typer.Option("--rule", help="greedy, coupled or rejection; repeatable.", show_default="greedy"),
]


def measure(
    out: Annotated[
        Path | None,
        typer.Option(
            help="The cost model, .json; a table where several batch sizes or contexts are given; "
            "a folder for several drafters."
        ),
    ] = None,
    drafter: Drafters = None,
    rule: Rules = None,
    recording: Annotated[
        list[str] | None,
        typer.Option(
            "--for",
            help="A recording, file or bundled name: its drafter, rule and depth; repeatable. "
            "Written next to it, or into the folder --out.",
        ),
    ] = None,
    temperature: Temperature = 0.8,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    k: Annotated[
        int,
        typer.Option(
            "--depth", "-k", callback=at_most(LONGEST_DRAFT), help="Longest draft to price."
        ),
    ] = 16,
    batch: Annotated[
        list[int] | None,
        typer.Option(
            callback=at_most(MOST_BATCH), help="Texts decoded together, repeatable; default 1."
        ),
    ] = None,
    context: Annotated[
        list[int] | None,
        typer.Option(
            callback=at_most(MOST_TOKENS), help="Tokens before the round, repeatable; default 128."
        ),
    ] = None,
    repeats: Annotated[
        int, typer.Option(callback=at_most(MOST_REPEATS), help="Runs of every job at least.")
    ] = 1,
    seconds: Annotated[
        float,
        typer.Option(
            help="Time limit, for each cost file, with the warm-up: runs go on until all "
            "intervals are narrow and the best draft length is settled."
        ),
    ] = 40.0,
    precision: Annotated[
        float, typer.Option(help="Half-width of every cell's 95% interval, as a share of it.")
    ] = 0.05,
    rows: Annotated[
        int,
        typer.Option(
            callback=at_most(MAX_NODES),
            help="Price trees too, of at most this number of submitted tokens; 0: chains alone.",
        ),
    ] = 0,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    threads: Threads = 0,
    engine: Engine = "eager",
    models: Models = None,
    target: TargetPath = None,
    weights: Weights = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Measure what drafting and verification cost on this device, for `simspec sweep --cost`.

    One sequence is timed in the decode loop, all draft lengths in turn, every round between two
    one-row passes: costs are ratios of passes of the same moment. For larger batches the extra time
    of bare batched passes is added. Sizes that do not fit the device are left out.

    The last lines say which draft length is best, whether the costs settle it, and which pass
    decides. Exit status 1: a wider pass is faster than a narrower one, so that the costs, which are
    written, are not fit to publish.

    Several drafters share one sitting: what belongs to the target is timed once for all. Killed,
    it continues.

    Example: simspec measure --drafter early_exit --batch 1 --batch 8 --context 128 --out costs.json

    Example: simspec measure --drafter eagle --drafter medusa --rule coupled --threads 1 --out .
    """
    check_recordings(*recording or ())
    from real.jobs import CostRequest, ModelSettings, measure_costs, measure_together, requests_for
    from real.measure import MeasureSettings
    from real.measure.estimate import faster_wider_warning

    drafters, rules = drafter or ["model"], rule or ["greedy"]
    settings = MeasureSettings(
        tuple(batch or [1]),
        tuple(context or [128]),
        repeats=repeats,
        seed=seed,
        tree_nodes=rows,
        seconds=seconds,
        precision=precision,
    )
    models_ = ModelSettings(models, device, dtype, engine, target, weights)
    parsed = [parse_rule(name, temperature, seed, top_k, top_p) for name in rules]
    if recording:
        if drafter or rule:
            raise ValueError("--for names recordings, which have a drafter and a rule: drop those")
        requests = requests_for(recording, out)
    elif out is None:
        raise ValueError("--out is missing: name the cost file, or recordings by --for")
    else:
        requests = [
            CostRequest(out / f"{name}-{rule.name}.cost.json", name, rule, k)
            for name in drafters
            for rule in parsed
        ]
    with show_progress() as progress:
        if recording or len(requests) > 1:
            settings = replace(settings, seconds=seconds * len(requests))
            costs = measure_together(requests, models_, settings, progress)
        else:
            assert out is not None  # checked above
            table = measure_costs(out, models_, drafters[0], parsed[0], k, settings, progress)
    if recording or len(requests) > 1:
        files = [str(request.out) for request in requests]
        if as_json:
            print(json.dumps({file: cost.to_dict() for file, cost in zip(files, costs)}))
        else:
            _print_together(costs, files)
            for request, cost in zip(requests, costs):
                _print_best(request, cost)
    else:
        costs = [cell for row in table.cells for cell in row if cell is not None]
        if as_json:
            print(json.dumps(table.simplest().to_dict()))
        else:
            print_text("\n".join(table.describe()))
            for warning in table.warnings:
                print_text(f"warning: {warning}")
            _print_best(requests[0], costs[0])
            engines = table.origin.engines if table.origin else {}
            print_text(f"wrote {out}, measured on {table.device}; {describe_engines(engines)}")
    if any(faster_wider_warning(cost) for cost in costs):
        raise typer.Exit(1)


def _print_best(request: "CostRequest", cost: CostModel) -> None:
    from real.jobs.measure import best_lengths

    if cost.precision is None:  # a batch's costs have no intervals
        return
    for best in best_lengths(request, cost):
        print_text(f"{cost.name}, {best.describe()}")
    precision = cost.precision
    if precision.blocks:
        print_text(f"{precision.blocks} timing blocks, {precision.disturbed} left out as disturbed")


def _print_together(costs, files: list[str]) -> None:
    lengths = [j for j in SHOWN if j <= max(cost.nodes for cost in costs)]
    rows = []
    for cost in costs:
        verify = (
            f"{cost.verify[j] / cost.baseline:.3f}" if j <= cost.nodes else "" for j in lengths
        )
        c = f"{cost.draft[1] / cost.baseline:.3f}"
        after = f"{cost.precision.after_draft / cost.baseline:.3f}"
        rows.append((cost.name, f"{1e3 * cost.baseline:.3f}", *verify, c, after))
    headings = ("cost", "plain ms", *(f"verify {j}" for j in lengths), "c", "after draft")
    print_table(headings, rows, title=f"in plain steps, measured on {costs[0].device}")
    for warning in dict.fromkeys(w for cost in costs for w in cost.precision.warnings):
        print_text(f"warning: {warning}")
    print_text(f"wrote {', '.join(files)}")
