"""The command `simspec advise`."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from real.commands.engine import EngineOptions, Name, adapter_of, run_requests
from real.commands.options import MOST_TOKENS, show_progress
from real.model_settings import evenly_spaced
from simspec.cli.options import MOST_BATCH, MOST_PROMPTS
from simspec.engines.step_log import is_step_log
from simspec.output.files import write_json
from simspec.output.frames import frame_data, show
from simspec.output.terminal import print_note, print_text, progress_bar
from simspec.settings import Settings, command, option

if TYPE_CHECKING:
    from real.engines import Request
    from real.prompts import ChatTemplate
    from simspec import Trace
    from simspec.engines.server import Prompt

LONGEST_PROMPT = 1024
"""Most tokens of a prompt that is taken."""
PANEL = "Decide"
LONGEST_DRAFT, FEWEST = 32, 16
"""Most tokens of a draft, and fewest prompts."""
POLICIES = "cost_ts", "beta_ts", "goodput"
"""Policies tried inside an engine: they read no features of a drafter."""


@dataclass(frozen=True)
class Advise(Settings):
    """An engine, a model or a log, and what is tried on it."""

    engine: Name
    out: Annotated[Path, option("Folder of all files; an earlier call is continued.")]
    model: Annotated[
        Path | None, option("The target: a folder of safetensors, or a GGUF file.")
    ] = None
    prompts: Annotated[
        Path | None, option('JSON lines {"id", "task", "text" or "turns"}, at least 16.')
    ] = None
    log: Annotated[
        Path | None,
        option(
            'In place of model and prompts: JSON lines {"prompt", "output"} in token ids, or in '
            "text with --tokenizer, of greedy decoding. n-grams are replayed, nothing runs. Or the "
            "steps of a vLLM server that was started with SIMSPEC_STEPS=FILE."
        ),
    ] = None
    url: Annotated[
        str | None,
        option("In place of model: a running vLLM server, http://HOST:8000, which gets --prompts."),
    ] = None
    plain_url: Annotated[
        str | None, option("Of --url: a server of the same model without drafts, to compare.")
    ] = None
    dry_run: Annotated[bool, option("Of --url: say what would be sent.", "--dry-run")] = False
    cost: Annotated[Path | None, option("Costs for --log or --url: `simspec engine measure`.")] = (
        None
    )
    policy: Annotated[
        tuple[str, ...],
        option(
            "Policy to try inside vLLM, repeatable; none: no policy. "
            f"Default: {', '.join(POLICIES)}."
        ),
    ] = ()
    draft_model: Annotated[
        tuple[str, ...],
        option(
            "A draft model, repeatable: a folder, or GGUF=FOLDER with the same weights as a "
            "transformers checkpoint. n-grams are tried always."
        ),
    ] = ()
    tokenizer: Annotated[
        Path | None, option("Folder of the tokenizer; default: the model's folder.")
    ] = None
    raw: Annotated[
        bool,
        option(
            'Prompts go without the chat template, by which "text" else becomes a user message.',
            "--raw",
        ),
    ] = False
    batch: Annotated[
        tuple[Annotated[int, option("", ge=1, le=MOST_BATCH)], ...],
        option("Requests in flight, repeatable."),
    ] = (1,)
    depth: Annotated[int, option("Longest draft tried.", ge=1, le=LONGEST_DRAFT)] = 8
    count: Annotated[
        int, option("Prompts: half to choose on, half to verify on.", ge=FEWEST, le=MOST_PROMPTS)
    ] = 48
    budget: Annotated[int, option("New tokens of each.", ge=8, le=MOST_TOKENS)] = 64
    options: EngineOptions = EngineOptions()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.url is not None:
            self._check_url()
            return
        if self.plain_url is not None or self.dry_run:
            raise ValueError("--plain-url and --dry-run need --url")
        given = self.model is not None, self.prompts is not None
        if self.log is None and not all(given):
            raise ValueError("give --model and --prompts, or --log and --cost")
        if self.log is None and self.cost is not None:
            raise ValueError(
                "--cost is for --log; with a model the engine is measured: leave it out"
            )
        if self.log is not None and is_step_log(self.log):
            if any(given) or self.cost is not None:
                raise ValueError(
                    f"{self.log} holds a server's steps, which price themselves: leave --cost, "
                    "--model and --prompts out"
                )
        elif self.log is not None and (any(given) or self.cost is None):
            raise ValueError(
                "--log needs --cost, and no --model or --prompts: nothing runs, the log's texts "
                "are replayed"
            )
        if self.log is not None and self.draft_model:
            raise ValueError("--log replays n-grams: leave --draft-model out")

    def _check_url(self) -> None:
        """ValueError unless the options are those of a running server."""
        if self.engine != "vllm" or self.prompts is None:
            raise ValueError("--url needs --prompts, and a server of vLLM")
        if self.draft_model or self.policy:
            raise ValueError("--url measures what is served: leave --draft-model and --policy out")
        if self.log is not None and (self.cost is not None or not is_step_log(self.log)):
            raise ValueError("--url takes prices of --cost, or --log of a server's steps")


@command
def advise(settings: Advise) -> None:
    """Find the drafter and draft length of a model on an engine, and confirm them there.

    The engine writes texts of your prompts; where they leave nothing to draft, that is all (exit
    code 1); drafts are recorded along them; the engine's passes are
    timed; replay chooses by batch size; the engine runs the choice on prompts that were held out.
    vLLM then runs the best policy too, next to the best length. The folder gets the engine's
    setting, report.html, and all recordings and costs. Nothing else should run meanwhile. The same
    command continues after a kill. The exit code is 1 where the engine does not confirm the choice.

    Example: simspec advise vllm --model models/smollm2/target --prompts prompts.jsonl --out advice

    llama.cpp: simspec advise llamacpp --fast --model model.gguf --tokenizer FOLDER
    --prompts prompts.jsonl --out advice

    From a log: simspec advise vllm --log served.jsonl --cost vllm.cost.json --out advice

    From a running server's steps: SIMSPEC_STEPS=steps.jsonl vllm serve ..., then
    simspec advise vllm --log steps.jsonl --out advice

    With your prompts: simspec advise vllm --url http://localhost:8000 --prompts prompts.jsonl
    --plain-url http://localhost:8001 --out advice
    """
    import real.engines
    from real.engines import advise as steps
    from real.engines.adapter import EngineSettings, NgramDraft
    from real.record.texts import written_texts
    from simspec.cost.table import load_cost
    from simspec.engines.vllm_proposer import served_policy

    given, log, model, out = settings.options, settings.log, settings.model, settings.out
    if settings.url is not None:
        _tell_served(settings, settings.url)
    if log is not None and is_step_log(log):
        _tell_steps(log, out, given.as_json)
    batches, depth, budget = tuple(sorted({*settings.batch})), settings.depth, settings.budget
    adapter, name = adapter_of(settings.engine), settings.engine
    if model is not None:
        used = given.engine_settings(model, "none", depth, batches[-1])
    else:
        assert log is not None
        used = EngineSettings(log, batch=batches[-1])
    adapter.start(used)
    models = [_draft_model(each) for each in settings.draft_model]
    drafts = (
        *(NgramDraft(depth, least, most) for least, most in adapter.ngrams),
        *(draft for draft, _ in models),
    )
    policies = tuple(text for text in (settings.policy or POLICIES) if text != "none")
    if settings.policy and policies and (log is not None or "policy" not in adapter.methods):
        raise ValueError(f"--policy {policies[0]} needs vLLM and a model: it runs in the engine")
    for text in policies:
        served_policy(text, depth)  # refused now
    plan = steps.AdvicePlan(adapter, used, out, batches, depth, policies)
    folders = {str(draft.model): folder for draft, folder in models}
    record = partial(_record_model, folders, given.dtype)
    if log is not None:
        assert settings.cost is not None
        rows, tasks = steps.log_rows(written_texts(log, settings.tokenizer))
        priced = load_cost(settings.cost)
        timed = "" if priced.origin is None else priced.origin.engines.get("drafter", "")
        if timed and not models and "ngram" not in timed:
            print_note(
                f"{settings.cost} was measured with {timed}: rounds of n-grams cost otherwise, "
                "measure them (`simspec engine measure --drafter ngram`)"
            )
        remarks = _remarks(rows)
        with steps.working_in(out):
            found, candidates = steps.choose(
                plan, drafts, rows, tasks, record, lambda draft: priced, print_note
            )
            _tell(replace(found, remarks=remarks), candidates, given.as_json)
    assert model is not None
    known = settings.tokenizer or (model if model.is_dir() else None)
    if known is None:
        raise ValueError(f"{model} is no folder with a tokenizer: give one by --tokenizer")
    longest = LONGEST_PROMPT
    if (room := _stated(model, "max_position_embeddings")) is not None:
        longest = min(longest, room - budget - 4 * depth - 4)  # engines draft past the end
        if longest < 1:
            raise ValueError(
                f"{model} reads {room} tokens, no prompt fits before --budget {budget} and drafts "
                f"of --depth {depth}: lower them"
            )
    template = _template(model, known)
    requests, tasks = _requests(settings, known, longest, None if settings.raw else template)
    chosen, held_out = steps.halves(requests, 0)
    if batches[-1] > len(held_out):
        raise ValueError(
            f"{len(requests)} prompts leave {len(held_out)} to verify on, --batch is "
            f"{batches[-1]}: bring more prompts, or a smaller batch"
        )
    real.engines.find_environment(adapter)  # what it refuses leaves no folder

    run = partial(run_requests, name)

    def measured(draft: Any) -> Any:
        print_note(f"2/4 costs of {draft.method} drafts on {name}")
        return steps.measure_costs(plan, draft, rows, run)

    with steps.working_in(out):
        print_note(f"1/4 {name} writes {len(chosen)} texts")
        rows = steps.write_plain_texts(plan, chosen, run)
        remarks = _remarks(rows, settings.raw and template is not None, out / steps.TEXTS)
        found, candidates = steps.choose(plan, drafts, rows, tasks, record, measured, print_note)
        found = replace(found, remarks=remarks)
        if not found.doubts:  # that no other prompts could settle
            print_note(f"4/4 {name} runs the choice on {len(held_out)} held-out prompts")
            found = steps.confirm(found, rows, held_out, run, record, print_note)
        _tell(found, candidates, given.as_json)


def _remarks(rows: Any, raw: bool = False, file: Path | None = None) -> list[str]:
    """Prints the faults of the texts, and returns them. Where they leave nothing to draft, the
    command ends, and their file is removed, since other prompts are needed."""
    from real.engines.answers import NothingToDraft, answer_faults

    try:
        remarks = answer_faults(rows, raw)
    except NothingToDraft as error:
        if file is not None:
            file.unlink()
        print_note(error)
        raise typer.Exit(1) from None
    for remark in remarks:
        print_note(remark)
    return remarks


def _tell(found: Any, candidates: Any, as_json: bool) -> NoReturn:
    """Writes setting, report and advice.json, prints what they say, and ends the command."""
    from real.engines import advise as steps

    plan = found.plan
    written, by_policy = steps.write_setting(found), steps.write_policy(found)
    steps.write_report(found, candidates, written)
    write_json(plan.folder / "advice.json", found.to_dict())
    if found.doubts:
        steps.time_again(plan.folder)
    if as_json:
        print(json.dumps(found.to_dict()))
    else:
        show(found.tables())
        for sentence in found.sentences():
            print_text(sentence)
        told = f"no setting for {plan.engine.name}" if found.drafts else "no setting: do not draft"
        told = told if not found.doubts else "no setting: not settled"
        told = told if written is None else str(written)
        told += "" if by_policy is None else f", {by_policy}"
        print_text(f"wrote {plan.folder / 'report.html'}; {told}")
    raise typer.Exit(1 if found.confirmed is False else 0)


def _tell_steps(log: Path, out: Path, as_json: bool) -> NoReturn:
    """Prints what a server's steps say, writes it to advice.json, and ends the command."""
    from real.engines.advise import working_in
    from simspec.engines.steps import advice

    table, sentences = advice(log)
    with working_in(out):
        _tell_table(table, sentences, out, as_json)


