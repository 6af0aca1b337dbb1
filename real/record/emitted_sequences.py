"""The recording of sequences that runs have emitted, under the rejection rule."""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import numpy as np

from real.draft import Drafter
from real.drafters.prompt_lookup import PromptLookupDrafter
from real.model.target import Target
from real.prompts import Prompt
from real.record.rejection import record_rejection
from real.record.rows import RecordedRows, assemble
from real.record.settings import Settings
from real.record.shared_pass import IdleTarget, SharedPass, hidden_states
from real.sampling import Rule
from simspec import Trace

_SMALLEST = 1e-300
"""Stands for probability 0, which rounding at a cutoff of top-k or top-p may give to a token."""


def record_emitted(
    target: Target, drafter: Drafter, rule: Rule, trace: Trace, emitted: Sequence[np.ndarray]
) -> Trace:
    """What `drafter` would propose along the tokens `emitted` after each prompt of `trace`.

    Budgets, addresses and depth are the trace's. Given these tokens, rounds of a run are
    distributed as replays of the result. RecordError for a drafter that is not history-free.
    """
    rows, prompts = [], []
    for s, tokens in enumerate(emitted):
        prompt = trace.prompt[trace.prompt_offset[s] : trace.prompt_offset[s + 1]].tolist()
        budget = int(trace.budget[s])
        rows.append(emitted_rows(target, drafter, rule, prompt, tokens, trace.K, budget))
        prompts.append(Prompt(trace.meta.ids[s], trace.task[s], "", prompt))
    settings = Settings(trace.K, int(trace.budget.max()), rule, trace.meta.end_tokens, ())
    meta = replace(trace.meta, drafter=drafter.name, seed=rule.seed)
    recorded = assemble(rows, prompts, 0, settings, meta)
    return replace(recorded, budget=trace.budget, sequence=trace.sequence)


def emitted_rows(
    target: Target,
    drafter: Drafter,
    rule: Rule,
    prompt: list[int],
    tokens: np.ndarray,
    K: int,
    budget: int,
) -> RecordedRows:
    """The rows of `tokens [n]` emitted behind `prompt`, with drafts of up to K tokens.

    RecordError for a drafter that is not history-free.
    """
    written = tokens, _probabilities(target, rule, prompt, tokens)
    if type(drafter) is PromptLookupDrafter:  # it reads tokens only
        target = cast(Target, IdleTarget(target.decoder))
    settings = Settings(K, budget, rule, (), ())
    return record_rejection(target, drafter, settings, prompt, written, SharedPass())


def _probabilities(target: Target, rule: Rule, prompt: list[int], tokens: np.ndarray) -> np.ndarray:
    """The target's probability of each of `tokens [n]`, float64 `[n]`, in one pass."""
    decoder = target.decoder
    logits = decoder.logits(hidden_states(decoder, prompt, tokens, 0))
    columns = np.arange(len(tokens)), tokens
    p: np.ndarray = rule.probs(logits).cpu().numpy()[columns]
    return np.maximum(p, _SMALLEST)
