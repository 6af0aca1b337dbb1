"""simspec record: what a drafter proposes at every position of the target's own output."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from real.commands.options import DRAFTERS, MOST_TOKENS, parse_tree_size, show_progress
from real.model_settings import ModelSettings, RuleSettings
from real.progress import Progress, quiet
from simspec.cli.options import LONGEST_DRAFT, MOST_PROMPTS
from simspec.output.files import check_output
from simspec.output.terminal import print_text
from simspec.settings import Settings, argument, command, option

if TYPE_CHECKING:
    from real.pair import Pair
    from real.processes import Processes
    from real.prompts import Prompt, PromptOrigin
    from simspec import Trace

PANEL = "Record and train"
SEQUENCES = "sequences.json"
"""The target's sequences, next to the recordings of several drafters."""


@dataclass(frozen=True)
class PromptSettings(Settings):
    """Which prompts of JSON-lines files are taken, and how they become tokens."""

    prompts: Annotated[
        tuple[Path, ...], argument('JSON lines: {"id", "task", "text" or "turns", "source"?}.')
    ] = ()
    per_task: Annotated[int, option("Prompts of every task.", ge=1, le=MOST_PROMPTS)] = 20
    longest: Annotated[
        int | None,
        option("Longest prompt taken, in tokens; default: the models' context without the budget."),
    ] = None
    chat_template: Annotated[
        str,
        option(
            'How the first of "turns" becomes a prompt. auto: by the tokenizer\'s chat template, '
            "else in plain styles for base models; none: those styles; or a Jinja file."
        ),
    ] = "auto"


@dataclass(frozen=True)
class RecordSettings(Settings):
    """Which drafters are recorded on which prompts, and into which file."""

    out: Annotated[
        Path,
        option(
            "The recording, .parquet; or a folder with its sequences: of several drafters, or "
            "one that exists."
        ),
    ]
    selection: PromptSettings = PromptSettings()
    drafter: Annotated[tuple[str, ...], option(f"{DRAFTERS}; repeatable; default: model.")] = ()
    rule: RuleSettings = RuleSettings()
    depth: Annotated[
        int, option("Draft depth K at every position.", "--depth", "-k", ge=1, le=LONGEST_DRAFT)
    ] = 16
    budget: Annotated[int, option("New tokens a prompt.", ge=1, le=MOST_TOKENS)] = 96
    tree: Annotated[
        str | None,
        option("Dynamic trees too, WIDTHxLEVELS such as 4x6: for policies dynamic_tree:NODES."),
    ] = None
    batch: Annotated[
        int | None,
        option(
            "Sequences that the target writes at a time; 1: through the decode loop. "
            "Default: 32 on a CPU, 64 on a GPU, 1 for bfloat16 and captured passes."
        ),
    ] = None
    models: ModelSettings = ModelSettings()
    from_text: Annotated[
        Path | None,
        option(
            'JSON lines {"prompt", "output"} that an engine wrote: token ids, or strings of the '
            "tokenizer of --target. No target runs; --drafter is then an n-gram rule such as "
            "vllm:1,3, suffix, or model:FOLDER, a draft model."
        ),
    ] = None
    end_token: Annotated[
        tuple[int, ...], option("Token that ends a text of --from-text, repeatable.")
    ] = ()
    as_json: Annotated[bool, option("Print one JSON object on stdout.", "--json")] = False


