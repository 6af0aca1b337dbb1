"""Repetition in sequences, and the groups of sequences that results are given for."""

from collections.abc import Iterable, Sequence

import numpy as np

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
