"""Training and evaluation data of drafters: text and sequences that the target writes."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from real.draft import TrainingBatch
from real.model.checkpoint import load_decoder, load_tokenizer
from real.model.decoder import Decoder
from real.model.draft_head import load_draft_head, load_vocabulary
from real.model.hf_config import end_tokens
from real.model.stored_weights import made_for
from real.processes import ALONE, Processes
from real.progress import Progress, quiet
from real.train.accepted_length import Continuation, TokenPair
from real.train.config import DrafterTraining, TrainConfig, new_head, recipe_of
from real.train.corpus import END
from real.train.feature_store import FeatureStore, TrainingSet
from real.train.generate import (
    distilled_sequences,
    greedy_pairs,
    heldout_continuations,
    learned_sequences,
    mixed_batches,
)
from real.train.learned_text import learned_text
from real.train.prompt_set import PromptSet, PromptSources, read_prompt_set
from real.train.sequence_shards import (
    Sequences,
    Writing,
    heldout_sequences,
    is_greedy,
    joined,
    write_sequences,
)


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
    | seen | (schedule, steps) -> the sequences learned, each once, and how many tokens of them \
were learned, with repetitions; None: by `batches` |
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
    seen: Callable[..., tuple[Iterable[np.ndarray], int]] | None = None


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

    Scores of the tokens outside it come from rows of the target's head or the drafter's embedding.
    """
    assert training.start is not None
    name = f"--from {training.start.name} drafts from a part of the vocabulary"
    if getattr(stored, "settings", {}).get("own_head"):
        raise ValueError(f"{name} and stores no other rows of its head; start from the whole one")
    if not training.draft_vocab:
        raise ValueError(f"{name}; say which part now: --draft-vocab N, {vocab} for all of it")


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
            f"expected more than the {new_tokens} that it writes after a prompt"
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

    Drafters learn the new tokens after training prompts, and text (`learned_text`). Held-out
    prompts are continued greedily: a quarter of them chooses weights, the others evaluate them.
    """
    text: Sequences | None = None
    learned: dict[str, Any] = {}
    with processes.first_before_others():
        if config.text_tokens:
            given = sources.form, sources.text, config.text_tokens
            text, learned = learned_text(*given, work, progress)
            sources = replace(sources, text=())  # learned, and not continued
        prompts = read_prompt_set(sources, work, progress)
    vocab, decoder = target.decoder.config.vocab, target.decoder
    writing = Writing(
        config.distil_tokens,
        config.new_tokens,
        target.end_tokens,
        config.seed,
        config.distil_seconds,
    )
    made = target.writer, target.made_for, work, progress, processes
    sequences = write_sequences(writing, prompts, *made)
    processes.leave_to_first()
    read = sequences if text is None else joined([sequences, text])
    if int(read.token.max()) >= vocab:
        raise ValueError(f"{work} holds sequences of a larger vocabulary; choose another --work")
    evaluation = replace(writing, length=config.evaluation_tokens)
    written = heldout_sequences(evaluation, prompts, decoder, work)
    heldout = [written.pair(i) for i in range(len(written))]
    cut, short = max(1, len(heldout) // 4), max(K + 1, config.evaluation_tokens // 2)
    dtype = torch.bfloat16 if config.autocast else decoder.dtype
    store = FeatureStore(work / "features", decoder, read, dtype, target.writer)
    source = {
        **prompts.source,
        "prompts_sha256": prompts.sha256,
        "sequences": len(read),
        "new_tokens": sequences.new_tokens,
        "features": str(dtype).removeprefix("torch."),
    }
    if learned:
        source["learned_text"] = learned
    if target.writer.dtype != decoder.dtype:
        source["written_in"] = str(target.writer.dtype).removeprefix("torch.")
    learning = TrainingSet(read, store, progress)
    data = DrafterData(
        target=decoder,
        made_for=target.made_for,
        end_tokens=target.end_tokens,
        context=target.context,
        batches=learning.batches,
        validation=[(prompt, new_tokens[:short]) for prompt, new_tokens in heldout[:cut]],
        evaluation=heldout[cut:],
        mixed=config.autocast,
        blend=1.0,
        counts=lambda: count_tokens([read.learned()], vocab),
        source=source,
        seen=learning.seen,
    )
    return TargetData(prompts, sequences, data)