@command
def record(settings: RecordSettings) -> None:
    """Record what a drafter proposes at every position of the target's own output, to depth K.

    The target writes its sequences many at a time. In float32 its tokens differ from those written
    one by one where two tokens nearly tie; `simspec run` tolerates these near-ties.

    A second call continues at the last whole shard. Prompts that do not fit are left out, which
    stderr and the card say. A drafter `sorted` has the drafts of all its exits written too.

    Several processes, or one for each GPU, share a recording: torchrun --nproc-per-node 4
    --no-python simspec record ...

    Example: simspec record prompts.jsonl --drafter early_exit --rule coupled --out mine.parquet

    Several drafters, on sequences written once: --drafter eagle --drafter medusa --out FOLDER/

    Along texts that an engine wrote: simspec record --from-text log.jsonl --drafter vllm:1,3
    --end-token 2 --out log.parquet
    """
    if settings.from_text is not None:
        _record_text(settings)
        return
    if not settings.selection.prompts:
        raise ValueError("no prompts are given: name a file of them, or --from-text FILE")
    from real.processes import launched_processes

    settings.models.use_threads()
    cards: dict[Path, dict] = {}
    with launched_processes() as processes, show_progress(processes.first) as progress:
        cards = record_drafters(settings, progress, processes)
    if not cards:  # of the first process
        return
    if settings.as_json:
        several = {path.stem: card for path, card in cards.items()}
        print(json.dumps(cards.get(settings.out, several)))
        return
    for path, card in cards.items():
        texts, rows = card["texts"], card["rows"]
        print_text(
            f"wrote {path}: {texts} sequences, {rows} rows, card {path.with_suffix('.json')}"
        )


def _record_text(settings: RecordSettings) -> None:
    from real.pair import dtype_of
    from real.provenance import check_device
    from real.record.texts import text_recorder, written_texts

    path, models = settings.from_text, settings.models
    assert path is not None
    if settings.selection.prompts:
        raise ValueError("prompts and --from-text are both given: give one of them")
    check_device(models.device)
    names = settings.drafter or ("prompt_lookup",)
    along = text_recorder(names, models.device, dtype_of(models.dtype))
    check_output(settings.out, path)
    tokenizer = Path(models.target) if models.target else None
    with show_progress() as progress:
        trace = along(
            written_texts(path, tokenizer), settings.depth, settings.end_token, f"text {path.name}",
            progress,
        )  # fmt: skip
    trace.save(settings.out)
    if settings.as_json:
        row = {"path": str(settings.out), "texts": trace.sequences, "rows": trace.rows}
        print(json.dumps(row))
    else:
        print_text(f"wrote {settings.out}: {trace.sequences} texts, {trace.rows} rows")


def record_drafters(
    settings: RecordSettings, progress: Progress = quiet, processes: "Processes | None" = None
) -> dict[Path, dict]:
    """Records the drafters of the settings; the data card of each recording, by its path.

    The target writes its sequences once, and passes over each once for all drafters. A second call
    continues at the last whole shard, and keeps whole recordings of a folder with these settings.
    Several `processes` share the work; all but the first end with ShareDone. ValueError for weights
    of one drafter, captured passes or a drafter named twice where several are recorded.
    """
    from real.processes import ALONE
    from real.record import Recording, RecordingFiles, record_all
    from real.record import Settings as Recorded
    from real.record.recorder import complete_settings, is_finished, make_recording, write_card
    from simspec import load_trace

    processes = processes or ALONE
    out, names = settings.out, settings.drafter or ("model",)
    several = len(names) > 1 or out.is_dir()
    outs = {name: out / f"{name}.parquet" if several else out for name in names}
    _check_request(settings, outs, several)
    models = replace(settings.models, device=processes.device(settings.models.device))
    prompts, origin = select_prompts(settings, models, names, progress)
    tree = parse_tree_size(settings.tree)
    asked = Recorded(settings.depth, settings.budget, settings.rule.made(), (), (), tree)
    if several:
        pairs = models.load_all(names)
    else:
        longest = max(len(prompt.token) for prompt in prompts)
        pairs = [models.load(names[0], settings.depth + 1, longest + settings.budget)]
    recordings: list[Recording] = []
    for path, pair in zip(outs.values(), pairs):
        files = RecordingFiles(path, sequence_cache=out / SEQUENCES if several else None)
        completed = complete_settings(asked, pair, settings.batch)
        recordings.append(make_recording(pair, completed, prompts, files, origin))
    unfinished = [r for r in recordings if not (several and is_finished(r, prompts))]
    if unfinished:
        record_all(unfinished, prompts, progress, processes)
    else:
        processes.leave_to_first()
    cards = {}
    for recording, pair in zip(recordings, pairs):
        path = recording.files.trace
        trace = load_trace(path)
        if pair.drafter.name == "sorted" and not asked.rule.sampled:
            _record_exits(pair, trace, path)
        cards[path] = write_card(path, trace, origin, len(prompts))
    return cards