def _tell_table(table: Any, sentences: list[str], out: Path, as_json: bool) -> NoReturn:
    """Prints a table and what it says, writes them to advice.json, and ends the command."""
    write_json(out / "advice.json", frame_data(table) | {"advice": sentences})
    show(table, as_json, advice=sentences)
    for sentence in [] if as_json else sentences:
        print_text(sentence)
    raise typer.Exit(1 if any("not settled" in sentence for sentence in sentences) else 0)


def _tell_served(settings: Advise, url: str) -> NoReturn:
    """Sends the prompts to a running server, tells what it did with them, and ends the command."""
    import os

    from real.engines import advise as steps
    from real.engines.rows import ROWS
    from simspec.cost.table import load_cost
    from simspec.engines import server as to
    from simspec.engines.served import Prices, served_advice
    from simspec.engines.steps import round_seconds

    variable, key = to.key_from(os.environ)
    servers = [to.Server(to.address_of(url), False, key)]
    if settings.plain_url is not None:
        servers.append(to.Server(to.address_of(settings.plain_url), True, key))
        if servers[0].address == servers[1].address:
            raise ValueError("--url and --plain-url are the same server: give one without drafts")
    prompts, batches = _messages(settings), tuple(sorted({*settings.batch}))
    as_json, prices = settings.options.as_json, dict[int, Prices | None].fromkeys(batches)
    if settings.cost is not None:
        cost = load_cost(settings.cost)
        prices = {n: Prices.of(cost, n, str(settings.cost)) for n in batches}
    elif settings.log is not None:
        rounds = {n: round_seconds(settings.log, n) for n in batches}
        prices = {n: Prices(each[:, 0], each, str(settings.log)) for n, each in rounds.items()}
    if settings.dry_run:
        show(to.plan_frame(servers, prompts, batches, settings.budget, variable), as_json)
        raise typer.Exit
    name = None if settings.model is None else str(settings.model)
    with steps.working_in(settings.out):
        path = settings.out / f"server.verify{ROWS}"  # set aside like others of a clock
        with progress_bar("waves", len(to.waves_of(batches, len(prompts)))) as tell:
            waves = to.serve_prompts(servers, prompts, batches, settings.budget, path, tell, name)
        table, sentences, setting = served_advice(waves, prices)
        steps.write_served(settings.out, servers[0].address, table, sentences, setting)
        _tell_table(table, sentences, settings.out, as_json)


