"""Recordings along texts that an engine or a log has written; no target runs.

A draft model drafts the argmax chain of its logits after the text so far. Where the text agrees,
the next position has the same chain, so only positions that the model misses draft tokens that the
text does not hold: `record_prefix_only`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch

from real.decode.features import drafter_features
from real.drafters.model import ModelDrafter
from real.model.checkpoint import load_tokenizer
from real.model.decoder import Decoder
from real.model.target import Target
from real.progress import Progress, quiet
from real.prompts import Prompt
from real.record.rows import IdleTarget, assemble, record_prefix_only
from real.record.settings import Settings, describe
from real.sampling import Rule
from simspec import Trace
from simspec.engines.ngram import SuffixRule, ngram_rule
from simspec.engines.text import WrittenText, read_texts, record_texts, text_budgets


def record_texts_by_model(
    texts: Sequence[WrittenText], drafter: ModelDrafter, K: int = 16,
    end_tokens: Sequence[int] = (), sampled: bool = False, source: str = "",
    progress: Progress = quiet
) -> Trace:  # fmt: skip
    """A recording of this model's greedy drafts along these texts.

    Equal to an ordinary recording of a target that writes them, without the target's margins and
    without features of predictors, which read the target's states. Texts of a temperature are
    labelled with it; drafts and features stay those of the greedy rule. ValueError for an empty
    prompt, tokens or lengths that the model does not take, and as in `text_budgets`.
    """
    budgets = text_budgets(texts, K, end_tokens, sampled)
    for text, budget in zip(texts, budgets):
        _check_text(text, min(budget, len(text.output) + K - 1), drafter.lm)
    features, ends = drafter_features(drafter), tuple(end_tokens)
    settings = Settings(K, max(budgets), Rule(), ends, features)
    target = cast(Target, IdleTarget(drafter.lm))
    prompts = [Prompt(text.id, text.task, "", text.prompt.tolist()) for text in texts]
    rows = []
    for s, (text, budget, prompt) in enumerate(zip(texts, budgets, prompts)):
        own = replace(settings, budget=budget)
        recorded = record_prefix_only(target, drafter, own, prompt.token, text.output, s)
        rows.append(replace(recorded, margin=None))
        progress("recording texts", len(rows), len(texts))
    lm, temperature = drafter.lm, texts[0].temperature
    meta = replace(
        describe(source or "text", drafter, settings, (), "", lm.device, lm.dtype),
        rule="coupled" if temperature else "greedy",
        temperature=temperature,
        notes="recorded from text alone by a model's greedy drafts",
    )
    return assemble(rows, prompts, 0, settings, meta, budgets)


def _check_text(text: WrittenText, new_tokens: int, lm: Decoder) -> None:
    """ValueError where the model cannot read the text, or draft `new_tokens` after its prompt."""
    if not len(text.prompt):
        raise ValueError(
            f"text {text.id!r} has an empty prompt, expected at least one token: a model drafts "
            "from what is before"
        )
    highest, vocab = max(text.prompt.max(), text.output.max()), lm.config.vocab
    if highest >= vocab:
        raise ValueError(
            f"text {text.id!r} holds token {highest}, the drafter knows 0 to {vocab - 1}: take a "
            "model with the tokenizer of the texts"
        )
    length = len(text.prompt) + len(text.output)
    if lm.context is not None and length > lm.context:
        raise ValueError(
            f"text {text.id!r} has {length:,} tokens, the drafter's context {lm.context:,}: cut "
            "it, or take another model"
        )
    lm.check_length(len(text.prompt) + new_tokens)


def text_recorder(drafters: Sequence[str], device: str, dtype: torch.dtype) -> Callable[..., Trace]:
    """(texts, K, end tokens, source, progress) -> recording, of one n-gram rule or draft model."""
    if len(drafters) > 1:
        raise ValueError(f"--from-text records one drafter, {len(drafters)} are given")
    name, _, folder = drafters[0].partition(":")
    if name == "model" and not folder:
        raise ValueError(
            f"drafter {drafters[0]!r} names no model, expected model:FOLDER, a transformers "
            "checkpoint"
        )
    rule = None if name in ("model", "suffix") else ngram_rule(drafters[0])

    def recorder(
        texts: Sequence[WrittenText], k: int, end_tokens: Sequence[int], source: str,
        progress: Progress
    ) -> Trace:  # fmt: skip
        if name == "model":
            model = ModelDrafter.load_alone(Path(folder), dtype, device)
            return record_texts_by_model(texts, model, k, end_tokens, True, source, progress)
        return record_texts(texts, rule or SuffixRule(most=k), k, end_tokens, True, source)

    return recorder


def written_texts(path: Path, tokenizer: Path | None) -> list[WrittenText]:
    """The texts of this file, strings encoded by the tokenizer of that folder."""
    encode: Callable[[str], list[int]] | None = None
    if tokenizer is not None:
        held = load_tokenizer(tokenizer)

        def encode(text: str) -> list[int]:
            return held.encode(text, add_special_tokens=False).ids

    return read_texts(path, encode)
