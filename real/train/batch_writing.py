"""Sequences that a GPU writes by thousands: a token is picked there and stays until all have ended.

`real.record.sequences.write_batch` asks for each token and its margin, which costs more than
the pass of a small model: an H200 wrote 6,400 tokens a second with it.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from real.model.decoder import Decoder
from real.model.full_pass import RaggedKVCache
from real.record.sequences import PREFILL_ROWS, groups_of_prompts, prefill
from real.sampling import Rule, inverse_cdf
from simspec.numerics.rng import RESIDUAL, uniform_rows

CHECKED = 16
"""Passes between two questions which sequences have ended; those leave the batch."""
LEAST_ENDED = 1 / 8
"""Share of a batch that leaves it together: the others' keys and values are copied."""
BATCH = 2048
"""Most sequences written at a time."""
CACHE_BYTES = 24 << 30
"""Most bytes of their KV cache."""


@torch.inference_mode()
def write_together(
    decoder: Decoder,
    rule: Rule,
    prompts: Sequence[list[int]],
    addresses: Sequence[int],
    length: int,
    end_tokens: Sequence[int],
    progress: Callable[[int], None] = lambda written: None,
) -> list[np.ndarray]:
    """New tokens int32 of each prompt, at most `length`, an end token included; greedy or drawn.

    Those of `target_sequences` at the same draw addresses but for rounding. Prompts of similar
    lengths meet in a batch. A batch that does not fit into the GPU's memory is halved.
    """
    order = sorted(range(len(prompts)), key=lambda i: -len(prompts[i]))
    written: dict[int, np.ndarray] = {}
    most = BATCH
    while len(written) < len(order):
        left = order[len(written) :]
        fit = CACHE_BYTES // (_cached_bytes(decoder) * (len(prompts[left[0]]) + length))
        part = left[: max(1, min(most, fit))]
        try:
            tokens = _write(
                decoder,
                [prompts[i] for i in part],
                length,
                end_tokens,
                _picker(decoder, rule, [addresses[i] for i in part], length),
            )
        except torch.OutOfMemoryError:
            if len(part) == 1:
                raise
            torch.cuda.empty_cache()
            most = len(part) // 2
            continue
        for i, row in zip(part, tokens.cpu().numpy()):
            ends = np.flatnonzero(np.isin(row, end_tokens))
            written[i] = (row[: ends[0] + 1] if len(ends) else row).astype(np.int32)
        progress(len(written))
    return [written[i] for i in range(len(prompts))]


def _cached_bytes(decoder: Decoder) -> int:
    """Bytes that a token's keys and values take."""
    c = decoder.config
    return 2 * c.layers * c.kv_heads * c.head_dim * decoder.embed.weight.element_size()


Picker = Callable[[Tensor, Tensor, int], Tensor]
"""(logits `[n, vocab]`, their sequences `[n]` of the batch, step) -> tokens `[n]`."""


def _picker(decoder: Decoder, rule: Rule, addresses: Sequence[int], length: int) -> Picker:
    if not rule.sampled:
        return lambda logits, sequence, step: logits.argmax(-1)
    rows = uniform_rows(rule.seed, np.array(addresses), length, RESIDUAL)
    drawn = torch.from_numpy(rows).to(decoder.device)
    return lambda logits, sequence, step: inverse_cdf(rule.probs(logits), drawn[sequence, step])


def _write(
    decoder: Decoder,
    prompts: Sequence[list[int]],
    length: int,
    end_tokens: Sequence[int],
    pick: Picker,
) -> Tensor:
    """Tokens int64 `[b, length]` after prompts, longest first; what follows an end is waste."""
    device, layers = decoder.device, range(len(decoder.layers))
    cache = RaggedKVCache(decoder, len(prompts), len(prompts[0]) + length)
    most = PREFILL_ROWS.get(device.type, PREFILL_ROWS["cpu"])
    whole = list(range(len(prompts)))
    for group in groups_of_prompts(whole, [len(p) - 1 for p in prompts], most):
        rows = [prompts[i][:-1] for i in group]
        cache.admit(prefill(decoder, rows, most), [len(row) for row in rows])
    ends = torch.tensor(end_tokens, dtype=torch.int64, device=device)
    token = torch.tensor([p[-1] for p in prompts], device=device)
    written = torch.zeros(len(prompts), length, dtype=torch.int64, device=device)
    active = torch.arange(len(prompts), device=device)
    ended = torch.zeros(len(prompts), dtype=torch.bool, device=device)
    for step in range(length):
        rotation, mask = cache.step(decoder)
        x = decoder.embed(token)[:, None]
        x = decoder.run(x, layers, rotation, mask, cache)  # type: ignore[arg-type]
        token = pick(decoder.logits(x[:, 0]), active, step)
        written[active, step] = token
        ended |= torch.isin(token, ends)
        if step % CHECKED == CHECKED - 1:
            left = (~ended).nonzero()[:, 0]
            if not len(left):
                break
            if len(left) <= (1 - LEAST_ENDED) * len(ended):
                cache.keep(left.tolist())
                token, active, ended = token[left], active[left], ended[left]
    return written
