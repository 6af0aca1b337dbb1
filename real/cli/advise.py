"""The command `simspec advise`."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from real.cli.engine_options import Dtype, Fast, Threads, Untested, engine_settings, run_requests
from real.cli.options import MOST_TOKENS, ChatTemplate, Json, Seed, System, show_progress
from simspec.cli.options import MOST_BATCH, MOST_PROMPTS, at_most

if TYPE_CHECKING:
    from real.engines import Request
    from real.engines.advise import Advice, AdvicePlan, Candidate, Verified
    from real.engines.rows import Row
    from simspec import Trace

PANEL = "From a model to a setting"
LONGEST_DRAFT = 32
SETTINGS = {"llamacpp": "setting.txt"}
"""Files of engines whose settings are no JSON."""


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
    from real.engines.advise import (
        AdvicePlan,
        choose_length,
        draft_name,
        halves,
        lengths_taken,
        measure_costs,
        record_drafts,
        verify,
        write_plain_texts,
    )
    from real.engines.advise import Candidate as Tried
    from simspec.output.files import write_json
    from simspec.output.terminal import print_note

    batches = tuple(sorted({*(batch or [1])}))
    settings = engine_settings(model, "none", depth, threads, dtype, not fast, batches[-1])
    adapter = adapter_of(engine, settings)
    models = [_draft_model(given) for given in draft_model or ()]
    drafts = (
        *(NgramDraft(depth, least, most) for least, most in adapter.ngrams),
        *(draft for draft, _ in models),
    )
    plan = AdvicePlan(adapter, settings, drafts, out, batches, depth, seed)
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
        candidates.append(Tried(name, draft, trace, costs[kind], lengths_taken(plan, draft)))
    print_note(f"3/4 replay of {len(candidates)} drafters")
    tried = [choose_length(plan, c, rows, size) for size in batches for c in candidates]
    of_name = {c.name: c for c in candidates}
    smallest = [advice for advice in tried if advice.batch == batches[0]]
    winner = of_name[max(smallest, key=lambda advice: advice.speedup).candidate]
    best = [advice for advice in tried if advice.candidate == winner.name]
    print_note(f"4/4 {engine} runs the choice on {len(held_out)} held-out prompts")
    verified = [verify(plan, winner, advice, held_out, run, record) for advice in best]
    found = _Found(plan, winner, best, tried, verified, _by_task(plan, winner, rows, tasks))
    written = _write_setting(found)
    _write_report(found, candidates, written)
    write_json(out / "advice.json", found.to_dict())
    if as_json:
        print(json.dumps(found.to_dict()))
    else:
        found.print(written)
    raise typer.Exit(0 if found.confirmed else 1)


class _Found:
    """All that the command found, and how it is told."""

    def __init__(  # noqa: PLR0913
        self,
        plan: "AdvicePlan",
        winner: "Candidate",
        best: "Sequence[Advice]",
        tried: "Sequence[Advice]",
        verified: "Sequence[Verified]",
        by_task: "Mapping[str, Advice]",
    ):
        self.plan, self.winner, self.best, self.tried = plan, winner, best, tried
        self.verified, self.by_task = verified, by_task
        self.needed = _prompts_needed(winner, best[0])

    @property
    def confirmed(self) -> bool:
        """Whether every batch size is confirmed, and every pass is the replay's."""
        return all(v.table.confirmed and not v.exceptions for v in self.verified)

    def sentences(self) -> list[str]:
        """The advice, a sentence a batch size."""
        from real.engines.summary import advised, drafter_text

        told = []
        for advice, checked in zip(self.best, self.verified):
            row = next(r for r in checked.table.rows if r.k == advice.drafting)
            choice = f"K = {advice.k}" if advice.k else f"do not draft; K = {advice.drafting}"
            state = advised(checked.table)[1]
            told.append(
                f"{_in_flight(advice.batch)}: {choice} of {drafter_text(_draft_of(self.winner))}, "
                f"predicted {_figure(advice.speedup, advice.interval)}, measured on other prompts "
                f"{_figure(row.measured, row.measured_interval)}; {state}"
            )
        if self.needed is not None:
            told.append(f"A live test against plain decoding would need {self.needed} prompts")
        return told

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        from dataclasses import asdict

        return {
            "engine": self.plan.engine.name,
            "drafter": self.winner.name,
            "advice": [asdict(advice) for advice in self.best],
            "verified": [checked.to_dict() for checked in self.verified],
            "confirmed": self.confirmed,
            "tried": [asdict(advice) for advice in self.tried],
            "by_task": {task: asdict(advice) for task, advice in self.by_task.items()},
            "prompts_needed": self.needed,
        }

    def tables(self) -> list[Any]:
        """Drafters compared, lengths verified, and lengths by task."""
        from simspec.output.table import Table

        drafters = Table(
            ("drafter", "in flight", "best K", "predicted [95%]"),
            [(a.candidate, str(a.batch), str(a.drafting), _figure(a.speedup, a.interval))
             for a in self.tried],
            title="Drafters, by replay of the engine's texts",
        )  # fmt: skip
        lengths = Table(
            ("in flight", "K", "predicted [95%]", "measured [95%]"),
            [(str(checked.batch), str(row.k), _figure(row.predicted, row.predicted_interval),
              _figure(row.measured, row.measured_interval))
             for checked in self.verified for row in checked.table.rows],
            title="Verified on held-out prompts",
        )  # fmt: skip
        tasks = Table(
            ("task", "best K", "predicted [95%]"),
            [(task, str(a.drafting), _figure(a.speedup, a.interval))
             for task, a in self.by_task.items()],
            title="By task, one request in flight" if self.best[0].batch == 1 else "By task",
        )  # fmt: skip
        return [drafters, lengths, tasks]

    def print(self, written: Path | None) -> None:
        """Prints sentences and tables."""
        from simspec.output.terminal import print_text

        for table in self.tables():
            table.print()
        for sentence in self.sentences():
            print_text(sentence)
        setting = "no setting, since plain decoding is faster" if written is None else str(written)
        print_text(f"wrote {self.plan.folder / 'report.html'}; {setting}")


