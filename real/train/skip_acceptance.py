"""Acceptance and cost of a draft that skips sub-layers, without a clock."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from real.drafters.self_skip import SkipConfig, skipping_pass
from real.model.decoder import Decoder
from real.model.kv_cache import KVCache

TokenPair = tuple[Sequence[int], Sequence[int]]
"""A prompt, and the new tokens that the target generated behind it."""


@dataclass(frozen=True)
class PreparedSequence:
    """The rows of a sequence that first draft tokens are proposed from, after one full pass.

    | field | meaning |
    | --- | --- |
    | token, position `[n]` | of the rows |
    | mask `[n, m + n]` | the cached rows of the full pass that each attends to, and itself |
    | cache, start | the full pass's KV cache, and where draft rows begin in it |
    | pick `[n]` | the target's own tokens there |
    """

    token: Tensor
    position: Tensor
    mask: Tensor
    cache: KVCache
    start: int
    pick: Tensor


@torch.inference_mode()
def prepare(decoder: Decoder, prompt: Sequence[int], new_tokens: Sequence[int]) -> PreparedSequence:
    """One full pass over a sequence, with room behind it for a draft row per new token."""
    device, rows, count = decoder.device, len(prompt) + len(new_tokens) - 1, len(new_tokens)
    token = torch.tensor([*prompt, *new_tokens[:-1]], device=device)
    place = torch.arange(rows, device=device)
    cache = decoder.cache(capacity=rows + count)
    causal = torch.ones(rows, rows, dtype=torch.bool, device=device).tril()
    layers, rotation = range(len(decoder.layers)), decoder.rotation(place)
    x = decoder.run(decoder.embed(token[None]), layers, rotation, causal, cache, 0)
    before = place < place[-count:, None]  # a first draft row attends to the rows before its own
    mask = torch.cat((before, torch.eye(count, dtype=torch.bool, device=device)), 1)
    pick = decoder.logits(x[0, -count:]).argmax(-1)
    return PreparedSequence(token[-count:], place[-count:], mask, cache, rows, pick)


def acceptance(decoder: Decoder, skips: SkipConfig, sequences: Sequence[TokenPair]) -> float:
    """Share of positions where the first draft token is the target's pick (greedy).

    Equal to what the drafter proposes first in a round there, since the cache is that of full
    passes. Later slots build on draft rows and are accepted less often.
    """
    return accepted_share(decoder, skips, prepared(decoder, sequences))


def prepared(decoder: Decoder, sequences: Sequence[TokenPair]) -> list[PreparedSequence]:
    """All sequences prepared; ValueError for none, or one with an empty part."""
    if not len(sequences):
        raise ValueError("no texts; expected pairs (prompt, new tokens), one token each at least")
    for i, (prompt, new_tokens) in enumerate(sequences):
        if not len(prompt) or not len(new_tokens):
            raise ValueError(
                f"text {i} has an empty prompt or no new tokens; "
                "expected pairs (prompt, new tokens), one token each at least"
            )
    return [prepare(decoder, *pair) for pair in sequences]


@torch.inference_mode()
def accepted_share(
    decoder: Decoder, skips: SkipConfig, sequences: Sequence[PreparedSequence]
) -> float:
    """`acceptance` of prepared sequences."""
    hits = 0
    for s in sequences:
        hidden = skipping_pass(decoder, skips, s.token, s.position, s.mask, s.cache, s.start)
        hits += int((decoder.logits(hidden).argmax(-1) == s.pick).sum())
    return hits / sum(len(s.token) for s in sequences)


def sublayer_share(decoder: Decoder, skips: SkipConfig) -> float:
    """Cost c of a draft step as its share of the target's sub-layers: the same on every device."""
    return skips.count(len(decoder.layers)) / (2 * len(decoder.layers))


def weight_share(decoder: Decoder, skips: SkipConfig) -> float:
    """Cost c of a draft step as its share of the weights that are read, the head included.

    It approximates the share of time where memory bandwidth limits passes.
    """
    layers: Any = decoder.layers
    attention = [
        sum(p.numel() for m in (x.query, x.key, x.value, x.output) for p in m.parameters())
        for x in layers
    ]
    mlp = [sum(m.weight.numel() for m in (x.gate, x.up, x.down)) for x in layers]
    whole = sum(attention) + sum(mlp) + decoder.head.weight.numel()
    skipped = sum(attention[i] for i in skips.attention) + sum(mlp[i] for i in skips.mlp)
    return (whole - skipped) / whole
