"""What drafters of a target learn from and are evaluated on: text that the target writes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from real.model.decoder import Decoder
from real.processes import ALONE, Processes
from real.progress import Progress, quiet
from real.prompts import PromptFormat, load_chat_template
from real.provenance import multiplies_bfloat16
from real.train import sequences
from real.train.features import FeatureStore, TrainingSet
from real.train.settings import Training
from real.train.text import read_prompt_set

Continuation = tuple[list[int], np.ndarray]
"""A prompt, and the new tokens that the target wrote after it greedily."""
K = 5
"""Draft length of every figure in a card."""
NEW_TOKENS = 192
"""Most new tokens that the target writes after a prompt; at most half of its context."""
EVALUATED = 48
"""New tokens of each sequence that drafters are evaluated on."""


@dataclass(frozen=True)
class TrainingData:
    """A target, the sequences that its drafters learn from, and held-out ones."""

    # target, made_for: the target, and the hashes that identify it
    target: Decoder
    made_for: Mapping[str, str]
    # end_tokens, context: tokens that end a sequence, and the longest one it is meant for
    end_tokens: tuple[int, ...]
    context: int
    learning: TrainingSet  # the sequences that are learned, with their features
    length: int  # most tokens of a sequence that the target continues
    validation: Sequence[Continuation]  # held-out continuations that weights are chosen by
    evaluation: Sequence[Continuation]  # held-out continuations that drafters are evaluated on
    mixed: bool  # train in bf16 autocast
    source: Mapping[str, object]  # where the text comes from, for cards
    prompts: Sequence[list[int]]  # training prompts, continued in this order, again and again
    written: sequences.Sequences  # the sequences that the target wrote

    @property
    def counts(self) -> np.ndarray:
        """How often each token occurs in what is learned, int64 `[vocab]`."""
        learned = self.learning.sequences.learned()
        return np.bincount(learned, minlength=self.target.config.vocab)

    def greedy_pairs(self, count: int) -> list[Continuation]:
        """Up to `count` training prompts with their first 64 greedy tokens."""
        greedy = sequences.is_greedy(np.arange(len(self.written)), len(self.prompts))
        pairs = [self.written.pair(int(i)) for i in np.flatnonzero(greedy)[:count]]
        return [(prompt, new_tokens[:64]) for prompt, new_tokens in pairs]


def load_data(
    settings: Training, progress: Progress = quiet, processes: Processes = ALONE
) -> TrainingData:
    """The target writes what its drafters learn from, unless the work folder has it.

    Several `processes` share what is learned from, and all but the first end with ShareDone.

    Drafters learn the new tokens after training prompts, and text (`learned_text`). Held-out
    prompts are continued greedily: a quarter of them chooses weights, the others evaluate them.
    """
    path, work = settings.target_path, settings.work_folder
    loaded = sequences.LoadedTarget.of(path, settings.device, settings.dtype)
    target, hashes, ends = loaded.decoder, loaded.made_for, loaded.end_tokens
    assert target.context is not None  # a checkpoint names it
    length = max(1, min(NEW_TOKENS, target.context // 2))
    form = PromptFormat(loaded.tokenizer, load_chat_template(path), target.config.vocab)
    with processes.first_before_others():
        text, learned = sequences.learned_text(settings, form, progress)
        longest = min(settings.longest, target.context - length)
        prompts = read_prompt_set(settings, form, longest, progress)
    writing = sequences.Writing(loaded, prompts, settings.distil_tokens, length, settings.seed)
    written = sequences.write_sequences(writing, work, progress, processes)
    processes.leave_to_first()
    read = sequences.joined([written, *text])
    if int(read.token.max()) >= target.config.vocab:
        raise ValueError(f"{work} holds sequences of a larger vocabulary; choose another --work")
    heldout = sequences.heldout_sequences(writing, EVALUATED, work)
    pairs = [heldout.pair(i) for i in range(len(heldout))]
    cut, short = max(1, len(pairs) // 4), max(K + 1, EVALUATED // 2)
    mixed = multiplies_bfloat16(target.device)
    dtype = torch.bfloat16 if mixed else target.dtype
    source: dict[str, Any] = {
        **prompts.source,
        "prompts_sha256": prompts.sha256,
        "sequences": len(read),
        "new_tokens": written.new_tokens,
        "features": str(dtype).removeprefix("torch."),
        **({"learned_text": learned} if learned else {}),
        **({"written_in": settings.dtype} if loaded.writer is not target else {}),
    }
    features = FeatureStore(work / "features", target, read, dtype, loaded.writer)
    return TrainingData(
        target=target,
        made_for=hashes,
        end_tokens=ends,
        context=target.context,
        learning=TrainingSet(read, features, progress),
        length=longest + length,
        validation=[(prompt, new_tokens[:short]) for prompt, new_tokens in pairs[:cut]],
        evaluation=pairs[cut:],
        mixed=mixed,
        source=source,
        prompts=prompts.training,
        written=written,
    )
