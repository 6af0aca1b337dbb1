"""Recording under the rejection rule: acceptance ratios of drawn and of emitted sequences."""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import torch

from real.decode.along import along
from real.draft import Drafter
from real.draft.drafted_logits import DraftedLogits
from real.draft.kind import position_batches
from real.drafters import parallel_form
from real.model.full_pass import TargetPass
from real.model.target import Target
from real.prompts import Prompt
from real.record.parallel import IdleTarget, SharedPass, hidden_states, row_chunks
from real.record.rows import RecordedRows, assemble, check_history_free
from real.record.settings import Settings
from real.record.target_sequence import TargetSequence
from real.sampling import Rule
from simspec import Trace


@torch.inference_mode()
def parallel_ratios(
    drafter: Drafter, settings: Settings, full: TargetPass, tokens: np.ndarray, p: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(ratio float64 `[n, K]`, depth uint8 `[n]`) as the protocol gives them position by position.

    `p [n]` is the target's probability of each of `tokens [n]`.
    """
    n, K, device = len(tokens), settings.K, full.token.device
    factory = parallel_form(drafter)
    assert factory is not None
    offered = drafter.longest(K)
    first = min(n, max(0, factory.min_context - full.prompt_length))
    padded = np.concatenate((tokens, np.repeat(tokens[-1:], K))).astype(np.int64)
    expected = torch.from_numpy(padded).to(device)
    q = torch.zeros(n, K, dtype=torch.float64, device=device)
    if first < n and offered:
        parallel = factory(drafter, full)
        positions = torch.arange(first, n, device=device)
        for batch in position_batches(positions, 1, full, parallel):
            step = parallel.start(batch)
            for slot in range(offered):
                drafted = DraftedLogits.of(step[0])[:, 0]
                token = expected[batch + slot][:, None]
                for part in row_chunks(len(batch), drafted.logits.shape[-1], device):
                    probabilities = settings.rule.probs(drafted.logits[part])
                    column, inside = drafted.place(token[part][:, 0])
                    found = probabilities.gather(-1, column[:, None])[:, 0]
                    q[batch[part], slot] = found.where(inside, 0.0)
                if slot + 1 < offered:
                    step = parallel.extend(torch.zeros_like(token), token)
    position = np.arange(n)[:, None] + np.arange(K)
    ratio = np.minimum(1.0, q.cpu().numpy() / p[np.minimum(position, n - 1)])
    offers = np.where(np.arange(n) < first, 0, offered)
    depth = np.where(offers < np.minimum(K, settings.budget - np.arange(n)), offers, K)
    return np.where(position < n, ratio, 0.0), depth.astype(np.uint8)


def record_rejection(
    target: Target,
    drafter: Drafter,
    settings: Settings,
    prompt: list[int],
    written: TargetSequence,
    shared: SharedPass | None = None,
) -> RecordedRows:
    """The acceptance ratios of a sequence drawn from the target, which brings its p of each token.

    ratio[t, j] = min(1, q(y) / p(y)) with y = token[t + j], and 0 past the sequence's end. p is the
    target's processed distribution there, q the drafter's in a draft from row t along the sequence.
    A drafter without logits has ratio 1 while its tokens equal the sequence's, then 0. `depth` is
    what the drafter offers; drafts do not stop at end tokens. RecordError for a drafter that is not
    history-free.
    """
    check_history_free(drafter)
    tokens, p = written
    n, K = len(tokens), settings.K
    if drafter.prefix_only and drafter.lm is not None:
        q, depth = _prefix_only(drafter, settings, prompt, tokens), np.full(n, K, np.uint8)
        position = np.arange(n)[:, None] + np.arange(K)
        per_token = np.minimum(1.0, q / p)
        ratio = np.where(position < n, per_token[np.minimum(position, n - 1)], 0.0)
    elif parallel_form(drafter) is not None:
        full = (shared or SharedPass()).target_pass(target.decoder, prompt, tokens.tolist())
        ratio, depth = parallel_ratios(drafter, settings, full, tokens, p)
    else:
        ratio, depth = _stepwise(target, drafter, settings, prompt, tokens, p)
    return RecordedRows(
        token=tokens,
        depth=depth,
        run=np.zeros(n, np.uint8),
        feature=np.zeros((n, K, 0), np.uint8),
        ratio=ratio.astype(np.float32),
    )


def _prefix_only(drafter, settings: Settings, prompt: list[int], tokens: np.ndarray) -> np.ndarray:
    """q of each token, in one pass of a drafter that is a language model."""
    expected = torch.from_numpy(tokens.astype(np.int64)).to(drafter.lm.device)
    logits = drafter.lm.logits(hidden_states(drafter.lm, prompt, tokens, 0))
    return settings.rule.probs(logits).gather(-1, expected[:, None])[:, 0].cpu().numpy()


def _stepwise(
    target: Target,
    drafter: Drafter,
    settings: Settings,
    prompt: list[int],
    tokens: np.ndarray,
    p: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """(ratio, depth) through the protocol: at each position a draft along the sequence."""
    n, K, rule = len(tokens), settings.K, settings.rule
    ratio, depth, t = np.zeros((n, K)), np.full(n, K, np.uint8), 0

    def pick(logits, slot: int, hidden=None) -> int:
        if t + slot >= n:
            return int(logits.argmax())
        token = int(tokens[t + slot])
        ratio[t, slot] = min(1.0, float(rule.probs(logits[None])[0, token]) / p[t + slot])
        return token

    for t, _, _ in along(target, drafter, prompt, tokens.tolist(), pick):
        equal = True
        for slot in range(min(K, settings.budget - t)):
            step = drafter.next()
            if step is None:
                depth[t] = slot
                break
            if not drafter.has_logits:
                equal = equal and t + slot < n and step.token == tokens[t + slot]
                ratio[t, slot] = equal
        drafter.rollback(0)
    return ratio, depth


_SMALLEST = 1e-300
"""Replaces probability 0, which rounding at a cutoff of top-k or top-p may give to a token."""


def record_emitted(
    target: Target, drafter: Drafter, rule: Rule, trace: Trace, emitted: Sequence[np.ndarray]
) -> Trace:
    """Records the proposals of `drafter` along the tokens `emitted` after each prompt of `trace`.

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
    """The rows of `tokens [n]` emitted after `prompt`, with drafts of up to K tokens.

    RecordError for a drafter that is not history-free.
    """
    written = tokens, _probabilities(target, rule, prompt, tokens)
    if drafter.tokens_only:
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
