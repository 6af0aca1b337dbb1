"""Leakage: whether a prompt repeats words of another one, which a drafter may have learned from."""

import re
from collections.abc import Iterable, Sequence
from hashlib import blake2b

import numpy as np

WORDS = 13
"""Words in a row that two prompts share by copying, not by chance (GPT-3, appendix C)."""
SAMPLE = 8
"""A file of hashes holds those divisible by it."""

Run = tuple[str, ...]


def words(text: str) -> list[str]:
    """Words of letters, digits and underscores, in lower case."""
    return re.findall(r"\w+", text.lower())


def set_instruction(prompts: Sequence[str]) -> int:
    """How many leading words at least half of the prompts of a set share: its instruction."""
    texts = [words(prompt) for prompt in prompts]
    length, group = 0, texts
    while group:
        by_word: dict[str, list[list[str]]] = {}
        for text in group:
            if len(text) > length:
                by_word.setdefault(text[length], []).append(text)
        group = max(by_word.values(), key=len, default=[])
        if 2 * len(group) < len(texts) or len(group) < 2:
            break
        length += 1
    return length


def word_runs(turns: Iterable[str], instruction: int = 0) -> set[Run]:
    """All runs of `WORDS` words of a prompt's turns, without the set's instruction in the first."""
    runs: set[Run] = set()
    for i, turn in enumerate(turns):
        text = words(turn)[0 if i else instruction :]
        runs |= {tuple(text[j : j + WORDS]) for j in range(len(text) - WORDS + 1)}
    return runs


def sampled_hashes(runs: Iterable[Run]) -> np.ndarray:
    """uint32, ascending: hashes of one in `SAMPLE` runs, the same of every text that holds them.

    Half of 64 bits: a run that was not copied is taken for one with 32,944 others once in 130,000.
    They say whether a text of some dozens of words was copied, and nothing about what it says.
    """
    hashes = {
        int.from_bytes(blake2b(" ".join(run).encode(), digest_size=8).digest(), "big")
        for run in runs
    }
    return np.unique(np.array([h >> 32 for h in hashes if h % SAMPLE == 0], np.uint32))


def leaks(turns: Iterable[str], taken: set[Run], instruction: int = 0) -> bool:
    """Whether a prompt shares a run with `taken`; a short turn shares itself whole."""
    return not taken.isdisjoint(word_runs(turns, instruction))
