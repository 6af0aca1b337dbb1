"""Recording a drafter on prompts: the trace file and its card."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from real.decode.features import drafter_features
from real.draft import check_grows
from real.files import replace_json
from real.jobs.models import ModelSettings
from real.pair import Pair
from real.progress import Progress, quiet
from real.prompts import Prompt, draw, read_prompts
from real.record import RecordingFiles, Settings, record
from real.record.data_card import card
from real.record.metadata import describe
from real.record.target_sequence import default_batch
from simspec.files import check_output


@dataclass(frozen=True)
class PromptSettings:
    """Prompts of JSON-lines files: `per_task` of every task, drawn by `seed`, up to `longest`."""

    files: tuple[Path, ...]
    per_task: int = 20
    longest: int = 400
    seed: int = 0

    def __post_init__(self) -> None:
        if self.per_task < 1:
            raise ValueError(f"{self.per_task} prompts per task; expected at least 1")

    def read(self, tokenizer) -> list[Prompt]:
        """The prompts, tokenized."""
        prompts = [p for path in self.files for p in read_prompts(path, tokenizer, self.longest)]
        return draw(prompts, self.per_task, self.seed)


def record_prompts(
    out: Path,
    prompts: PromptSettings,
    models: ModelSettings,
    drafter: str,
    settings: Settings,
    progress: Progress = quiet,
    batch: int | None = None,
) -> dict:
    """Records `drafter` on these prompts into `out`, and returns the data card.

    End tokens and features of `settings` come from the models; None: the device's default `batch`.
    A second call continues at the last whole shard.
    """
    if out.suffix != ".parquet":
        raise ValueError(f"{out} is no recording's name; expected one that ends in .parquet")
    for path in (out, out.with_suffix(".json")):
        check_output(path, *prompts.files)
    pair = models.load(drafter, settings.K + 1, prompts.longest + settings.budget)
    selected = prompts.read(pair.tokenizer)
    if settings.tree:
        check_grows(pair.drafter, settings.tree[1])
    features = () if settings.rule.sampled else drafter_features(pair.drafter)
    settings = replace(
        settings,
        end_tokens=pair.end_tokens,
        features=features,
        batch=default_batch(pair.target) if batch is None else batch,
    )
    return record_to(out, pair, selected, settings, progress)


def record_to(
    out: Path,
    pair: Pair,
    prompts: Sequence[Prompt],
    settings: Settings,
    progress: Progress = quiet,
    sequence_cache: Path | None = None,
) -> dict:
    """Records a trace with its data card beside it (`<out>.json`), and returns the card.

    sequence_cache: a file that keeps the target's sequences for further recordings.
    """
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
    trace = record(
        pair.target,
        pair.drafter,
        settings,
        prompts,
        RecordingFiles(out, sequence_cache=sequence_cache),
        meta,
        name_recording(progress, out.stem),
    )
    described = card(out, trace)
    replace_json(out.with_suffix(".json"), described)
    return described


def name_recording(progress: Progress, name: str) -> Progress:
    """Adds the recording's name to the labels of its steps."""

    def named(label: str, done: int, total: int, note: str = "") -> None:
        progress(f"{label} {name}", done, total, note)

    return named