def _in_flight(batch: int) -> str:
    return f"{batch} request{'s' * (batch > 1)} in flight"


def _figure(value: float, interval: Any) -> str:
    return f"{value:.2f}" + (f" [{interval.low:.2f}, {interval.high:.2f}]" if interval else "")


def _draft_of(candidate: "Candidate") -> Any:
    from real.engines.adapter import draft_description

    return draft_description(candidate.draft)


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


def _by_task(
    plan: "AdvicePlan", winner: "Candidate", rows: "Sequence[Row]", tasks: Mapping[str, str]
) -> dict[str, "Advice"]:
    """The best length of each task's texts, one request in flight where that was priced."""
    from real.engines.advise import choose_length

    size, found = plan.batches[0], {}
    for task in dict.fromkeys(tasks.values()):
        own = [row for row in rows if tasks[row.request.id] == task]
        if len(own) >= size:
            found[task] = choose_length(plan, winner, own, size)
    return found


def _prompts_needed(winner: "Candidate", advice: "Advice") -> int | None:
    """Prompts of a live test that would tell the advice from plain decoding; None: not known."""
    from simspec.cost.table import CostTable
    from simspec.reports.comparison import compare

    cost = winner.cost.at(advice.batch) if isinstance(winner.cost, CostTable) else winner.cost
    try:
        (found,) = compare(
            {winner.name: winner.recording}, [f"fixed:{advice.drafting}"], cost, "fixed:0"
        )
    except ValueError:  # under 8 prompts
        return None
    return found.prompts_needed


def _write_setting(found: _Found) -> Path | None:
    """The engine's setting by batch size; None where none drafts, or simspec writes none."""
    from real.engines.adapter import NgramDraft
    from simspec.engines.choice import Choice, Schedule, gather
    from simspec.engines.formats import EXPORTS, Sources, write_choice
    from simspec.engines.request import Settings
    from simspec.numerics.stats import Estimate

    name, folder, winner = found.plan.engine.name, found.plan.folder, found.winner
    if name not in EXPORTS or not any(advice.k for advice in found.best):
        return None
    recording = folder / f"{winner.name}.parquet"
    sources = Sources({winner.name: recording}, str(folder / f"{winner.name}.cost.json"))
    evidence, _ = gather(sources.paths, sources.cost)
    schedule = Schedule(tuple(a.batch for a in found.best), tuple(a.k for a in found.best))
    gains = [
        advice.interval
        or Estimate(advice.speedup, float("nan"), float("nan"), 0.95, winner.recording.sequences)
        for advice in found.best
    ]
    policies = tuple(f"fixed:{advice.k}" for advice in found.best)
    choice = Choice(policies, schedule, tuple(gains), True)
    draft = winner.draft
    settings = Settings(model=str(draft.model)) if not isinstance(draft, NgramDraft) else Settings(
        ngram=draft.ngram_max, least_ngram=draft.ngram_min
    )  # fmt: skip
    out = folder / SETTINGS.get(name, "setting.json")
    write_choice(name, evidence, choice, sources, out, settings, "simspec advise")
    return out


def _write_report(found: _Found, candidates: "Sequence[Candidate]", setting: Path | None) -> None:
    """report.html: the advice, what confirms it, and the page of every recording."""
    from simspec.cost.table import CostTable
    from simspec.output.files import replacing
    from simspec.page import layout
    from simspec.page.report import all_figures, page_of
    from simspec.reports.comparison import DEFAULTS

    size = found.plan.batches[0]
    costs = {
        c.name: c.cost.at(size) if isinstance(c.cost, CostTable) else c.cost for c in candidates
    }
    traces = {c.name: c.recording for c in candidates}
    first = [
        layout.advice(f"{found.plan.engine.name}, {found.plan.settings.model.name}", sentence)
        for sentence in found.sentences()
    ]
    for table in found.tables():
        first += [layout.heading(table.title, 3), table.html()]
    if setting is not None:
        text = setting.read_text(encoding="utf-8")
        first += [layout.heading("The engine's setting", 3), layout.code(text)]
    html = page_of(list(all_figures(traces, costs)), DEFAULTS, (), first)
    with replacing(found.plan.folder / "report.html") as temporary:
        temporary.write_text(html, encoding="utf-8")
