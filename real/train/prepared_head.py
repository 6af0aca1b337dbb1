"""The draft head of a training, with its draft vocabulary."""

from typing import Any

from torch import nn

from real.train.draft_vocabulary import check_size, most_frequent
from real.train.drafter_data import DrafterData
from real.train.drafter_training import DrafterTraining, new_head


def prepared_head(training: DrafterTraining, data: DrafterData) -> nn.Module:
    """`new_head`, restricted to the most frequent tokens where a draft vocabulary is asked for.

    A draft vocabulary of all tokens is none. ValueError for a size that cannot be, or a drafter
    without a vocabulary head that can be restricted.
    """
    head: Any = new_head(training, data.target)
    size = training.draft_vocab
    vocab = data.target.config.vocab
    if size:
        check_size(size, vocab)
        if not hasattr(head, "restrict") or data.counts is None:
            raise ValueError(f"{training.drafter} has no draft vocabulary; leave out --draft-vocab")
        if size < vocab:
            head.restrict(data.target, most_frequent(data.counts(), size).to(data.target.device))
    return head
