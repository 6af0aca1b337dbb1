"""Recording a drafter on prompts, and every exit of a sorted drafter: trace files and cards."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from real.decode.features import drafter_features
from real.draft import check_grows
from real.drafters import BUILTIN
from real.drafters.sorted import SortedDrafter
from real.files import replace_json
from real.model.checkpoint import load_tokenizer
from real.model_settings import ModelSettings, open_recording
from real.pair import Pair
from real.processes import ALONE, Processes
from real.progress import Progress, quiet
from real.prompts import (
    UNKNOWN_ORIGIN,
    Conversation,
    LeftOut,
    Prompt,
    PromptFormat,
    PromptOrigin,
    draw,
    load_chat_template,
    read_prompts,
)
from real.record import Recording, RecordingFiles, Settings, record_all
from real.record.exits import record_exits
from real.record.rows import check_history_free
from real.record.sequences import SequenceCache, add_later_turns, default_batch
from real.record.settings import card, describe
from real.rerun import rule_of
from simspec import Trace, load_trace
from simspec.output.files import check_output
from simspec.trace.exits import ExitDrafts, exits_path, write_exits

TURNS = ("first", "all")


@dataclass(frozen=True)
class PromptSettings:
    """Which prompts of JSON-lines files are recorded, and how their turns become tokens.

    | field | meaning |
    | --- | --- |
    | files | as `real.prompts.read_rows` reads them |
    | per_task, seed | number of prompts of every task, drawn by the seed |
    | longest | most tokens of a prompt; None: the models' context without the budget |
    | chat_template | auto: the tokenizer's, where it has one; none: plain styles; or a file |
    | system | the system prompt, for a chat template |
    | turns | first; or all: later turns follow the target's answers to the earlier ones |
    """

    files: tuple[Path, ...]
    per_task: int = 20
    longest: int | None = None
    seed: int = 0
    chat_template: str = "auto"
    system: str = ""
    turns: str = "first"

    def __post_init__(self) -> None:
        if self.turns not in TURNS:
            raise ValueError(f"turns is {self.turns!r}; expected {' or '.join(TURNS)}")
        if self.per_task < 1:
            raise ValueError(f"{self.per_task} prompts per task; expected at least 1")

    def read(self, form: PromptFormat, longest: int) -> tuple[list[Prompt], LeftOut]:
        """The prompts of at most `longest` tokens of all files, and how many are left out."""
        read = [read_prompts(path, form, longest) for path in self.files]
        prompts = draw([p for part, _ in read for p in part], self.per_task, self.seed)
        return prompts, sum((left for _, left in read), LeftOut())


def longest_prompt(context: int, budget: int) -> int:
    """Tokens that a budget of new tokens leaves of the models' context; ValueError for none."""
    if budget >= context:
        raise ValueError(
            f"a budget of {budget} new tokens leaves no room for a prompt in the models' context "
            f"of {context}; use a smaller --budget, or allow longer sequences by --longest"
        )
    return context - budget


@dataclass(frozen=True)
class SelectedPrompts:
    """The prompts of a recording.

    | field | meaning |
    | --- | --- |
    | prompts, origin | what is recorded, and where it comes from |
    | longest | most tokens of a prompt, later turns included |
    | conversation | how later turns become prompts; None: there are none |
    """

    prompts: list[Prompt]
    origin: PromptOrigin
    longest: int
    conversation: Conversation | None = None


def select_prompts(
    prompts: PromptSettings,
    models: ModelSettings,
    drafters: Sequence[str],
    budget: int,
    progress: Progress = quiet,
) -> SelectedPrompts:
    """The prompts, of first turns, that fit into the models of all drafters."""
    path = models.target_path
    context = min(models.context(drafter) for drafter in drafters)
    form = PromptFormat(
        load_tokenizer(path), load_chat_template(path, prompts.chat_template, prompts.system)
    )
    limit = longest_prompt(context, budget) if prompts.longest is None else prompts.longest
    selected, left_out = prompts.read(form, limit)
    if left_out.count:
        progress("reading prompts", len(selected), len(selected), left_out.describe())
    origin = PromptOrigin(left_out, form.metadata())
    if prompts.turns == "all" and any(len(p.turns) > 1 for p in selected):
        return SelectedPrompts(selected, origin, limit, Conversation(form, limit))
    return SelectedPrompts(selected, origin, max(len(p.token) for p in selected))