def _messages(settings: Advise) -> "list[Prompt]":
    """Evenly spaced prompts of the file, as a server takes them: a chat's first turn, and text as a
    user message or, with --raw, as it is."""
    from real.prompts import messages, read_rows, styled
    from simspec.engines.server import Prompt, prompts_of_wave

    assert settings.prompts is not None
    made = []
    rows = read_rows(settings.prompts)
    for row in (rows[i] for i in evenly_spaced(len(rows), settings.count)):
        turns = row.turns[:1] if row.text is None else (row.text,)
        if settings.raw:
            text = styled(row.task, *turns) if row.text is None else row.text
            made.append(Prompt(row.id, {"prompt": text}))
        else:
            made.append(Prompt(row.id, {"messages": messages(turns)}))
    least = max(FEWEST, *map(prompts_of_wave, settings.batch))
    if len(made) < least:
        raise ValueError(
            f"{settings.prompts} gives {len(made)} prompts, expected at least {least} for --batch "
            f"{max(settings.batch)}"
        )
    return made


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


def _stated(model: Path, size: str) -> int | None:
    """A size that the config.json of a model's folder states; None: none."""
    with suppress(OSError, ValueError, RecursionError):
        stated = json.loads((model / "config.json").read_text(encoding="utf-8"))
        if isinstance(stated, dict) and type(stated.get(size)) is int:
            return int(stated[size])
    return None


