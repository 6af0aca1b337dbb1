"""Batched generation by the target."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from real.model.decoder import Decoder
from real.model.target import Target
from real.progress import Progress, quiet
from real.record import Settings
from real.record.shared_pass import hidden_states
from real.record.target_sequence import default_batch, target_sequences
from real.sampling import gumbel
from real.train.train_predictor import GeneratedSequence


@torch.inference_mode()
def continue_batch(
    decoder: Decoder, prompt: Tensor, length: int, pick: Callable[[Tensor, int], Tensor]
) -> Tensor:
    """All rows of `prompt [b, n]` with `length` new tokens, `[b, n + length]`.

    `pick(logits [b, vocab], step)` returns the next tokens `[b]`.
    """
    batch, start = prompt.shape
    cache = decoder.cache(batch=batch, capacity=start + length)
    layers, rows, token, device = range(len(decoder.layers)), 0, prompt, prompt.device
    tokens = [prompt]
    for step in range(length):
        count = token.shape[1]
        position = torch.arange(rows, rows + count, device=device)
        mask = None
        if count > 1:
            mask = torch.ones(count, rows + count, dtype=torch.bool, device=device).tril(rows)
        x = decoder.run(decoder.embed(token), layers, decoder.rotation(position), mask, cache, rows)
        rows += count
        token = pick(decoder.logits(x[:, -1]).float(), step)[:, None]
        tokens.append(token)
    return torch.cat(tokens, 1)


def generate_batch(
    decoder: Decoder, prompt: Tensor, length: int, greedy: Tensor, seed: int
) -> Tensor:
    """`prompt [b, n]` and `length` new tokens: argmax where `greedy [b]`, else sampled, T = 1."""
    torch.manual_seed(seed)

    def pick(logits: Tensor, step: int) -> Tensor:
        sampled = torch.multinomial(logits.softmax(-1), 1)[:, 0]
        return torch.where(greedy, logits.argmax(-1), sampled)

    return continue_batch(decoder, prompt, length, pick)


@torch.inference_mode()
def generate_together(
    target: Target,
    settings: Sequence[Settings],
    prompts: Sequence[list[int]],
    first: int,
    progress: Progress = quiet,
) -> list[GeneratedSequence]:
    """As `generate_one_by_one`, all prompts (of one length) in a batch.

    The same tokens, except where rounding flips a near-tie.
    """
    decoder = target.decoder
    generated: list[GeneratedSequence] = []
    prompt_rows = torch.tensor(prompts, device=decoder.device)
    for rule_settings in settings:
        start = first + len(generated)
        pick = _picker(decoder, rule_settings, range(start, start + len(prompts)))
        rows = continue_batch(decoder, prompt_rows, rule_settings.budget, pick)
        for prompt, row in zip(prompts, rows[:, prompt_rows.shape[1] :].cpu().numpy()):
            ends = np.flatnonzero(np.isin(row, rule_settings.end_tokens))
            new_tokens = row[: ends[0] + 1] if len(ends) else row
            before = hidden_states(decoder, prompt, new_tokens, -1)
            sequence = first + len(generated)
            generated.append(GeneratedSequence(rule_settings, sequence, prompt, new_tokens, before))
        progress("texts", len(generated), len(settings) * len(prompts))
    return generated


@torch.inference_mode()
def generate_batched(
    target: Target,
    settings: Sequence[Settings],
    prompts: Sequence[list[int]],
    first: int,
    progress: Progress = quiet,
) -> list[GeneratedSequence]:
    """As `generate_one_by_one`, prompts of any lengths many at a time.

    The same tokens, except where rounding flips a near-tie.
    """
    generated: list[GeneratedSequence] = []
    for rule_settings in settings:
        start = first + len(generated)
        asked = replace(rule_settings, batch=default_batch(target))
        addresses = range(start, start + len(prompts))
        written = target_sequences(target, asked, prompts, addresses, progress)
        for sequence, prompt, (new_tokens, _) in zip(addresses, prompts, written):
            before = hidden_states(target.decoder, prompt, new_tokens, -1)
            generated.append(GeneratedSequence(rule_settings, sequence, prompt, new_tokens, before))
    return generated


def _picker(
    decoder: Decoder, settings: Settings, addresses: range
) -> Callable[[Tensor, int], Tensor]:
    """The rule's pick for a batch; the noise of all sequences and positions is drawn once."""
    rule = settings.rule
    if rule.name == "greedy":
        return lambda logits, step: logits.argmax(-1)
    size = settings.budget, decoder.config.vocab, decoder.device
    noise = torch.stack([gumbel(rule.seed, sequence, 0, *size) for sequence in addresses])
    return lambda logits, step: (rule.processed(logits) + noise[:, step]).argmax(-1)
