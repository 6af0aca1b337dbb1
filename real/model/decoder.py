"""A decoder for Llama, Mistral, Qwen2 and Qwen3 that passes any range of layers under any mask.

Its logits equal those of transformers to 1e-5 in float32.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from real.model.config import DecoderConfig
from real.model.kv_cache import KVCache, StaticKVCache
from real.model.layer import DecoderLayer, Linear, RMSNorm, frequencies


def initialize(model: nn.Module, seed: int) -> None:
    """Draws normal matrices of deviation 0.02, less for those that write to the residual stream.

    Residual writers (attention output, MLP down projection) get 0.02 / sqrt(2 layers).
    """
    torch.manual_seed(seed)
    layers = len(getattr(model, "layers", [])) or 1
    for name, p in model.named_parameters():
        if p.ndim == 2:
            writes = name.endswith(("output.weight", "down.weight"))
            nn.init.normal_(p, std=0.02 / (math.sqrt(2 * layers) if writes else 1.0))


class Decoder(nn.Module):
    """Embedding, layers, final norm and head.

    | attribute | meaning |
    | --- | --- |
    | frequency `[head_dim / 2]`, scaling | in place of the default rotary frequencies |
    | context | most tokens of a sequence; None: not known |
    | window | tokens that sliding-window attention sees; None: all |

    Attention is computed in full: sequences longer than the window are refused (`check_length`).
    """

    head: Any  # nn.Linear; of a drafter, maybe a `DraftVocabularyHead`
    context: int | None = None
    window: int | None = None

    def __init__(
        self, config: DecoderConfig, frequency: Tensor | None = None, scaling: float = 1.0
    ):
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab, config.width)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.width, config.norm_eps)
        self.head = Linear(config.width, config.vocab, bias=False)
        if config.tied:
            self.head.weight = self.embed.weight
        self.frequency = frequencies(config) if frequency is None else frequency
        self.scaling = scaling

    @property
    def device(self) -> torch.device:
        return self.embed.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embed.weight.dtype

    def check_length(self, tokens: int) -> None:
        """ValueError for a sequence of `tokens` tokens where it is longer than the window."""
        if self.window is not None and tokens > self.window:
            raise ValueError(
                f"a sequence of {tokens:,} tokens is longer than the model's attention window of "
                f"{self.window:,}, and sliding windows are not computed; use shorter prompts or a "
                "smaller budget"
            )

    def cache(self, layers: int | None = None, batch: int = 1, capacity: int = 256) -> KVCache:
        """An empty cache for `layers` of this decoder's layers (all by default)."""
        layers = len(self.layers) if layers is None else layers
        return KVCache(self.config, layers, batch, capacity, self.dtype, self.device)

    def rotation(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines `[n, head_dim]` of positions int64 `[n]`; computed in at least
        float32."""
        wide = torch.float64 if self.dtype == torch.float64 else torch.float32
        angle = torch.outer(position.to(wide), self._device_frequency(position.device, wide))
        angle = torch.cat((angle, angle), -1)
        cos, sin = angle.cos() * self.scaling, angle.sin() * self.scaling
        return cos.to(self.dtype), sin.to(self.dtype)

    def chain_rotation(self, start: int, rows: int) -> tuple[Tensor, Tensor]:
        """`rotation` of the positions start, start + 1, ...: rows of a table that is made once."""
        end, like = start + rows, self.embed.weight
        source, scaling, cos, sin = self.__dict__.get("_rotations", (None, 0.0, like, like))
        same = source is self.frequency and scaling == self.scaling
        fits = cos.dtype == like.dtype and cos.device == like.device and len(cos) >= end
        if not (same and fits):
            with torch.inference_mode(False), torch.no_grad():  # for passes with gradients too
                cos, sin = self.rotation(torch.arange(max(256, 2 * end), device=like.device))
            self._rotations = self.frequency, self.scaling, cos, sin
        return cos[start:end], sin[start:end]

    def _device_frequency(self, device, dtype) -> Tensor:
        # copied to the device once: a captured pass cannot copy from the host
        source, copy = self.__dict__.get("_copied", (None, None))
        if source is not self.frequency or copy.device != device or copy.dtype != dtype:
            self._copied = self.frequency, self.frequency.to(device, dtype)
        return self._copied[1]

    def run(
        self,
        x: Tensor,
        layers: range,
        rotation: tuple[Tensor, Tensor],
        mask: Tensor | None = None,
        cache: KVCache | StaticKVCache | None = None,
        start: int = 0,
        tap: dict[int, Tensor | None] | None = None,
    ) -> Tensor:
        """Passes rows `x [batch, n, width]` through `layers`; the dict `tap` receives x after each
        layer that is a key."""
        if cache is not None:
            cache.reserve(start + x.shape[1])
        blocks = tuple(self.layers)  # an index into a ModuleList takes as long as a small norm
        for i in layers:
            x = blocks[i](x, rotation, mask, cache, i, start)
            if tap is not None and i + 1 in tap:
                tap[i + 1] = x
        return x

    def logits(self, x: Tensor) -> Tensor:
        """Logits `[..., vocab]` of rows that have passed the last layer."""
        return self.head(self.norm(x))

    def forward(self, token: Tensor) -> Tensor:
        """Logits `[batch, n, vocab]` of whole sequences `[batch, n]`, causal, without a cache."""
        self.check_length(token.shape[1])
        position = torch.arange(token.shape[1], device=token.device)
        return self.logits(
            self.run(self.embed(token), range(len(self.layers)), self.rotation(position))
        )
