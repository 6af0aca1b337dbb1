"""The command `simspec advise`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from real.cli.engine_options import Dtype, Fast, Threads, Untested, engine_settings, run_requests
from real.cli.options import MOST_TOKENS, ChatTemplate, Json, Seed, System, show_progress
from simspec.cli.options import MOST_BATCH, MOST_PROMPTS, at_most

if TYPE_CHECKING:
    from real.engines import Request
    from simspec import Trace

PANEL = "From a model to a setting"
LONGEST_DRAFT = 32


def advise(  # noqa: PLR0913
    engine: Annotated[str, typer.Argument(help="An engine of `simspec engine list`.")],
    model: Annotated[
        Path, typer.Option(help="The target: a folder of safetensors, or a GGUF file.")
    ],
    prompts: Annotated[
        Path, typer.Option(help='JSON lines {"id", "task", "text" or "turns"}, at least 16.')
    ],
    out: Annotated[Path, typer.Option(help="Folder of all files; an earlier call is continued.")],
    draft_model: Annotated[
        list[str] | None,
        typer.Option(
            help="A draft model, repeatable: a folder, or GGUF=FOLDER with the same weights as a "
            "transformers checkpoint. n-grams are tried always."
        ),
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="Folder of the tokenizer; default: the model's folder.")
    ] = None,
    chat_template: ChatTemplate = "auto",
    system: System = "",
    batch: Annotated[
        list[int] | None,
        typer.Option(callback=at_most(MOST_BATCH), help="Requests in flight, repeatable."),
    ] = None,
    depth: Annotated[
        int, typer.Option(min=1, callback=at_most(LONGEST_DRAFT), help="Longest draft tried.")
    ] = 8,
    count: Annotated[
        int,
        typer.Option(
            min=16, callback=at_most(MOST_PROMPTS),
            help="Prompts: half to choose on, half to verify on.",
        ),
    ] = 48,
    budget: Annotated[
        int, typer.Option(min=8, callback=at_most(MOST_TOKENS), help="New tokens of each.")
    ] = 64,
    longest: Annotated[
        int, typer.Option(min=1, callback=at_most(MOST_TOKENS), help="Most tokens of a prompt.")
    ] = 1024,
    threads: Threads = 1,
    dtype: Dtype = "float32",
    fast: Fast = False,
    untested: Untested = False,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Find the drafter and draft length of a model on an engine, and confirm them there.

    The engine writes texts of your prompts; drafts are recorded along them; the engine's passes are
    timed; replay chooses by batch size; the engine runs the choice on prompts that were held out.
    The folder gets the engine's setting, report.html, and all recordings and costs. Nothing else
    should run meanwhile. The same command continues after a kill. The exit code is 1 where the
    engine does not confirm the choice.

    Example: simspec advise vllm --model models/smollm2/target --prompts prompts.jsonl --out advice

    llama.cpp: simspec advise llamacpp --fast --model model.gguf --tokenizer FOLDER
    --prompts prompts.jsonl --out advice
    """
    from functools import partial

    from real.cli.engine_options import adapter_of
    from real.engines.adapter import NgramDraft
    from real.engines.advice_report import Found, by_task, write_report, write_setting
    from real.engines.advise import (
        AdvicePlan,
        Candidate,
        choose_length,
        draft_name,
        halves,
        lengths_taken,
        measure_costs,
        record_drafts,
        verify,
        write_plain_texts,
    )
    from simspec.output.files import write_json
    from simspec.output.terminal import print_note, print_text

    batches = tuple(sorted({*(batch or [1])}))
    settings = engine_settings(model, "none", depth, threads, dtype, not fast, batches[-1])
    adapter = adapter_of(engine, settings)
    models = [_draft_model(given) for given in draft_model or ()]
    drafts = (
        *(NgramDraft(depth, least, most) for least, most in adapter.ngrams),
        *(draft for draft, _ in models),
    )
    plan = AdvicePlan(adapter, settings, out, batches, depth, seed)
    known = tokenizer or (model if model.is_dir() else None)
    if known is None:
        raise ValueError(f"{model} is no folder with a tokenizer: give one by --tokenizer")
    requests, tasks = _requests(prompts, known, (chat_template, system), (count, budget, longest))
    chosen, held_out = halves(requests, seed)
    if batches[-1] > len(held_out):
        raise ValueError(
            f"{len(requests)} prompts leave {len(held_out)} to verify on, --batch is "
            f"{batches[-1]}: bring more prompts, or a smaller batch"
        )
    out.mkdir(parents=True, exist_ok=True)
    run = partial(_run, engine, untested)
    record = partial(_record_model, {str(d.model): folder for d, folder in models}, dtype)

    print_note(f"1/4 {engine} writes {len(chosen)} texts")
    rows = write_plain_texts(plan, chosen, run)
    candidates, costs = [], dict[str, Any]()
    for draft in drafts:
        kind = "ngram" if isinstance(draft, NgramDraft) else draft_name(draft)
        if kind not in costs:
            print_note(f"2/4 costs of {kind} drafts on {engine}")
            costs[kind] = measure_costs(plan, draft, chosen, run)
        name, trace = draft_name(draft), record_drafts(plan, draft, rows, tasks, record)
        trace.save(out / f"{name}.parquet")
        costs[kind].to_json(out / f"{name}.cost.json")
        candidates.append(Candidate(name, draft, trace, costs[kind], lengths_taken(plan, draft)))
    print_note(f"3/4 replay of {len(candidates)} drafters")
    tried = [choose_length(plan, c, rows, size) for size in batches for c in candidates]
    of_name = {c.name: c for c in candidates}
    smallest = [advice for advice in tried if advice.batch == batches[0]]
    winner = of_name[max(smallest, key=lambda advice: advice.speedup).candidate]
    best = [advice for advice in tried if advice.candidate == winner.name]
    print_note(f"4/4 {engine} runs the choice on {len(held_out)} held-out prompts")
    verified = [verify(plan, winner, advice, held_out, run, record) for advice in best]
    found = Found(plan, winner, best, tried, verified, by_task(plan, winner, rows, tasks))
    written = write_setting(found)
    write_report(found, candidates, written)
    write_json(out / "advice.json", found.to_dict())
    if as_json:
        print(json.dumps(found.to_dict()))
    else:
        for table in found.tables():
            table.print()
        for sentence in found.sentences():
            print_text(sentence)
        told = f"no setting for {engine}" if found.drafts else "no setting: do not draft"
        told = told if written is None else str(written)
        print_text(f"wrote {out / 'report.html'}; {told}")
    raise typer.Exit(0 if found.confirmed else 1)


