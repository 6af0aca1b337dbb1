"""The command `simspec advise`."""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from real.commands.engine_options import (
    Dtype,
    Fast,
    Threads,
    Untested,
    engine_settings,
    run_requests,
)
from real.commands.options import MOST_TOKENS, ChatTemplate, Json, Seed, System, show_progress
from simspec.cli.options import MOST_BATCH, MOST_PROMPTS, at_most

if TYPE_CHECKING:
    from real.engines import Request
    from simspec import Trace

PANEL = "From a model to a setting"
LONGEST_DRAFT = 32
POLICIES = "cost_ts", "beta_ts", "goodput"
"""Policies tried inside an engine: they read no features of a drafter."""


def advise(
    engine: Annotated[str, typer.Argument(help="An engine of `simspec engine list`.")],
    out: Annotated[Path, typer.Option(help="Folder of all files; an earlier call is continued.")],
    model: Annotated[
        Path | None, typer.Option(help="The target: a folder of safetensors, or a GGUF file.")
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(help='JSON lines {"id", "task", "text" or "turns"}, at least 16.'),
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option(
            help='In place of model and prompts: JSON lines {"prompt", "output"} in token ids, or '
            "in text with --tokenizer, of greedy decoding. n-grams are replayed, nothing runs."
        ),
    ] = None,
    cost: Annotated[
        Path | None, typer.Option(help="Costs for --log: `simspec engine measure`.")
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="Policy to try inside vLLM, repeatable; none: no policy. "
            f"Default: {', '.join(POLICIES)}."
        ),
    ] = None,
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
    vLLM then runs the best policy too, next to the best length. The folder gets the engine's
    setting, report.html, and all recordings and costs. Nothing else should run meanwhile. The same
    command continues after a kill. The exit code is 1 where the engine does not confirm the choice.

    Example: simspec advise vllm --model models/smollm2/target --prompts prompts.jsonl --out advice

    llama.cpp: simspec advise llamacpp --fast --model model.gguf --tokenizer FOLDER
    --prompts prompts.jsonl --out advice

    From a log: simspec advise vllm --log served.jsonl --cost vllm.cost.json --out advice
    """
    from functools import partial

    from real.commands.engine_options import adapter_of
    from real.engines.adapter import EngineSettings, NgramDraft
    from real.engines.advice_report import Found, by_task
    from real.engines.advise import (
        AdvicePlan,
        choose_policy,
        halves,
        log_rows,
        measure_costs,
        verify,
        verify_policy,
        write_plain_texts,
    )
    from real.record.texts import written_texts
    from simspec.cost.table import load_cost
    from simspec.engines.vllm_proposer import served_policy
    from simspec.output.terminal import print_note

    batches = tuple(sorted({*(batch or [1])}))
    check_sources(model, prompts, log, cost)
    if log is not None:
        settings = EngineSettings(log, batch=batches[-1])
    else:
        assert model is not None  # by check_sources
        settings = engine_settings(model, "none", depth, threads, dtype, not fast, batches[-1])
    adapter = adapter_of(engine, settings)
    models = [_draft_model(given) for given in draft_model or ()]
    drafts = (
        *(NgramDraft(depth, least, most) for least, most in adapter.ngrams),
        *(draft for draft, _ in models),
    )
    policies = tuple(text for text in (policy or POLICIES) if text != "none")
    if policy and policies and (log is not None or "policy" not in adapter.methods):
        raise ValueError(f"--policy {policies[0]} needs vLLM and a model: it runs in the engine")
    for text in policies:
        served_policy(text, depth)  # refused now
    plan = AdvicePlan(adapter, settings, out, batches, depth, seed, policies)
    run = partial(_run, engine, untested)
    record = partial(_record_model, {str(d.model): folder for d, folder in models}, dtype)
    if log is not None:
        assert cost is not None  # by check_sources
        if models:
            raise ValueError("--log replays n-grams: leave --draft-model out")
        rows, tasks = log_rows(written_texts(log, tokenizer))
        priced = load_cost(cost)
        out.mkdir(parents=True, exist_ok=True)
        chosen_of = partial(_chosen, plan, drafts, rows, tasks, record)
        candidates, winner, best, tried = chosen_of(lambda draft: priced)
        found = Found(plan, winner, best, tried, (), by_task(plan, winner, rows, tasks))
        _tell(found, candidates, as_json)
    known = tokenizer or (settings.model if settings.model.is_dir() else None)
    if known is None:
        raise ValueError(f"{model} is no folder with a tokenizer: give one by --tokenizer")
    assert prompts is not None  # by check_sources
    if (room := _context(settings.model)) is not None:
        longest = min(longest, room - budget - 4 * depth - 4)  # engines draft past the end
        if longest < 1:
            raise ValueError(
                f"{model} reads {room} tokens, no prompt fits before --budget {budget} and drafts "
                f"of --depth {depth}: lower them"
            )
    requests, tasks = _requests(prompts, known, (chat_template, system), (count, budget, longest))
    chosen, held_out = halves(requests, seed)
    if batches[-1] > len(held_out):
        raise ValueError(
            f"{len(requests)} prompts leave {len(held_out)} to verify on, --batch is "
            f"{batches[-1]}: bring more prompts, or a smaller batch"
        )
    out.mkdir(parents=True, exist_ok=True)
    print_note(f"1/4 {engine} writes {len(chosen)} texts")
    rows = write_plain_texts(plan, chosen, run)

    def measured(draft: Any) -> Any:
        print_note(f"2/4 costs of {draft.method} drafts on {engine}")
        return measure_costs(plan, draft, chosen, run)

    candidates, winner, best, tried = _chosen(plan, drafts, rows, tasks, record, measured)
    print_note(f"4/4 {engine} runs the choice on {len(held_out)} held-out prompts")
    verified = [verify(plan, winner, advice, held_out, run, record) for advice in best]
    steered = []
    for advice in best:
        if (of_batch := choose_policy(plan, winner, rows, advice.batch)) is not None:
            print_note(f"4/4 {engine} runs {of_batch.policy}, next to the choice")
            ran = verify_policy(plan, winner, advice, of_batch, held_out, run, record)
            steered.append((of_batch, ran))
    tasks_of = by_task(plan, winner, rows, tasks)
    _tell(Found(plan, winner, best, tried, verified, tasks_of, steered), candidates, as_json)


def check_sources(
    model: Path | None, prompts: Path | None, log: Path | None, cost: Path | None
) -> None:
    """ValueError unless a model with prompts is given, or a log with costs."""
    if log is None and (model is None or prompts is None):
        raise ValueError("give --model and --prompts, or --log and --cost")
    if log is None and cost is not None:
        raise ValueError("--cost is for --log; with a model the engine is measured: leave it out")
    if log is not None and (model is not None or prompts is not None or cost is None):
        raise ValueError(
            "--log needs --cost, and no --model or --prompts: nothing runs, the log's texts are "
            "replayed"
        )


def _chosen(
    plan: Any, drafts: Any, rows: Any, tasks: Mapping[str, str], record: Any, cost_of: Any
) -> tuple[Any, Any, Any, Any]:
    """(candidates, the best one, its length by batch size, all that was tried)."""
    from real.engines.adapter import NgramDraft
    from real.engines.advise import (
        Candidate,
        choose_length,
        draft_name,
        lengths_taken,
        record_drafts,
    )
    from simspec.output.terminal import print_note

    candidates, costs = [], dict[str, Any]()
    for draft in drafts:
        kind = "ngram" if isinstance(draft, NgramDraft) else draft_name(draft)
        if kind not in costs:
            costs[kind] = cost_of(draft)
        name, trace = draft_name(draft), record_drafts(plan, draft, rows, tasks, record)
        trace.save(plan.folder / f"{name}.parquet")
        costs[kind].to_json(plan.folder / f"{name}.cost.json")
        candidates.append(Candidate(name, draft, trace, costs[kind], lengths_taken(plan, draft)))
    print_note(f"3/4 replay of {len(candidates)} drafters")
    tried = [choose_length(plan, c, rows, size) for size in plan.batches for c in candidates]
    of_name = {c.name: c for c in candidates}
    smallest = [advice for advice in tried if advice.batch == plan.batches[0]]
    winner = of_name[max(smallest, key=lambda advice: advice.speedup).candidate]
    best = [advice for advice in tried if advice.candidate == winner.name]
    return candidates, winner, best, tried


def _tell(found: Any, candidates: Any, as_json: bool) -> NoReturn:
    """Writes setting, report and advice.json, prints what they say, and ends the command."""
    from real.engines.advice_report import write_policy, write_report, write_setting
    from simspec.output.files import write_json
    from simspec.output.terminal import print_text

    plan = found.plan
    written, by_policy = write_setting(found), write_policy(found)
    write_report(found, candidates, written)
    write_json(plan.folder / "advice.json", found.to_dict())
    if as_json:
        print(json.dumps(found.to_dict()))
    else:
        for table in found.tables():
            table.print()
        for sentence in found.sentences():
            print_text(sentence)
        name = plan.engine.name
        told = f"no setting for {name}" if found.drafts else "no setting: do not draft"
        told = told if written is None else str(written)
        told += "" if by_policy is None else f", {by_policy}"
        print_text(f"wrote {plan.folder / 'report.html'}; {told}")
    raise typer.Exit(1 if found.confirmed is False else 0)


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


def _context(model: Path) -> int | None:
    """Most tokens of a sequence that the config.json of a model's folder states; None: none."""
    with suppress(OSError, ValueError, RecursionError):
        stated = json.loads((model / "config.json").read_text(encoding="utf-8"))
        if isinstance(stated, dict) and type(most := stated.get("max_position_embeddings")) is int:
            return int(most)
    return None


def _requests(
    path: Path, tokenizer: Path, chat: tuple[str, str], numbers: tuple[int, int, int]
) -> tuple[list["Request"], dict[str, str]]:
    """(requests, {id: task}): evenly spaced prompts of the file, as tokens."""
    from real.engines import Request
    from real.model.checkpoint import load_tokenizer
    from real.prompts import PromptFormat, load_chat_template, read_prompts
    from simspec.output.terminal import print_note

    count, budget, longest = numbers
    form = PromptFormat(load_tokenizer(tokenizer), load_chat_template(tokenizer, *chat))
    prompts, left_out = read_prompts(path, form, longest)
    if left_out.count:
        print_note(left_out.describe())
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
    from real.model_settings import dtype_of
    from real.record.texts import record_texts_by_model

    drafter = ModelDrafter.load_alone(folders[str(draft.model)], dtype_of(dtype), "cpu")
    with show_progress() as progress:
        return record_texts_by_model(texts, drafter, K, end_tokens, progress=progress)
