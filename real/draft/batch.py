"""A batch that drafters are trained on: tokens, which of them are learned, and target features."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from real.model.decoder import Decoder
from real.model.full_pass import causal_mask


@dataclass(frozen=True)
class TrainingBatch:
    """Sequences of the target, padded at their ends.

    | field | meaning |
    | --- | --- |
    | token int64 `[b, n + 1]` | the sequences; the first n are read, the last n predicted |
    | learned bool `[b, n + 1]` | the tokens that are learned as next tokens; None: all |
    | stored | name -> features `[b, n, ...]` of the tokens read, see `read_target` |
    """

    token: Tensor
    learned: Tensor | None = None
    stored: Mapping[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, batch: "TrainingBatch | Tensor") -> "TrainingBatch":
        """The batch itself; of tokens alone one that learns all of them."""
        return cls(batch) if isinstance(batch, Tensor) else batch

    def features(self, target: Decoder, *names: str) -> list[Tensor]:
        """The named features of the tokens read; those that are not stored take a target pass."""
        missing = [name for name in names if name not in self.stored]
        read = read_target(target, self.token[:, :-1], missing) if missing else {}
        return [self.stored[name] if name in self.stored else read[name] for name in names]

    def learning(self, ahead: int) -> Tensor | None:
        """Bool `[b, n + 1 - ahead]`: whether row i learns token i + `ahead`; None: all do."""
        return None if self.learned is None else self.learned[:, ahead:]


@torch.no_grad()
def read_target(target: Decoder, token: Tensor, names: Iterable[str]) -> dict[str, Tensor]:
    """Features of `token [b, n]` in one causal pass of the target.

    | name | feature |
    | --- | --- |
    | feature | `[b, n, width]`: what the target's head multiplies |
    | tap:L | `[b, n, width]`: the residual stream behind the first L layers |
    | kv:L | `[b, n, 2, kv_heads, head_dim]`: keys and values that layer L caches |
    """
    names, rows, total = list(names), token.shape[1], len(target.layers)
    if not names:
        return {}
    tap: dict[int, Tensor | None] = {
        int(name[4:]): None for name in names if name.startswith("tap:")
    }
    layers = range(total if set(names) - {f"tap:{depth}" for depth in tap} else max(tap))
    rotation = target.rotation(torch.arange(rows, device=token.device))
    cache = mask = None
    if any(name.startswith("kv:") for name in names):
        cache, mask = target.cache(batch=len(token), capacity=rows), causal_mask(rows, token.device)
    x = target.run(target.embed(token), layers, rotation, mask, cache, tap=tap)
    found: dict[str, Tensor] = {}
    for name in names:
        kind, _, layer = name.partition(":")
        if kind == "tap":
            value = tap[int(layer)]
            assert value is not None  # the pass went through that layer
            found[name] = value
        elif kind == "kv":
            assert cache is not None
            pair = torch.stack((cache.key[int(layer)], cache.value[int(layer)]))
            found[name] = pair[..., :rows, :].permute(1, 3, 0, 2, 4)
        else:
            found[name] = target.norm(x)
    return found
