"""One prompt, which prompts of a file are used, and how much a sequence repeats."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np


class PromptError(ValueError):
    """The prompts cannot be read."""


@dataclass(frozen=True)
class Prompt:
    """One prompt.

    | field | meaning |
    | --- | --- |
    | id, task, source | of its row; the source with its licence where known |
    | token | token ids |
    | turns | all user turns of its conversation; () for plain `text` |
    """

    id: str
    task: str
    source: str
    token: list[int]
    turns: tuple[str, ...] = ()


def draw(prompts: Sequence[Prompt], per_task: int, seed: int) -> list[Prompt]:
    """Sample up to `per_task` prompts of each task without replacement, in file order."""
    kept: list[int] = []
    for task in dict.fromkeys(p.task for p in prompts):
        of = [i for i, p in enumerate(prompts) if p.task == task]
        pick = np.random.default_rng(seed).permutation(len(of))[:per_task]
        kept += sorted(of[i] for i in pick)
    return [prompts[i] for i in kept]


ALL, LOW_REPEAT, LOOPS = "all", "low_repeat", 0.1
"""Groups of texts; LOW_REPEAT holds those whose share of repeated 8-grams is under
LOOPS, because repetitive text inflates acceptance."""


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