def with_later_turns(
    selected: SelectedPrompts,
    recording: Recording,
    progress: Progress = quiet,
    processes: Processes = ALONE,
) -> SelectedPrompts:
    """The prompts with those of later turns after them, if there are any.

    The target's answers go into the recording's file of sequences, where the recorder finds them.
    """
    path = recording.files.sequence_cache
    if selected.conversation is None or path is None:
        return selected
    settings, target = recording.settings, recording.target
    cache = SequenceCache(path, settings, recording.meta, target, processes)
    conversation = selected.conversation
    prompts, later = add_later_turns(
        target, settings, selected.prompts, conversation, cache, progress, processes
    )
    if later.count:
        progress("reading later turns", later.read, later.read, later.describe())
    left_out = (selected.origin.left_out or LeftOut()) + later
    return replace(selected, prompts=prompts, origin=replace(selected.origin, left_out=left_out))


def record_prompts(
    out: Path,
    prompts: PromptSettings,
    models: ModelSettings,
    drafter: str,
    settings: Settings,
    progress: Progress = quiet,
    batch: int | None = None,
    processes: Processes = ALONE,
) -> dict:
    """Records `drafter` on these prompts into `out`, and returns the data card.

    End tokens and features of `settings` come from the models; None: the device's default `batch`.
    A second call continues at the last whole shard. Several `processes` share the work, and all but
    the first end with ShareDone.
    """
    if out.suffix != ".parquet":
        raise ValueError(f"{out} is no recording's name; expected one that ends in .parquet")
    check_outputs([out], prompts)
    check_recordable([drafter])
    selected = select_prompts(prompts, models, [drafter], settings.budget, progress)
    pair = models.load(drafter, settings.K + 1, selected.longest + settings.budget)
    settings = complete_settings(settings, pair, batch)
    answers = None
    if selected.conversation is not None:
        answers = out.with_name(out.name + ".turns.json")  # kept until the recording is whole
        files = RecordingFiles(out, sequence_cache=answers)
        recording = make_recording(pair, settings, selected.prompts, files, selected.origin)
        selected = with_later_turns(selected, recording, progress, processes)
    made = pair, selected.prompts, settings, progress, answers, selected.origin, processes
    described = record_to(out, *made)
    if answers is not None:
        answers.unlink(missing_ok=True)
    return described


def record_to(
    out: Path,
    pair: Pair,
    prompts: Sequence[Prompt],
    settings: Settings,
    progress: Progress = quiet,
    sequence_cache: Path | None = None,
    origin: PromptOrigin = UNKNOWN_ORIGIN,
    processes: Processes = ALONE,
) -> dict:
    """Records a trace with its data card next to it (`<out>.json`), and returns the card.

    sequence_cache: a file that keeps the target's sequences for further recordings. `origin` is
    stated in the metadata and the card.
    """
    files = RecordingFiles(out, sequence_cache=sequence_cache)
    recording = make_recording(pair, settings, prompts, files, origin)
    (trace,) = record_all([recording], prompts, progress, processes)
    return write_card(out, trace, origin, len(prompts))


def check_outputs(outs: Sequence[Path], prompts: PromptSettings) -> None:
    """ValueError where recordings cannot be written, or would replace their prompts."""
    for out in outs:
        for path in {out, out.with_suffix(".json")}:
            check_output(path, *prompts.files)


def check_recordable(drafters: Sequence[str]) -> None:
    """RecordError for a drafter whose proposals depend on earlier rounds, before it is loaded."""
    for name in drafters:
        if name in BUILTIN:
            check_history_free(BUILTIN[name].drafter)


def complete_settings(settings: Settings, pair: Pair, batch: int | None) -> Settings:
    """The settings with what the models determine."""
    if settings.tree:
        check_grows(pair.drafter, settings.tree[1])
    return replace(
        settings,
        end_tokens=pair.end_tokens,
        features=() if settings.rule.sampled else drafter_features(pair.drafter),
        batch=default_batch(pair.target) if batch is None else batch,
    )


def make_recording(
    pair: Pair,
    settings: Settings,
    prompts: Sequence[Prompt],
    files: RecordingFiles,
    origin: PromptOrigin,
) -> Recording:
    """The drafter's part of a recording job; ValueError for sequences beyond a model's window."""
    pair.check_length(max(len(p.token) for p in prompts) + settings.budget)
    decoder = pair.target.decoder
    meta = describe(
        pair.name,
        pair.drafter,
        settings,
        prompts,
        pair.tokenizer_sha256,
        decoder.device,
        decoder.dtype,
    )
    meta = replace(meta, chat=dict(origin.chat), drafter_sha256=pair.drafter_sha256)
    return Recording(pair.target, pair.drafter, settings, files, meta)


