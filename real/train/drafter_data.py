"""What all drafters of one target are trained and evaluated on."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from real.draft import TrainingBatch
from real.model.checkpoint import load_decoder
from real.model.decoder import Decoder
from real.model.draft_head import load_draft_head, load_vocabulary
from real.model.fingerprint import made_for
from real.processes import ALONE, Processes
from real.progress import Progress, quiet
from real.train.accepted_length import Continuation
from real.train.config import TrainConfig
from real.train.corpus import END
from real.train.distillation import (
    distilled_sequences,
    greedy_pairs,
    heldout_continuations,
    learned_sequences,
    mixed_batches,
)
from real.train.draft_vocabulary import check_size, count_tokens, most_frequent
from real.train.drafter_training import DrafterTraining, new_head, recipe_of
from real.train.skip_acceptance import TokenPair

K = 5
"""Draft length of every figure in a card."""


@dataclass(frozen=True)
class DrafterData:
    """Target, training batches and held-out sequences that its drafters share.

    | field | meaning |
    | --- | --- |
    | target, made_for | the target, and the hashes that identify it |
    | end_tokens, context | tokens that end a sequence, and the longest one it is meant for |
    | batches | (schedule, names of features) -> (step -> batch, or its `token [rows, n + 1]`) |
    | validation | held-out continuations that weights are chosen by |
    | evaluation | held-out continuations that drafters are evaluated on |
    | mixed | train in bf16 autocast |
    | blend | share of `batches` that the target generated, for the record |
    | counts | how often each token occurs in what is learned, int64 `[vocab]` |
    | source | where the text comes from, for cards; {} for text of `simspec train` |
    """

    target: Decoder
    made_for: Mapping[str, str]
    end_tokens: tuple[int, ...]
    context: int
    batches: Callable[..., Callable[[int], TrainingBatch | Tensor]]
    validation: Sequence[Continuation]
    evaluation: Sequence[Continuation]
    mixed: bool
    blend: float
    counts: Callable[[], np.ndarray] | None = None
    source: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class TrainedTarget:
    """Sequences that a trained target generated, and the data of its drafters."""

    distilled: np.ndarray
    data: DrafterData

    def greedy_pairs(self, count: int) -> list[TokenPair]:
        """Up to `count` training sequences generated greedily, as prompt and new tokens."""
        return greedy_pairs(self.distilled, count)


def load_trained_target(
    config: TrainConfig,
    tokenizer,
    tokens,
    out: Path,
    work: Path,
    progress: Progress = quiet,
    processes: Processes = ALONE,
) -> TrainedTarget:
    """Loads the target of `out`; it generates what drafters learn from, unless `work` has it.

    Several `processes` share that, and all but the first end with ShareDone.
    """
    target = load_decoder(out / "target", device=config.device)
    distilled = distilled_sequences(config, target, tokens, work, progress, processes=processes)
    end_tokens = (tokenizer.token_to_id(END),)
    heldout = heldout_continuations(target, distilled, config.evaluation_tokens, end_tokens)
    cut, short = max(1, len(heldout) // 4), max(K + 1, config.evaluation_tokens // 2)
    model_config = json.loads((out / "target" / "config.json").read_text(encoding="utf-8"))
    data = DrafterData(
        target=target,
        made_for=made_for(out / "target", target, tokenizer),
        end_tokens=end_tokens,
        context=model_config["max_position_embeddings"],
        batches=lambda schedule, reads=(): mixed_batches(config, tokens, distilled, schedule),
        validation=[(prompt, new_tokens[:short]) for prompt, new_tokens in heldout[:cut]],
        evaluation=heldout[cut:],
        mixed=config.autocast,
        blend=config.blend,
        counts=lambda: count_tokens([learned_sequences(distilled)], target.config.vocab),
    )
    return TrainedTarget(distilled, data)


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
