"""The command `simspec measure`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from real.cli.engines import describe_engines
from real.cli.options import (
    Device,
    DrafterName,
    Dtype,
    Engine,
    Json,
    Models,
    RuleName,
    Seed,
    TargetPath,
    Temperature,
    TopK,
    TopP,
    Weights,
    parse_rule,
)
from real.cli.progress import show_progress


def measure(  # noqa: PLR0913
    out: Annotated[
        Path,
        typer.Option(
            help="The cost model, .json; a table where several batch sizes or contexts are given."
        ),
    ],
    drafter: DrafterName = "model",
    rule: RuleName = "greedy",
    temperature: Temperature = 0.8,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    k: Annotated[int, typer.Option("--depth", "-k", help="Longest draft to price.")] = 16,
    batch: Annotated[
        list[int] | None, typer.Option(help="Texts decoded together, repeatable; default 1.")
    ] = None,
    context: Annotated[
        list[int] | None, typer.Option(help="Tokens before the round, repeatable; default 128.")
    ] = None,
    repeats: Annotated[int, typer.Option(help="Runs of every job at least.")] = 1,
    seconds: Annotated[
        float,
        typer.Option(help="Time limit: runs go on until every interval is within --precision."),
    ] = 45.0,
    precision: Annotated[
        float, typer.Option(help="Half-width of every median's 95% interval, as a share of it.")
    ] = 0.02,
    rows: Annotated[
        int,
        typer.Option(help="Price trees too, of up to so many submitted tokens; 0: chains alone."),
    ] = 0,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    engine: Engine = "eager",
    models: Models = None,
    target: TargetPath = None,
    weights: Weights = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Measure what drafting and verification cost on this device, for `simspec sweep --cost`.

    One sequence is timed in the decode loop, all draft lengths in turn; for larger batches the
    extra time of bare batched passes is added. Sizes that do not fit the device are left out.
    Warnings name cells that stay uncertain, drift, and a busy machine.

    Example: simspec measure --drafter early_exit --batch 1 --batch 8 --context 128 --out costs.json
    """
    from real.jobs import ModelSettings, measure_costs
    from real.measure import MeasureSettings

    settings = MeasureSettings(
        tuple(batch or [1]),
        tuple(context or [128]),
        repeats=repeats,
        seed=seed,
        tree_nodes=rows,
        seconds=seconds,
        precision=precision,
    )
    with show_progress() as progress:
        table = measure_costs(
            out,
            ModelSettings(models, device, dtype, engine, target, weights),
            drafter,
            parse_rule(rule, temperature, seed, top_k, top_p),
            k,
            settings,
            progress,
        )
    if as_json:
        print(json.dumps(table.simplest().to_dict()))
    else:
        print("\n".join(table.describe()))
        for warning in table.warnings:
            print(f"warning: {warning}")
        engines = table.origin.engines if table.origin else {}
        print(f"wrote {out}, measured on {table.device}; {describe_engines(engines)}")
