"""What all drafters of one target are trained and evaluated on."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from torch import Tensor

from real.draft import TrainingBatch
from real.model.checkpoint import load_decoder
from real.model.decoder import Decoder
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
from real.train.draft_vocabulary import count_tokens
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
