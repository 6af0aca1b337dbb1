"""Recording a drafter on prompts: the trace file and its card."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from real.decode.features import drafter_features
from real.draft import check_grows
from real.files import replace_json
from real.jobs.models import ModelSettings
from real.model.checkpoint import load_tokenizer
from real.pair import Pair
from real.progress import Progress, quiet
from real.prompts import (
    UNKNOWN_ORIGIN,
    LeftOut,
    Prompt,
    PromptFormat,
    PromptOrigin,
    draw,
    load_chat_template,
    read_prompts,
)
from real.record import Recording, RecordingFiles, Settings, record_all
from real.record.data_card import card
from real.record.metadata import describe
from real.record.target_sequence import default_batch
from simspec import Trace
from simspec.files import check_output


@dataclass(frozen=True)
class PromptSettings:
    """Which prompts of JSON-lines files are recorded, and how their turns become tokens.

    | field | meaning |
    | --- | --- |
    | files | as `real.prompts.read_rows` reads them |
    | per_task, seed | so many prompts of every task, drawn by the seed |
    | longest | most tokens of a prompt; None: the models' context without the budget |
    | chat_template | auto: the tokenizer's, where it has one; none: plain styles; or a file |
    | system | the system prompt, for a chat template |
    """

    files: tuple[Path, ...]
    per_task: int = 20
    longest: int | None = None
    seed: int = 0
    chat_template: str = "auto"
    system: str = ""

    def __post_init__(self) -> None:
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
    check_outputs([out], prompts)
    selected, origin = select_prompts(prompts, models, [drafter], settings.budget, progress)
    most = max(len(p.token) for p in selected)
    pair = models.load(drafter, settings.K + 1, most + settings.budget)
    settings = complete_settings(settings, pair, batch)
    return record_to(out, pair, selected, settings, progress, origin=origin)


def record_to(
    out: Path,
    pair: Pair,
    prompts: Sequence[Prompt],
    settings: Settings,
    progress: Progress = quiet,
    sequence_cache: Path | None = None,
    origin: PromptOrigin = UNKNOWN_ORIGIN,
) -> dict:
    """Records a trace with its data card beside it (`<out>.json`), and returns the card.

    sequence_cache: a file that keeps the target's sequences for further recordings. `origin` is
    stated in the metadata and the card.
    """
    files = RecordingFiles(out, sequence_cache=sequence_cache)
    recording = make_recording(pair, settings, prompts, files, origin)
    (trace,) = record_all([recording], prompts, progress)
    return write_card(out, trace, origin, len(prompts))


def check_outputs(outs: Sequence[Path], prompts: PromptSettings) -> None:
    """ValueError where recordings cannot be written, or would replace their prompts."""
    for out in outs:
        for path in {out, out.with_suffix(".json")}:
            check_output(path, *prompts.files)


def select_prompts(
    prompts: PromptSettings,
    models: ModelSettings,
    drafters: Sequence[str],
    budget: int,
    progress: Progress,
) -> tuple[list[Prompt], PromptOrigin]:
    """The prompts that fit into the models of all drafters, and where they come from."""
    path = models.target_path
    context = min(models.context(drafter) for drafter in drafters)
    form = PromptFormat(
        load_tokenizer(path), load_chat_template(path, prompts.chat_template, prompts.system)
    )
    longest = prompts.longest
    if longest is None:
        longest = longest_prompt(context, budget)
    selected, left_out = prompts.read(form, longest)
    if left_out.count:
        progress("reading prompts", len(selected), len(selected), left_out.describe())
    return selected, PromptOrigin(left_out, form.metadata())


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
