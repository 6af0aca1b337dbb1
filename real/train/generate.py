"""Sequences that a target generates for training, in batches: self-distillation (EESD §3.2)."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from real.files import replacing
from real.model.decoder import Decoder
from real.model.target import Target
from real.processes import ALONE, Processes
from real.progress import Progress, quiet
from real.record import Settings
from real.record.rows import hidden_states
from real.record.sequences import default_batch, target_sequences
from real.sampling import gumbel
from real.train.accepted_length import Continuation, TokenPair
from real.train.config import TrainConfig
from real.train.corpus import windows
from real.train.optimizers import TrainSchedule
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
    """Generates all prompts (of one length) in a batch.

    The tokens are those of `generate_one_by_one`, except where rounding flips a near-tie.
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
    """Generates prompts of any lengths, many at a time.

    The tokens are those of `generate_one_by_one`, except where rounding flips a near-tie.
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


PROMPT = 64
"""Prompt tokens of a generated sequence."""


def distilled_sequences(
    config: TrainConfig,
    target: Decoder,
    tokens,
    work: Path,
    progress: Progress,
    length: int = 192,
    processes: Processes = ALONE,
) -> np.ndarray:
    """The target's continuations of corpus windows `[sequences, PROMPT + length]`.

    Even rows are greedy, odd ones sampled. Batches are saved one by one. Several `processes` share
    them, and all but the first end with ShareDone.
    """
    path, parts, batch = work / "distilled.npy", work / "distilled", config.batch
    if path.exists():
        processes.leave_to_first()
    else:
        parts.mkdir(parents=True, exist_ok=True)
        count = max(1, -(-config.distil_tokens // (batch * (PROMPT + length))))
        greedy = torch.arange(batch, device=config.device) % 2 == 0
        for i in range(count):
            part = parts / f"{i:05d}.npy"
            if processes.has(i) and not part.exists():
                rows = windows(tokens, batch, PROMPT, config.seed + 1, i)[:, :PROMPT]
                prompt = torch.from_numpy(rows).to(config.device)
                generated = generate_batch(target, prompt, length, greedy, config.seed + i)
                with replacing(part) as temporary, open(temporary, "wb") as file:
                    np.save(file, generated.cpu().numpy().astype(tokens.dtype))
            progress("distil", i + 1, count)
        processes.leave_to_first()
        with replacing(path) as temporary, open(temporary, "wb") as file:
            np.save(file, np.concatenate([np.load(parts / f"{i:05d}.npy") for i in range(count)]))
    return np.load(path)


def heldout_count(distilled: np.ndarray) -> int:
    """How many generated sequences, the last ones, are held out of all drafters' training."""
    return min(64, len(distilled) // 4)


def learned_sequences(distilled: np.ndarray) -> np.ndarray:
    """The generated sequences that drafters learn from."""
    return distilled[: len(distilled) - heldout_count(distilled)]


def greedy_pairs(distilled: np.ndarray, count: int) -> list[TokenPair]:
    """Up to `count` training sequences that were generated greedily, as prompt and new tokens."""
    greedy = learned_sequences(distilled)[::2][:count].tolist()  # even rows
    cut = min(PROMPT, distilled.shape[1] // 2)
    return [(row[:cut], row[cut : 2 * cut]) for row in greedy]


def mixed_batches(
    config: TrainConfig, tokens, distilled: np.ndarray, schedule: TrainSchedule
) -> Callable[[int], torch.Tensor]:
    """Batches `[rows, length + 1]` by step: corpus rows, then a share `blend` of generated ones."""
    generated = round(config.blend * schedule.rows)
    if schedule.length >= distilled.shape[1]:
        raise ValueError(
            f"drafters learn on windows of {schedule.length}; "
            f"sequences generated by the target have {distilled.shape[1]} tokens"
        )

    def batch(step: int) -> torch.Tensor:
        corpus, length = schedule.rows - generated, schedule.length
        rows = [windows(tokens, corpus, length, schedule.seed, step)] if corpus > 0 else []
        if generated:
            draw = np.random.default_rng([schedule.seed, step, 1])
            sequence = draw.integers(0, len(distilled) - heldout_count(distilled), generated)
            start = draw.integers(0, distilled.shape[1] - length, generated)
            window = start[:, None] + np.arange(length + 1)
            rows.append(distilled[sequence[:, None], window].astype(np.int64))
        return torch.from_numpy(np.concatenate(rows)).to(config.device)

    return batch


def heldout_continuations(
    target: Decoder,
    distilled: np.ndarray,
    length: int,
    end_tokens: Sequence[int],
    prompt: int = PROMPT,
) -> list[Continuation]:
    """The target's greedy continuations of the held-out prompts, up to the first end token.

    At most `length` new tokens each.
    """
    heldout = distilled[len(distilled) - heldout_count(distilled) :]
    prompts = heldout[:, : min(prompt, distilled.shape[1] // 2)].astype(np.int64)
    start = torch.from_numpy(prompts).to(target.device)
    greedy = torch.ones(len(start), dtype=torch.bool, device=start.device)
    new = generate_batch(target, start, length, greedy, 0)[:, start.shape[1] :].cpu().numpy()
    ends = [np.flatnonzero(np.isin(row, end_tokens)) for row in new]
    return [
        (tokens, row[: end[0] + 1] if len(end) else row)
        for tokens, row, end in zip(start.tolist(), new, ends)
    ]
