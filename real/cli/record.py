"""The command `simspec record`."""

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
    read_tree_size,
    rule_of_options,
)
from real.cli.progress import show_progress


def record(
    prompts: Annotated[
        list[Path], typer.Argument(help='JSON lines: {"id", "task", "text" or "turns", "source"?}.')
    ],
    out: Annotated[Path, typer.Option(help="The recording, .parquet.")],
    drafter: DrafterName = "model",
    rule: RuleName = "greedy",
    temperature: Temperature = 0.8,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    k: Annotated[int, typer.Option("--depth", "-k", help="Draft depth K at every position.")] = 16,
    budget: Annotated[int, typer.Option(help="New tokens a prompt.")] = 96,
    per_task: Annotated[int, typer.Option(help="Prompts of every task.")] = 20,
    longest: Annotated[int, typer.Option(help="Longest prompt taken, in tokens.")] = 400,
    tree: Annotated[
        str | None,
        typer.Option(
            help="Dynamic trees too, WIDTHxLEVELS such as 4x6: for policies dynamic_tree:NODES."
        ),
    ] = None,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    engine: Engine = "eager",
    models: Models = None,
    target: TargetPath = None,
    weights: Weights = None,
    seed: Seed = 0,
    as_json: Json = False,
):
    """Record what a drafter proposes from every position of the target's text; killed, it continues at its last shard.

    Example: simspec record prompts.jsonl --drafter early_exit --rule coupled --out traces/mine.parquet
    """
    from real.decode.engine import make_passes
    from real.decode.features import drafter_features
    from real.draft import check_grows
    from real.jobs import record_to
    from real.prompts import draw, read_prompts
    from real.record.recorder import Settings
    from simspec.files import check_output

    if out.suffix != ".parquet":
        raise ValueError(
            f"{out} is no name for a recording, expected one that ends in .parquet; its card gets .json"
        )
    for path in (out, out.with_suffix(".json")):
        check_output(path, *prompts)
    made_by = rule_of_options(rule, temperature, seed, top_k, top_p)
    grown = read_tree_size(tree)
    Settings(k, budget, made_by, (), (), grown)  # refused before the models are read
    if per_task < 1:
        raise ValueError(f"{per_task} prompts of every task asked for, expected at least 1")
    passes = make_passes(engine, k + 1, longest + budget)
    pair = load_models(models, drafter, device, dtype, target, weights, passes)
    chosen = draw(
        [p for path in prompts for p in read_prompts(path, pair.tokenizer, longest)], per_task, seed
    )
    if grown:
        check_grows(pair.drafter, grown[1])
    settings = Settings(
        k,
        budget,
        made_by,
        pair.end_tokens,
        () if made_by.sampled else drafter_features(pair.drafter),
        grown,
    )
    with show_progress() as progress:
        made = record_to(out, pair, chosen, settings, progress)
    print(
        json.dumps(made)
        if as_json
        else f"wrote {out}: {made['texts']} texts, {made['rows']} rows, card {out.with_suffix('.json')}"
    )
