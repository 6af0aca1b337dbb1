"""What drafters of any target learn from: sequences that it writes itself behind prompts."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from real.model.checkpoint import load_decoder, load_tokenizer
from real.model.decoder import Decoder
from real.model.fingerprint import made_for
from real.model.hf_config import end_tokens
from real.processes import ALONE, Processes
from real.progress import Progress, quiet
from real.train.config import TrainConfig
from real.train.draft_vocabulary import count_tokens
from real.train.drafter_data import DrafterData, K
from real.train.feature_store import FeatureStore, TrainingSet
from real.train.prompt_set import PromptSet, PromptSources, read_prompt_set
from real.train.sequence_shards import (
    Sequences,
    Writing,
    heldout_sequences,
    is_greedy,
    write_sequences,
)
from real.train.skip_acceptance import TokenPair


@dataclass(frozen=True)
class TargetCheckpoint:
    """A target to train drafters for, loaded.

    | field | meaning |
    | --- | --- |
    | path | its folder or hub name |
    | decoder, tokenizer | as `load_pair` loads them |
    | writer | writes training sequences and computes their features: the decoder, or one of \
another dtype |
    | made_for | the hashes that its drafters are stored with |
    | end_tokens | every token that its checkpoint names as an end |
    | context | the longest sequence that it is meant for |
    """

    path: str | Path
    decoder: Decoder
    writer: Decoder
    tokenizer: Any
    made_for: Mapping[str, str]
    end_tokens: tuple[int, ...]
    context: int


@dataclass(frozen=True)
class TargetData:
    """The prompts and sequences of one target, and what its drafters learn from."""

    prompts: PromptSet
    sequences: Sequences
    data: DrafterData

    def greedy_pairs(self, count: int) -> list[TokenPair]:
        """Up to `count` training prompts with the first 64 tokens that the target wrote greedily.

        Of sequences with one new token or more; the first ones written come first.
        """
        greedy = is_greedy(np.arange(len(self.sequences)), len(self.prompts.training))
        pairs = [self.sequences.pair(int(i)) for i in np.flatnonzero(greedy)[:count]]
        return [(prompt, new_tokens[:64].tolist()) for prompt, new_tokens in pairs]


def load_target(
    path: str | Path, device: str, dtype: torch.dtype = torch.float32
) -> TargetCheckpoint:
    """Loads a checkpoint folder or a hub name in float32; WeightsError where it cannot be used.

    `dtype`: that of `writer`.
    """
    decoder, tokenizer = load_decoder(path, device=device), load_tokenizer(path)
    writer = decoder if dtype == decoder.dtype else load_decoder(path, dtype, device)
    assert decoder.context is not None  # a checkpoint names it
    ends = end_tokens(path, decoder.config.vocab)
    hashes = made_for(path, decoder, tokenizer)
    return TargetCheckpoint(path, decoder, writer, tokenizer, hashes, ends, decoder.context)


def longest_prompt(context: int, new_tokens: int, most: int) -> int:
    """Tokens of the longest prompt taken, at most `most`; ValueError without room for one."""
    if context - new_tokens < 1:
        raise ValueError(
            f"the target is meant for {context} tokens; "
            f"expected more than the {new_tokens} that it writes behind a prompt"
        )
    return min(most, context - new_tokens)


def target_data(
    config: TrainConfig,
    target: TargetCheckpoint,
    sources: PromptSources,
    work: Path,
    progress: Progress = quiet,
    processes: Processes = ALONE,
) -> TargetData:
    """The target writes what its drafters learn from and are evaluated on, unless `work` has it.

    Several `processes` share what is learned from, and all but the first end with ShareDone.

    Drafters learn the new tokens behind training prompts. Held-out prompts are continued greedily:
    a quarter of them chooses weights, the others evaluate them.
    """
    with processes.first_before_others():
        prompts = read_prompt_set(sources, work, progress)
    vocab, decoder = target.decoder.config.vocab, target.decoder
    writing = Writing(config.distil_tokens, config.new_tokens, target.end_tokens, config.seed)
    made = target.writer, target.made_for, work, progress, processes
    sequences = write_sequences(writing, prompts, *made)
    processes.leave_to_first()
    if int(sequences.token.max()) >= vocab:
        raise ValueError(f"{work} holds sequences of a larger vocabulary; choose another --work")
    evaluation = replace(writing, length=config.evaluation_tokens)
    written = heldout_sequences(evaluation, prompts, decoder, work)
    heldout = [written.pair(i) for i in range(len(written))]
    cut, short = max(1, len(heldout) // 4), max(K + 1, config.evaluation_tokens // 2)
    dtype = torch.bfloat16 if config.autocast else decoder.dtype
    store = FeatureStore(work / "features", decoder, sequences, dtype, target.writer)
    source = {
        **prompts.source,
        "prompts_sha256": prompts.sha256,
        "sequences": len(sequences),
        "new_tokens": sequences.new_tokens,
        "features": str(dtype).removeprefix("torch."),
    }
    if target.writer.dtype != decoder.dtype:
        source["written_in"] = str(target.writer.dtype).removeprefix("torch.")
    data = DrafterData(
        target=decoder,
        made_for=target.made_for,
        end_tokens=target.end_tokens,
        context=target.context,
        batches=TrainingSet(sequences, store, progress).batches,
        validation=[(prompt, new_tokens[:short]) for prompt, new_tokens in heldout[:cut]],
        evaluation=heldout[cut:],
        mixed=config.autocast,
        blend=1.0,
        counts=lambda: count_tokens([sequences.learned()], vocab),
        source=source,
    )
    return TargetData(prompts, sequences, data)
