"""One causal pass of a model over a whole sequence."""

from functools import cached_property

import torch
from torch import Tensor

from real.model.decoder import Decoder
from real.model.kv_cache import KVCache


def causal_mask(rows: int, device) -> Tensor:
    """Bool `[rows, rows]`: each row attends to itself and to those before it."""
    return torch.ones(rows, rows, dtype=torch.bool, device=device).tril()


def full_pass(lm: Decoder, token: Tensor) -> tuple[Tensor, KVCache]:
    """Last hidden states `[m, width]` of one pass over `token [m]`, and its KV cache."""
    m = len(token)
    cache = lm.cache(capacity=m)
    rotation = lm.rotation(torch.arange(m, device=token.device))
    mask = causal_mask(m, token.device)
    return lm.run(lm.embed(token[None]), range(len(lm.layers)), rotation, mask, cache)[0], cache


class TargetPass:
    """A recorded sequence as its target reads it, computed in one pass on first use.

    | attribute | meaning |
    | --- | --- |
    | target | the decoder |
    | prompt_length | tokens of the prompt |
    | token int64 `[m]` | the prompt and all new tokens but the last |
    | hidden `[m, width]` | the target's last hidden states |
    | cache | the target's KV cache of these rows |
    """

    def __init__(self, target: Decoder, prompt: list[int], new_tokens: list[int]):
        self.target, self.prompt_length = target, len(prompt)
        self.token = torch.tensor([*prompt, *new_tokens[:-1]], device=target.device)

    @cached_property
    def _states(self) -> tuple[Tensor, KVCache]:
        return full_pass(self.target, self.token)

    @property
    def hidden(self) -> Tensor:
        return self._states[0]

    @property
    def cache(self) -> KVCache:
        return self._states[1]

    def before(self, position: Tensor) -> Tensor:
        """States `[n, width]` that produced the token before each of `position [n]`.

        Positions count new tokens; zeros in front of the prompt's first token.
        """
        row = position + self.prompt_length - 2
        return self.hidden[row.clamp(min=0)] * (row >= 0)[:, None]