def _record_exits(pair: "Pair", trace: "Trace", path: Path) -> None:
    """The drafts of all exits of a sorted drafter, next to its recording."""
    from real.drafters.sorted import SortedDrafter
    from real.record.exits import record_exits
    from real.rerun import rule_of
    from simspec.trace.exits import exits_path, write_exits

    assert isinstance(pair.drafter, SortedDrafter)
    drafts = record_exits(pair.drafter, pair.target.decoder, trace, rule_of(trace))
    write_exits(drafts, trace, exits_path(path))


def _check_request(settings: RecordSettings, outs: dict[str, Path], several: bool) -> None:
    """What is wrong with a request, before models are loaded."""
    from real.drafters import BUILTIN
    from real.record.rows import check_history_free

    out, names, models = settings.out, settings.drafter or ("model",), settings.models
    if not several and out.suffix != ".parquet":
        raise ValueError(f"{out} is no recording's name; expected one that ends in .parquet")
    if several and models.weights is not None:
        raise ValueError(
            "--weights names the folder of one drafter; expected a folder of all by --models"
        )
    if several and models.engine != "eager":
        raise ValueError(
            f"several drafters are recorded on engine eager, not {models.engine!r}; "
            "record them one by one"
        )
    if len(outs) < len(names):
        raise ValueError(f"drafters {', '.join(names)}: expected each once")
    written = [*outs.values(), *([out / SEQUENCES] if several else [])]
    for path in written if out.exists() or not several else [out]:
        for file in {path, path.with_suffix(".json")}:
            check_output(file, *settings.selection.prompts)
    for name in names:
        if name in BUILTIN:
            check_history_free(BUILTIN[name].drafter)


def longest_prompt(context: int, budget: int) -> int:
    """Tokens that a budget of new tokens leaves of the models' context; ValueError for none."""
    if budget >= context:
        raise ValueError(
            f"a budget of {budget} new tokens leaves no room for a prompt in the models' context "
            f"of {context}; use a smaller --budget, or allow longer sequences by --longest"
        )
    return context - budget


def select_prompts(
    settings: RecordSettings,
    models: ModelSettings,
    drafters: Sequence[str],
    progress: Progress = quiet,
) -> "tuple[list[Prompt], PromptOrigin]":
    """The prompts that fit into the models of all drafters, and where they come from."""
    from real.model.checkpoint import load_config, load_tokenizer
    from real.prompts import (
        LeftOut,
        PromptFormat,
        PromptOrigin,
        draw,
        load_chat_template,
        read_prompts,
    )

    asked, path = settings.selection, models.target_path
    context = min(models.context(drafter) for drafter in drafters)
    template, vocab = load_chat_template(path, asked.chat_template), load_config(path).vocab_size
    form = PromptFormat(load_tokenizer(path), template, vocab)
    limit = asked.longest or longest_prompt(context, settings.budget)
    read = [read_prompts(file, form, limit) for file in asked.prompts]
    every = [prompt for part, _ in read for prompt in part]
    selected = draw(every, asked.per_task, settings.rule.seed)
    left_out = sum((left for _, left in read), LeftOut())
    if left_out.count:
        progress("reading prompts", len(selected), len(selected), left_out.describe())
    return selected, PromptOrigin(left_out, form.metadata())
