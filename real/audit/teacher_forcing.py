"""Teacher forcing: the target's logits along an emitted sequence."""

from collections.abc import Iterator

import torch
from torch import Tensor

from real.model.decoder import Decoder


def teacher_forced_logits(
    decoder: Decoder, prompt: tuple[int, ...], token: tuple[int, ...], rows: int = 64
) -> Iterator[tuple[int, Tensor]]:
    """Yields (position, logits `[m, vocab]`) that predict `token`, at most `rows` at a time.

    One causal pass without a KV cache, so that a faulty cache of the run cannot hide itself.
    ValueError for logits that are not finite.
    """
    with torch.inference_mode():
        inputs = torch.tensor([[*prompt, *token[:-1]]], device=decoder.device)
        rotation = decoder.rotation(torch.arange(inputs.shape[1], device=decoder.device))
        hidden = decoder.run(decoder.embed(inputs), range(len(decoder.layers)), rotation)
        hidden = hidden[0, len(prompt) - 1 :]
        for start in range(0, len(token), rows):
            logits = decoder.logits(hidden[start : start + rows])
            if not logits.isfinite().all():
                raise ValueError(
                    "the target's logits are not finite; expected numbers: "
                    "its weights are damaged, or the dtype too narrow"
                )
            yield start, logits
