"""The command `simspec measure`."""

import json
from pathlib import Path
from typing import Annotated

import typer

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
    load_models,
    rule_of_options,
)
from real.cli.progress import show_progress
from real.progress import relabel


def measure(
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
    repeats: Annotated[int, typer.Option(help="Runs at every length; medians are kept.")] = 4,
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
):
    """Measure what drafting and verifying cost on this machine, as a cost model for `simspec sweep --cost`.

    One text is timed in the decode loop itself; a larger batch adds what bare batched passes take longer. A size that does not fit
    the card is left out. Example: simspec measure --drafter early_exit --batch 1 --batch 8 --context 128 --context 512 --out costs.json
    """
    from real.decode.engine import make_passes
    from real.measure import MeasureSettings, max_new_tokens, measure_table
    from simspec.files import check_output

    check_output(out)
    if not 1 <= k <= 255 or repeats < 1:
        raise ValueError(
            f"depth is {k} and repeats {repeats}; expected 1 <= depth <= 255 and at least one repeat"
        )
    made_by = rule_of_options(rule, temperature, seed, top_k, top_p)
    settings = MeasureSettings(
        tuple(batch or [1]), tuple(context or [128]), repeats=repeats, seed=seed, tree_nodes=rows
    )
    passes = make_passes(engine, max(k, rows) + 1, settings.context[-1] + max_new_tokens(k))
    pair = load_models(models, drafter, device, dtype, target, weights, passes)
    with show_progress() as progress:
        said = relabel(progress, f"measuring {out.stem}")
        table = measure_table(pair.target, pair.drafter, made_by, k, settings, said)
    made = table.simplest()
    made.to_json(out)
    lines = *table.describe(), f"wrote {out}, measured on {table.device}"
    print(json.dumps(made.to_dict()) if as_json else "\n".join(lines))
