"""Recording a drafter on prompts: the trace file and its card."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from real.decode.features import drafter_features
from real.draft import check_grows
from real.drafters import BUILTIN
from real.files import replace_json
from real.jobs.models import ModelSettings
from real.jobs.prompt_selection import PromptSettings, select_prompts, with_later_turns
from real.pair import Pair
from real.processes import ALONE, Processes
from real.progress import Progress, quiet
from real.prompts import UNKNOWN_ORIGIN, Prompt, PromptOrigin
from real.record import Recording, RecordingFiles, Settings, record_all
from real.record.data_card import card
from real.record.metadata import describe
from real.record.stepwise import check_history_free
from real.record.target_sequence import default_batch
from simspec import Trace
from simspec.output.files import check_output


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
    """Records a trace with its data card beside it (`<out>.json`), and returns the card.

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
    meta = replace(meta, chat=dict(origin.chat))
    return Recording(pair.target, pair.drafter, settings, files, meta)


def write_card(out: Path, trace: Trace, origin: PromptOrigin, recorded: int) -> dict:
    """Writes the data card of a recording of so many prompts beside it, and returns it."""
    described = card(out, trace)
    if origin.left_out is not None:
        described["prompts"] = origin.left_out.to_json() | {"recorded": recorded}
    replace_json(out.with_suffix(".json"), described)
    return described