def write_card(out: Path, trace: Trace, origin: PromptOrigin, recorded: int) -> dict:
    """Writes the data card of a recording of `recorded` prompts next to it, and returns it."""
    described = card(out, trace)
    if origin.left_out is not None:
        described["prompts"] = origin.left_out.to_json() | {"recorded": recorded}
    replace_json(out.with_suffix(".json"), described)
    return described


SEQUENCES = "sequences.json"
"""The target's sequences, next to the recordings of several drafters."""


def record_drafters(
    folder: Path,
    prompts: PromptSettings,
    models: ModelSettings,
    drafters: Sequence[str],
    settings: Settings,
    progress: Progress = quiet,
    batch: int | None = None,
    processes: Processes = ALONE,
) -> dict[str, dict]:
    """Records several drafters into `folder`/NAME.parquet; returns their data cards.

    The target writes its sequences once, into `folder`/sequences.json, and passes over each once.
    Whole recordings with these settings are kept as they are. Several `processes` share the work,
    and all but the first end with ShareDone. ValueError for weights of one drafter, captured
    passes, or a drafter named twice.
    """
    if models.weights is not None:
        raise ValueError(
            "--weights names the folder of one drafter; expected a folder of all by --models"
        )
    if models.engine != "eager":
        raise ValueError(
            f"several drafters are recorded on engine eager, not {models.engine!r}; "
            "record them one by one"
        )
    if len(set(drafters)) < len(drafters):
        raise ValueError(f"drafters {', '.join(drafters)}: expected each once")
    check_recordable(drafters)
    outs = {name: folder / f"{name}.parquet" for name in drafters}
    written = [*outs.values(), folder / SEQUENCES]
    check_outputs(written if folder.exists() else [folder], prompts)
    selected = select_prompts(prompts, models, drafters, settings.budget, progress)
    recordings = {}
    for name, pair in zip(drafters, models.load_all(drafters)):
        completed = complete_settings(settings, pair, batch)
        files = RecordingFiles(outs[name], sequence_cache=folder / SEQUENCES)
        recordings[name] = make_recording(pair, completed, selected.prompts, files, selected.origin)
    selected = with_later_turns(selected, recordings[drafters[0]], progress, processes)
    unfinished = [r for r in recordings.values() if not _is_finished(r, selected.prompts)]
    if unfinished:
        record_all(unfinished, selected.prompts, progress, processes)
    else:
        processes.leave_to_first()
    return {
        name: write_card(
            r.files.trace, load_trace(r.files.trace), selected.origin, len(selected.prompts)
        )
        for name, r in recordings.items()
    }


def _is_finished(recording: Recording, prompts: Sequence[Prompt]) -> bool:
    """Whether the recording is there, whole, with these settings on these prompts."""
    if not recording.files.trace.exists():
        return False
    trace = load_trace(recording.files.trace)
    wanted = replace(
        recording.meta,
        tasks=tuple(p.task for p in prompts),
        ids=tuple(p.id for p in prompts),
        argv=trace.meta.argv,
        git=trace.meta.git,
        notes=trace.meta.notes,
    )
    cuts = zip(trace.prompt_offset, trace.prompt_offset[1:])
    return (
        trace.meta == wanted
        and [trace.prompt[a:b].tolist() for a, b in cuts] == [p.token for p in prompts]
        and set(trace.budget.tolist()) == {recording.settings.budget}
        and trace.sequence.tolist() == list(range(len(prompts)))
    )


def exits_of_recording(
    name: str, models: ModelSettings, out: Path | None = None
) -> tuple[ExitDrafts, Path]:
    """Writes the exits of the recording `name` to `out`, by default next to it.

    ValueError for a recording of another drafter, or of the rejection rule.
    """
    path, trace = open_recording(name)
    out = out or exits_path(path)
    check_output(out, path)
    rule = rule_of(trace)
    if trace.meta.drafter != "sorted":
        raise ValueError(
            f"{name} was recorded with drafter {trace.meta.drafter!r}; "
            "expected a recording of drafter 'sorted'"
        )
    pair = models.load_for(trace, name)
    assert isinstance(pair.drafter, SortedDrafter)  # by the recording's drafter
    drafts = record_exits(pair.drafter, pair.target.decoder, trace, rule)
    write_exits(drafts, trace, out)
    return drafts, out
