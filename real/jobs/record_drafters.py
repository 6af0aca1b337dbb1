"""Recording several drafters on one target's sequences, which are written once."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from real.jobs.models import ModelSettings
from real.jobs.prompt_selection import PromptSettings, select_prompts, with_later_turns
from real.jobs.record import (
    check_outputs,
    check_recordable,
    complete_settings,
    make_recording,
    write_card,
)
from real.processes import ALONE, Processes
from real.progress import Progress, quiet
from real.prompts import Prompt
from real.record import Recording, RecordingFiles, Settings, record_all
from simspec import load_trace

SEQUENCES = "sequences.json"
"""The target's sequences beside the recordings of several drafters."""


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
    """As `record_prompts`, several drafters into `folder`/NAME.parquet; returns their data cards.

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
