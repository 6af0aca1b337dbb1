"""The command `simspec record`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from real.cli.options import (
    MOST_TOKENS,
    ChatTemplate,
    Device,
    DrafterNames,
    Dtype,
    Engine,
    Json,
    Models,
    RuleName,
    Seed,
    System,
    TargetPath,
    Temperature,
    TopK,
    TopP,
    Turns,
    Weights,
    parse_rule,
    parse_tree_size,
    show_progress,
)
from simspec.cli.options import LONGEST_DRAFT, MOST_BATCH, MOST_PROMPTS, at_most
from simspec.output.terminal import print_text

PANEL = "Record"


def record(  # noqa: PLR0913
    prompts: Annotated[
        list[Path], typer.Argument(help='JSON lines: {"id", "task", "text" or "turns", "source"?}.')
    ],
    out: Annotated[
        Path,
        typer.Option(
            help="The recording, .parquet; or a folder with its sequences: of several drafters, or "
            "one that exists."
        ),
    ],
    drafter: DrafterNames = None,
    rule: RuleName = "greedy",
    temperature: Temperature = 0.8,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    k: Annotated[
        int,
        typer.Option(
            "--depth",
            "-k",
            callback=at_most(LONGEST_DRAFT),
            help="Draft depth K at every position.",
        ),
    ] = 16,
    budget: Annotated[
        int, typer.Option(callback=at_most(MOST_TOKENS), help="New tokens a prompt.")
    ] = 96,
    per_task: Annotated[
        int, typer.Option(callback=at_most(MOST_PROMPTS), help="Prompts of every task.")
    ] = 20,
    longest: Annotated[
        int | None,
        typer.Option(
            callback=at_most(MOST_TOKENS),
            help="Longest prompt taken, in tokens; default: the models' context without the "
            "budget.",
        ),
    ] = None,
    chat_template: ChatTemplate = "auto",
    system: System = "",
    turns: Turns = "first",
    tree: Annotated[
        str | None,
        typer.Option(
            help="Dynamic trees too, WIDTHxLEVELS such as 4x6: for policies dynamic_tree:NODES."
        ),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(
            callback=at_most(MOST_BATCH),
            help="Sequences that the target writes at a time; 1: through the decode loop. "
            "Default: 32 on a CPU, 64 on a GPU, 1 for bfloat16 and captured passes.",
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
) -> None:
    """Record what a drafter proposes at every position of the target's own output, to depth K.

    The target writes its sequences many at a time. In float32 its tokens differ from those written
    one by one where two tokens nearly tie; `simspec run` excuses these places as it always did.

    A second call continues at the last whole shard.

    Several processes, or one for each GPU, share a recording: torchrun --nproc-per-node 4
    --no-python simspec record ...

    Prompts that do not fit are left out, which stderr and the card say.

    Example: simspec record prompts.jsonl --drafter early_exit --rule coupled --out mine.parquet

    A chat, with later turns: --models models/smollm2 --drafter prompt_lookup --turns all

    Several drafters, on sequences written once: --drafter eagle --drafter medusa --out FOLDER/
    """
    from real.jobs import ModelSettings, PromptSettings, record_drafters, record_prompts
    from real.processes import launched_processes
    from real.record import Settings

    settings = Settings(
        k, budget, parse_rule(rule, temperature, seed, top_k, top_p), (), (), parse_tree_size(tree)
    )
    names = drafter or ["model"]
    selection = PromptSettings(
        tuple(prompts), per_task, longest, seed, chat_template, system, turns
    )
    several = len(names) > 1 or out.is_dir()
    cards: dict[str, dict] = {}
    with launched_processes() as processes, show_progress(processes.first) as progress:
        own_device = processes.device(device)
        loaded = ModelSettings(models, own_device, dtype, engine, target, weights)
        job = settings, progress, batch, processes
        if several:
            cards = record_drafters(out, selection, loaded, names, *job)
        else:
            cards = {names[0]: record_prompts(out, selection, loaded, names[0], *job)}
    if not cards:  # of the first process
        return
    if as_json:
        print(json.dumps(cards if several else cards[names[0]]))
        return
    for name, card in cards.items():
        path = out / f"{name}.parquet" if several else out
        texts, rows = card["texts"], card["rows"]
        print_text(
            f"wrote {path}: {texts} sequences, {rows} rows, card {path.with_suffix('.json')}"
        )
