"""The command `simspec record`."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from real.commands.options import (
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
from simspec.output.files import check_output
from simspec.output.terminal import print_text

if TYPE_CHECKING:
    from simspec.engines.text import WrittenText
    from simspec.trace.trace import Trace

PANEL = "Record"


def record(
    prompts: Annotated[
        list[Path] | None,
        typer.Argument(help='JSON lines: {"id", "task", "text" or "turns", "source"?}.'),
    ] = None,
    *,
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
    from_text: Annotated[
        Path | None,
        typer.Option(
            help='JSON lines {"prompt", "output"} that an engine wrote: token ids, or strings with '
            "--tokenizer. No target runs; --drafter is then an n-gram rule such as vllm:1,3, "
            "suffix, or model:FOLDER, a draft model. The file is written at the end, nothing of it "
            "before."
        ),
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="Folder of the tokenizer of --from-text's strings.")
    ] = None,
    end_token: Annotated[
        list[int] | None, typer.Option(help="Token that ends a text of --from-text, repeatable.")
    ] = None,
    sampled: Annotated[
        bool, typer.Option(help="Texts of --from-text were sampled at the temperature they state.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Record what a drafter proposes at every position of the target's own output, to depth K.

    The target writes its sequences many at a time. In float32 its tokens differ from those written
    one by one where two tokens nearly tie; `simspec run` tolerates these near-ties.

    A second call continues at the last whole shard.

    Several processes, or one for each GPU, share a recording: torchrun --nproc-per-node 4
    --no-python simspec record ...

    Prompts that do not fit are left out, which stderr and the card say.

    Example: simspec record prompts.jsonl --drafter early_exit --rule coupled --out mine.parquet

    A chat, with later turns: --models models/smollm2 --drafter prompt_lookup --turns all

    Several drafters, on sequences written once: --drafter eagle --drafter medusa --out FOLDER/

    Along texts that an engine wrote: simspec record --from-text log.jsonl --drafter vllm:1,3
    --end-token 2 --out log.parquet

    A draft model along them: simspec record --from-text log.jsonl --drafter model:models/small
    --end-token 2 --out log.parquet
    """
    if from_text is not None:
        if prompts:
            raise ValueError("prompts and --from-text are both given: give one of them")
        along = text_recorder(drafter or ["prompt_lookup"], device, dtype)
        check_output(out, from_text)
        texts = written_texts(from_text, tokenizer)
        trace = along(texts, k, end_token or [], sampled, f"text {from_text.name}")
        trace.save(out)
        if as_json:
            print(json.dumps({"path": str(out), "texts": trace.sequences, "rows": trace.rows}))
        else:
            print_text(f"wrote {out}: {trace.sequences} texts, {trace.rows} rows")
        return
    if not prompts:
        raise ValueError("no prompts are given: name a file of them, or --from-text FILE")
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


def text_recorder(drafters: Sequence[str], device: str, dtype: str) -> Callable[..., "Trace"]:
    """(texts, K, end tokens, sampled, source) -> recording, of one n-gram rule or draft model."""
    if len(drafters) > 1:
        raise ValueError(f"--from-text records one drafter, {len(drafters)} are given")
    name, _, folder = drafters[0].partition(":")
    if name != "model":
        from simspec.engines.ngram import ngram_rule
        from simspec.engines.suffix import SuffixRule
        from simspec.engines.text import record_texts

        if drafters[0] == "suffix":
            return lambda texts, k, *settings: record_texts(texts, SuffixRule(most=k), k, *settings)
        rule = ngram_rule(drafters[0])
        return lambda texts, *settings: record_texts(texts, rule, *settings)
    if not folder:
        raise ValueError(
            f"drafter {drafters[0]!r} names no model, expected model:FOLDER, a transformers "
            "checkpoint"
        )

    def record_model(texts, k, end_tokens, sampled, source) -> "Trace":
        from real.drafters.model import ModelDrafter
        from real.model_settings import ModelSettings, check_models, dtype_of
        from real.record.texts import record_texts_by_model

        check_models(ModelSettings(device=device, dtype=dtype))
        model = ModelDrafter.load_alone(Path(folder), dtype_of(dtype), device)
        with show_progress() as progress:
            known = k, end_tokens, sampled, source
            return record_texts_by_model(texts, model, *known, progress)

    return record_model


def written_texts(path: Path, tokenizer: Path | None) -> list["WrittenText"]:
    """The texts of this file, strings encoded by the tokenizer of that folder."""
    from simspec.engines.text import read_texts

    encode: Callable[[str], list[int]] | None = None
    if tokenizer is not None:
        from real.model.checkpoint import load_tokenizer

        held = load_tokenizer(tokenizer)

        def encode(text: str) -> list[int]:
            return held.encode(text, add_special_tokens=False).ids

    return read_texts(path, encode)
