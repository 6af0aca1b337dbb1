"""Batched continuation of prompts of any lengths by the target."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from real.model.decoder import Decoder
from simspec.rng import DRAFT, uniform

MAX_BYTES = 8 << 30
"""Of the KV cache of a batch; more prompts are continued in several batches."""
FIRST_ADDRESS = 1 << 21
"""Draw addresses of written sequences begin here, far from those of recordings."""

Choose = Callable[[Tensor, np.ndarray, int], Tensor]
"""(logits [b, vocab], number of each row's prompt [b], new tokens before) -> tokens [b]."""


@torch.inference_mode()
def continue_prompts(
    decoder: Decoder,
    prompts: Sequence[list[int]],
    length: int,
    choose: Choose,
    end_tokens: Sequence[int] = (),
) -> list[np.ndarray]:
    """Up to `length` new tokens int32 behind each prompt, ended behind the first end token.

    Shorter prompts are padded in front; masks and positions leave the padding out, so that a
    sequence equals the one that is written alone, up to rounding.
    """
    s = decoder.config
    size = decoder.embed.weight.element_size()
    row = 2 * s.layers * s.kv_heads * s.head_dim * size * (max(map(len, prompts)) + length)
    rows = max(1, MAX_BYTES // row)
    written: list[np.ndarray] = []
    for first in range(0, len(prompts), rows):
        part = prompts[first : first + rows]
        written += _continue_batch(decoder, part, first, length, choose, end_tokens)
    return written


def _continue_batch(
    decoder: Decoder,
    prompts: Sequence[list[int]],
    first: int,
    length: int,
    choose: Choose,
    end_tokens: Sequence[int],
) -> list[np.ndarray]:
    device, width = decoder.device, max(map(len, prompts))
    pad = torch.tensor([width - len(prompt) for prompt in prompts], device=device)
    token = torch.tensor(
        [[0] * (width - len(prompt)) + list(prompt) for prompt in prompts], device=device
    )
    cache = decoder.cache(batch=len(prompts), capacity=width + length)
    number, rows = np.arange(first, first + len(prompts)), 0
    ended = np.zeros(len(prompts), bool)
    written: list[list[int]] = [[] for _ in prompts]
    for step in range(length):
        x = _rows(decoder, token, pad, cache, rows)
        rows += token.shape[1]
        chosen = choose(decoder.logits(x[:, -1]), number, step)
        for i, value in enumerate(chosen.tolist()):
            if not ended[i]:
                written[number[i] - first].append(value)
                ended[i] = value in end_tokens
        if ended.all():
            break
        if 4 * ended.sum() >= len(ended):  # ended rows leave the batch, not each one by itself
            keep = torch.from_numpy(np.flatnonzero(~ended)).to(device)
            number, ended, pad, chosen = number[~ended], ended[~ended], pad[keep], chosen[keep]
            cache.key, cache.value = cache.key[:, keep], cache.value[:, keep]
        token = chosen[:, None]
    return [np.array(tokens, np.int32) for tokens in written]


def _rows(decoder: Decoder, token: Tensor, pad: Tensor, cache, start: int) -> Tensor:
    """Last hidden states of the next rows `token [b, n]`, behind `start` cached ones."""
    (batch, count), device = token.shape, token.device
    place = torch.arange(start + count, device=device)
    row = place[start:]
    position = (row - pad[:, None]).clamp(min=0)
    cosine, sine = decoder.rotation(position.flatten())
    rotation = cosine.view(batch, 1, count, -1), sine.view(batch, 1, count, -1)
    # a row of padding attends to itself alone: without any key it would be 0 / 0
    seen = (place >= pad[:, None])[:, None] & (place <= row[:, None]) | (place == row[:, None])
    layers = range(len(decoder.layers))
    return decoder.run(decoder.embed(token), layers, rotation, seen[:, None], cache, start)


def mixed_choice(greedy: np.ndarray, seed: int, address: np.ndarray) -> Choose:
    """Argmax for prompts that are `greedy`, else a draw at temperature 1.

    The draw of a prompt's token depends on the seed, the prompt's `address` and the token's place
    alone, not on the batch.
    """

    def choose(logits: Tensor, number: np.ndarray, step: int) -> Tensor:
        chosen = logits.argmax(-1)
        drawn = np.flatnonzero(~greedy[number])
        if not len(drawn):
            return chosen
        draw = [uniform(seed, int(address[number[i]]), step, 0, DRAFT) for i in drawn]
        rows = torch.from_numpy(drawn).to(logits.device)
        share = logits[rows].double().softmax(-1).cumsum(-1)
        point = torch.tensor(draw, dtype=torch.float64, device=logits.device)[:, None]
        token = torch.searchsorted(share, point * share[:, -1:], right=True)[:, 0]
        chosen[rows] = token.clamp(max=logits.shape[-1] - 1)
        return chosen

    return choose
