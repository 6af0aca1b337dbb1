"""The draft head of a training, with its draft vocabulary."""

from typing import Any

from torch import nn

from real.model.checkpoint import load_decoder
from real.model.decoder import Decoder
from real.model.draft_head import load_draft_head, load_vocabulary
from real.train.draft_vocabulary import check_size, most_frequent
from real.train.drafter_data import DrafterData
from real.train.drafter_training import DrafterTraining, new_head, recipe_of


def prepared_head(training: DrafterTraining, data: DrafterData) -> nn.Module:
    """`new_head`, or the weights that it starts from, with the draft vocabulary that is asked for.

    That holds the most frequent tokens; one of all tokens is none. ValueError for a size that
    cannot be, or a drafter without a vocabulary head that can be restricted.
    """
    head: Any = new_head(training, data.target)
    if training.start is not None:
        _start(head, training, data)
    size = training.draft_vocab
    vocab = data.target.config.vocab
    if size:
        check_size(size, vocab)
        if not hasattr(head, "restrict") or data.counts is None:
            raise ValueError(f"{training.drafter} has no draft vocabulary; leave out --draft-vocab")
        if size < vocab:
            head.restrict(data.target, most_frequent(data.counts(), size).to(data.target.device))
    return head


def _start(head: Any, training: DrafterTraining, data: DrafterData) -> None:
    """Copies the weights that training starts from; ValueError where they are of another form."""
    recipe = recipe_of(training.drafter)
    assert training.start is not None
    stored: nn.Module
    if isinstance(head, Decoder):
        stored = load_decoder(training.start, device=str(data.target.device))
        token = load_vocabulary(training.start, data.target.config.vocab)
    else:
        stored = load_draft_head(
            recipe.head, training.start, recipe.file, data.target, data.made_for
        )
        token = getattr(stored, "draft_token", None)
    if token is not None:
        _check_restarted(training, stored, data.target.config.vocab)
    try:
        head.load_state_dict(stored.state_dict())
    except RuntimeError as error:
        raise ValueError(
            f"--from {training.start.name} has other settings; repeat its --set options"
        ) from error


def _check_restarted(training: DrafterTraining, stored: nn.Module, vocab: int) -> None:
    """ValueError unless a drafter that has a draft vocabulary can be given another one.

    Scores of the tokens outside it come from rows of the target's head, or of its own embedding.
    """
    assert training.start is not None
    name = f"--from {training.start.name} drafts from a part of the vocabulary"
    if getattr(stored, "settings", {}).get("own_head"):
        raise ValueError(f"{name} and stores no other rows of its head; start from the whole one")
    if not training.draft_vocab:
        raise ValueError(f"{name}; say which part now: --draft-vocab N, {vocab} for all of it")
