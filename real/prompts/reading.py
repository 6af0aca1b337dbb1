"""Prompts of a JSON-lines file as tokens, and how many of them are left out."""

from pathlib import Path

from real.prompts.format import PromptFormat
from real.prompts.left_out import LeftOut
from real.prompts.prompt import Prompt, PromptError
from real.prompts.rows import PromptRow, read_rows


def read_prompts(path: Path, form: PromptFormat, longest: int) -> tuple[list[Prompt], LeftOut]:
    """Reads prompts of at most `longest` tokens from a file of `read_rows`: (prompts, left out).

    "text" is used unchanged; of "turns" the first becomes a user message, or the prompt of its
    task's style. PromptError for an invalid row, and if no prompt remains.
    """
    rows = read_rows(path)
    lengths, kept = [], []
    for row in rows:
        token = _tokens(row, form, path)
        lengths.append(len(token))
        if 1 <= len(token) <= longest:
            kept.append(Prompt(row.id, row.task, row.source, token, row.turns))
    if not kept:
        raise PromptError(
            f"{path} holds no prompt of 1 to {longest} tokens; "
            "raise the limit or bring other prompts"
        )
    too_long, most = sum(n > longest for n in lengths), max(lengths)
    return kept, LeftOut(len(rows), lengths.count(0), too_long, longest, most)


def _tokens(row: PromptRow, form: PromptFormat, path: Path) -> list[int]:
    """[] for a row without text."""
    if row.text is not None:
        return form.text(row.text) if row.text else []
    try:
        return form.turns(row.task, row.turns[:1]) if row.turns[0] else []
    except PromptError as error:
        raise PromptError(f"{path}, prompt {row.id!r}: {error}") from error
