"""The prompts of a recording job: read, formatted, drawn, and continued with later turns."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from real.jobs.models import ModelSettings
from real.model.checkpoint import load_tokenizer
from real.processes import ALONE, Processes
from real.progress import Progress, quiet
from real.prompts import (
    Conversation,
    LeftOut,
    Prompt,
    PromptFormat,
    PromptOrigin,
    draw,
    load_chat_template,
    read_prompts,
)
from real.record import Recording
from real.record.later_turns import add_later_turns
from real.record.sequence_cache import SequenceCache

TURNS = ("first", "all")


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
    """The prompts with those of later turns behind them, if there are any.

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
