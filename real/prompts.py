"""Prompts: rows of JSON lines into tokens, in the style that a base model continues."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np


class PromptError(ValueError):
    """The prompts cannot be read."""


ALL, LOW_REPEAT, LOOPS = "all", "low_repeat", 0.1
"""Groups of texts; LOW_REPEAT holds those whose share of repeated 8-grams is under
LOOPS, because repetitive text inflates acceptance."""


@dataclass(frozen=True)
class Prompt:
    """One prompt: its id, task, source (with licence where known) and tokens."""

    id: str
    task: str
    source: str
    token: list[int]


# Prompt templates for a base model by task; tasks not listed use DIALOGUE.
STYLES = {"math": "Question: {}\nAnswer:", "code": "{}"}
DIALOGUE = "User: {}\n\nAssistant:"

# Public evaluation sets, keyed by the task name in their rows: (our task, license of the prompts).
SETS = {
    "gsm8k": ("math", "MIT"),
    "humaneval": ("code", "MIT"),
    "mbpp": ("code", "CC-BY-4.0"),
    "mt_bench": ("dialogue", "Apache-2.0"),
    "summarization_qmsum": ("summarization", "MIT"),
    "summarization_mts_dialog": ("summarization", "CC-BY-4.0"),
    "finance_qa_tatqa": ("qa", "CC-BY-4.0"),
    "spider_text_to_sql": ("sql", "CC-BY-SA-4.0"),
}


def read_prompts(path: Path, tokenizer, longest: int) -> list[Prompt]:
    """Read prompts of at most `longest` tokens from a JSON-lines file.

    Each row is `{"id", "task", "text" or "turns", "source"?}`. "text" is used unchanged; the first
    of "turns" is formatted with its task's template (STYLES, else DIALOGUE). Rows of the public
    sets in SETS get our task name, and their license is appended to the source.
    Raises PromptError for an invalid row, or if no prompt remains.
    """
    found = []
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise PromptError(f"{path} cannot be read as prompts: {error}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            source = str(row.get("source", Path(path).name))
            task, licence = SETS.get(str(row["task"]).split("/")[0], (str(row["task"]), None))
            source = f"{source.split(':')[0]} ({licence})" if licence else source
            text = row["text"] if "text" in row else _styled(task, row["turns"])
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            name = str(row.get("id", number))
        except (
            ValueError,
            KeyError,
            TypeError,
            IndexError,
            AttributeError,
            RecursionError,
        ) as error:
            raise PromptError(
                f'{path} line {number}: expected a JSON object with "task" and "text" '
                f'(or "turns"), got {line[:60]!r}'
            ) from error
        if 1 <= len(ids) <= longest:
            found.append(Prompt(name, task, source, ids))
    if not found:
        raise PromptError(
            f"{path} holds no prompt of 1 to {longest} tokens; "
            "raise the limit or bring other prompts"
        )
    return found


def _styled(task: str, turns: list[str]) -> str:
    if not isinstance(turns, list) or not isinstance(turns[0], str):
        raise TypeError("turns is no list of strings")
    return STYLES.get(task, DIALOGUE).format(turns[0])


def draw(prompts: Sequence[Prompt], per_task: int, seed: int) -> list[Prompt]:
    """Sample up to `per_task` prompts of each task without replacement, in file order."""
    kept: list[int] = []
    for task in dict.fromkeys(p.task for p in prompts):
        of = [i for i, p in enumerate(prompts) if p.task == task]
        pick = np.random.default_rng(seed).permutation(len(of))[:per_task]
        kept += sorted(of[i] for i in pick)
    return [prompts[i] for i in kept]


def repeated_ngrams(texts: Iterable[np.ndarray], n: int = 8) -> float:
    """Share of n-grams that already occurred earlier in the same sequence."""
    seen = total = 0
    for text in texts:
        grams = [tuple(text[i : i + n].tolist()) for i in range(len(text) - n + 1)]
        total += len(grams)
        seen += len(grams) - len(set(grams))
    return seen / total if total else 0.0


def groups(texts: Sequence[np.ndarray], tasks: Sequence[str]) -> dict[str, list[int]]:
    """Sequence indices of each group: ALL, LOW_REPEAT (even if empty) and every "task:NAME".

    LOW_REPEAT holds the sequences whose share of repeated 8-grams is below LOOPS.
    """
    everyone = list(range(len(texts)))
    low = [s for s in everyone if repeated_ngrams([np.asarray(texts[s])]) < LOOPS]
    return {ALL: everyone, LOW_REPEAT: low} | {
        f"task:{task}": [s for s in everyone if tasks[s] == task] for task in dict.fromkeys(tasks)
    }
