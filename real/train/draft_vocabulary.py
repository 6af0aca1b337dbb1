"""The tokens of a draft vocabulary: the most frequent ones of what drafters learn from."""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor


def count_tokens(parts: Iterable[np.ndarray], vocab: int) -> np.ndarray:
    """How often each token occurs, int64 `[vocab]`."""
    total = np.zeros(vocab, np.int64)
    for part in parts:
        total += np.bincount(np.asarray(part).ravel(), minlength=vocab)
    return total


def most_frequent(counts: np.ndarray, size: int) -> Tensor:
    """The `size` tokens of largest count, ascending int64 `[size]`; ties go to the smaller id.

    ValueError for fewer than 2, or more than there are.
    """
    check_size(size, len(counts))
    best = np.argsort(-counts, kind="stable")[:size]
    return torch.from_numpy(np.sort(best))


def check_size(size: int, vocab: int) -> None:
    """ValueError for a draft vocabulary of fewer than 2 tokens, or more than the target's."""
    if not 2 <= size <= vocab:
        raise ValueError(
            f"--draft-vocab is {size}; expected 2 to {vocab} tokens, such as {vocab // 4}, "
            "or none for all of them"
        )


def coverage(token: Tensor | None, parts: Iterable[np.ndarray]) -> float | None:
    """Share of the tokens of `parts` that a draft vocabulary holds; None without one."""
    if token is None:
        return None
    everything = np.concatenate([np.asarray(part).ravel() for part in parts])
    return round(float(np.isin(everything, token.cpu().numpy()).mean()), 4)