def _draft_model(given: str) -> tuple[Any, Path]:
    """(the engine's draft model, the checkpoint with its weights) of PATH or PATH=FOLDER."""
    from real.engines import ModelDraft

    path, _, folder = given.partition("=")
    checkpoint = Path(folder or path)
    if not checkpoint.is_dir():
        raise ValueError(
            f"--draft-model is {given!r}, and {checkpoint} is no folder: expected a transformers "
            "checkpoint, or GGUF=FOLDER with the same weights"
        )
    return ModelDraft(1, Path(path)), checkpoint


def _requests(
    path: Path, tokenizer: Path, chat: tuple[str, str], numbers: tuple[int, int, int]
) -> tuple[list["Request"], dict[str, str]]:
    """(requests, {id: task}): evenly spaced prompts of the file, as tokens."""
    from real.engines import Request
    from real.model.checkpoint import load_tokenizer
    from real.prompts import PromptFormat, load_chat_template, read_prompts

    count, budget, longest = numbers
    form = PromptFormat(load_tokenizer(tokenizer), load_chat_template(tokenizer, *chat))
    prompts, _ = read_prompts(path, form, longest)
    if len(prompts) < 16:
        raise ValueError(f"{path} holds {len(prompts)} prompts that fit, expected at least 16")
    names = [prompt.id for prompt in prompts]
    if len(set(names)) < len(names):
        raise ValueError(f"{path} has {len(names) - len(set(names))} ids twice: name each once")
    kept = [prompts[i * len(prompts) // count] for i in range(count)]
    if len(prompts) <= count:
        kept = prompts
    requests = [Request(p.id, tuple(p.token), budget) for p in kept]
    return requests, {p.id: p.task for p in kept}


def _run(engine: str, untested: bool, settings, requests, plan, path, force) -> Any:
    """Runs a plan in the engine's environment."""
    return run_requests(engine, settings, requests, plan, path, force, untested)


def _record_model(folders: Mapping[str, Path], dtype: str, draft, texts, K, end_tokens) -> "Trace":
    """The recording of a draft model along texts, from its checkpoint."""
    from real.drafters.model import ModelDrafter
    from real.jobs.models import dtype_of
    from real.record.texts import record_texts_by_model

    drafter = ModelDrafter.load_alone(folders[str(draft.model)], dtype_of(dtype), "cpu")
    with show_progress() as progress:
        return record_texts_by_model(texts, drafter, K, end_tokens, progress=progress)
