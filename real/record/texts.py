"""Recordings of a draft model along texts that an engine or a log has written; no target runs.

A draft is the argmax chain of the model's logits after the text so far. Where the text agrees, the
next position has the same chain, so only positions that the model misses draft tokens that the text
does not hold: `record_prefix_only`.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from real.decode.features import drafter_features
from real.drafters.model import ModelDrafter
from real.model.decoder import Decoder
from real.model.target import Target
from real.progress import Progress, quiet
from real.prompts import Prompt
from real.record.rows import IdleTarget, assemble, record_prefix_only
from real.record.settings import Settings, describe
from real.sampling import Rule
from simspec import Trace
from simspec.engines.text import WrittenText, text_budgets


def record_texts_by_model(
    texts: Sequence[WrittenText],
    drafter: ModelDrafter,
    K: int = 16,
    end_tokens: Sequence[int] = (),
    sampled: bool = False,
    source: str = "",
    progress: Progress = quiet,
) -> Trace:
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