def _template(model: Path, tokenizer: Path) -> "ChatTemplate | None":
    """The chat template of the tokenizer's folder, else of a GGUF file."""
    from real.prompts import load_chat_template

    stored = ""
    if model.suffix == ".gguf":
        from real.model.gguf import stored_template

        stored = stored_template(model)
    return load_chat_template(tokenizer, stored=stored)


def _requests(
    settings: Advise, tokenizer: Path, longest: int, template: "ChatTemplate | None" = None
) -> "tuple[list[Request], dict[str, str]]":
    """(requests, {id: task}): evenly spaced prompts of the file, as tokens; by the template "text"
    becomes a user message."""
    from real.engines import Request
    from real.model.checkpoint import load_tokenizer
    from real.prompts import PromptFormat, read_prompts

    path, count = settings.prompts, settings.count
    assert path is not None
    model = settings.model
    vocab = None if model is None else _stated(model, "vocab_size")
    form = PromptFormat(load_tokenizer(tokenizer), template, vocab)
    prompts, left_out = read_prompts(path, form, longest, asked=True)
    if left_out.count:
        print_note(left_out.describe())
    if len(prompts) < FEWEST:
        raise ValueError(f"{path} holds {len(prompts)} prompts that fit, expected at least 16")
    names = {prompt.id for prompt in prompts}
    if len(names) < len(prompts):
        raise ValueError(f"{path} has {len(prompts) - len(names)} ids twice: name each once")
    prompts = [prompts[i] for i in evenly_spaced(len(prompts), count)]
    requests = [Request(p.id, tuple(p.token), settings.budget) for p in prompts]
    return requests, {p.id: p.task for p in prompts}


def _record_model(
    folders: Mapping[str, Path], dtype: str, draft: Any, texts: Any, K: int, end_tokens: Any
) -> "Trace":
    """The recording of a draft model along texts, from its checkpoint."""
    from real.drafters.model import ModelDrafter
    from real.pair import dtype_of
    from real.record.texts import record_texts_by_model

    drafter = ModelDrafter.load_alone(folders[str(draft.model)], dtype_of(dtype), "cpu")
    with show_progress() as progress:
        return record_texts_by_model(texts, drafter, K, end_tokens, progress=progress)
