"""EAGLE's draft head: decoder layers that extrapolate the target's features."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from real.model.decoder import Decoder
from real.model.draft_head import DraftHead
from real.model.kv_cache import KVCache, StaticKVCache
from real.model.layer import DecoderLayer

INPUTS = ("feature&shifted_token", "feature&unshifted_token", "token", "feature")
"""What row i reads (EAGLE §5.3.2, Figure 10): (f_i, t_{i+1}), (f_i, t_i), t_{i+1} or f_i."""


class EagleHead(DraftHead):
    """FC, then decoder layers: row i estimates f_{i+1}, from which the target predicts t_{i+2}.

    A feature f_i is the target's residual stream at token i after its final norm: what its head
    multiplies. Embedding and head stay the target's (EAGLE §4.1, arXiv 2401.15077).

    | setting | meaning |
    | --- | --- |
    | inputs | one of `INPUTS`; FC maps [embedding; feature], or one of them, to the width |
    | layers | decoder layers |
    | bias | of FC, as released |
    | first_norm | a norm in front of the first layer's attention; the released head has none |
    | norm_eps | of the layers' norms; None: the target's |

    The paper has no FC for single inputs; here it stays, so that the four differ in inputs alone.
    ValueError for other settings.
    """

    def __init__(
        self,
        target: Decoder,
        inputs: str = INPUTS[0],
        layers: int = 1,
        bias: bool = True,
        first_norm: bool = False,
        norm_eps: float | None = None,
    ):
        super().__init__()
        if inputs not in INPUTS:
            raise ValueError(f"inputs is {inputs!r}; expected one of {', '.join(INPUTS)}")
        if type(layers) is not int or layers < 1:
            raise ValueError(f"layers is {layers!r}; expected an integer, 1 or more")
        if norm_eps is not None and not (isinstance(norm_eps, float) and 0 < norm_eps < 1):
            raise ValueError(
                f"norm_eps is {norm_eps!r}; "
                "expected a small positive number, or None for the target's"
            )
        self.settings = {
            "inputs": inputs,
            "layers": layers,
            "bias": bias,
            "first_norm": first_norm,
            "norm_eps": norm_eps,
        }
        config = target.config if norm_eps is None else replace(target.config, norm_eps=norm_eps)
        self.inputs, self.shift = inputs, int("unshifted" not in inputs)
        self.fc = nn.Linear(config.width * (1 + ("&" in inputs)), config.width, bias=bias)
        decoder_layers = [DecoderLayer(config) for _ in range(layers)]
        for layer in decoder_layers:
            for residual_writer in (layer.output, layer.down):
                nn.init.normal_(residual_writer.weight, std=0.02)
        self.layers = nn.ModuleList(decoder_layers)
        # embeddings are an order of magnitude smaller than features: both shall count at first
        sizes = [target.embed.weight.std()] if "token" in inputs else []
        sizes += [target.norm.weight.square().mean().sqrt()] if "feature" in inputs else []
        for columns, size in zip(self.fc.weight.data.chunk(len(sizes), 1), sizes):
            columns /= size.to(columns)
        if not first_norm:
            self.layers[0].attention_norm = nn.Identity()
        self.to(target.device, target.dtype)

    def output(self, target: Decoder) -> nn.Module:
        """The vocabulary head that multiplies estimates."""
        return self.shared_output(target)

    def estimate(
        self,
        target: Decoder,
        feature: Tensor,
        token: Tensor,
        rotation,
        mask: Tensor | None = None,
        cache: KVCache | StaticKVCache | None = None,
        start: int = 0,
    ) -> Tensor:
        """Estimated next features `[b, n, width]` of rows `feature [b, n, width]`, `token [b, n]`.

        Features and tokens are paired as `inputs` says.
        """
        inputs = [target.embed(token)] if "token" in self.inputs else []
        inputs += [feature] if "feature" in self.inputs else []
        x = self.fc(torch.cat(inputs, -1))
        for i, layer in enumerate(self.layers):
            x = layer(x, rotation, mask, cache, i, start)
        return x

    def teacher_forced(self, target: Decoder, feature: Tensor, token: Tensor) -> Tensor:
        """Estimates `[b, n, width]` of f_1 .. f_n from true features f_0 .. f_{n-1}.

        `feature [b, n, width]`, `token [b, n + 1]` t_0 .. t_n.
        """
        rows = feature.shape[1]
        rotation = target.rotation(torch.arange(rows, device=feature.device))
        return self.estimate(target, feature, token[:, self.shift : self.shift + rows], rotation)
