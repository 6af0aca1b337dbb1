"""GLIDE: a shallow language model that glimpses the target's own key-value cache (GLIDE and CAPE §4.1, arXiv 2402.02082)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from real.draft import Drafter, Pick, Step
from real.model.config import DecoderConfig
from real.model.decoder import Decoder
from real.model.draft_head import load_part
from real.model.kv_cache import KVCache
from real.model.layer import DecoderLayer, RMSNorm
from real.model.rotary import rotate
from real.model.tree_mask import ancestor_mask, branches, chain

Keys = Sequence[tuple[Tensor, Tensor]]
"""Keys and values of the target, `[b, kv_heads, m, head_dim]` each, rotated as they are cached: one pair for each layer of the drafter."""


class Glimpse(nn.Module):
    """Cross-attention: x + output(attention of query(norm(x)) over the target's keys and values)."""

    def __init__(self, width: int, target: DecoderConfig):
        super().__init__()
        self.config = target
        self.norm = RMSNorm(width, target.norm_eps)
        self.query = nn.Linear(width, target.heads * target.head_dim, bias=False)
        self.output = nn.Linear(target.heads * target.head_dim, width, bias=False)
        nn.init.normal_(self.output.weight, std=0.02)

    def forward(
        self, x: Tensor, rotation, key: Tensor, value: Tensor, sees: Tensor | None
    ) -> Tensor:
        """Rows `x [b, n, width]`; `sees`, bool `[n, m]` or `[b, 1, n, m]`, says which of the m keys each may attend to, None: all."""
        if not key.shape[2]:
            return x
        q = self.query(self.norm(x)).view(*x.shape[:2], -1, self.config.head_dim).transpose(1, 2)
        q = rotate(
            q, rotation
        )  # at the row's own place in the text, as the cached keys are at theirs
        group = self.config.heads // self.config.kv_heads
        key, value = (t.to(q.dtype).repeat_interleave(group, 1) for t in (key, value))
        if sees is None:
            return x + self._mix(q, key, value, None)
        # a row that sees nothing would be the mean of nothing, NaN: it looks at the first key, and what it finds is dropped
        first = torch.arange(len(key[0, 0]), device=sees.device) == 0
        some = sees.any(-1, keepdim=True)
        return x + self._mix(q, key, value, sees | ~some & first) * (
            some if some.dim() == 2 else some[:, 0]
        ).to(x.dtype)

    def _mix(self, q: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        return self.output(
            F.scaled_dot_product_attention(q, key, value, attn_mask=mask).transpose(1, 2).flatten(2)
        )


class Glide(nn.Module):
    """The learnt part: layers of self-attention, a glimpse of one target layer's cache, and SwiGLU; then a norm.

    `layers` decoder layers, of which the m-th glimpses target layer `reads[m]` (by default the target's last ones in order, GLIDE
    §4.1). `cross=False` leaves the glimpses out (the ablation of its Figure 4). Embedding and head are the target's (`shared`), or a
    tied pair of its own as in the paper, then of any `width` that is a multiple of the target's head size. `rebuild` says that with two
    or more layers the rows of accepted drafts are computed anew, see `GlideDrafter`. ValueError for settings that cannot be.
    """

    def __init__(
        self,
        target: Decoder,
        layers: int = 1,
        reads: Sequence[int] | None = None,
        cross: bool = True,
        shared: bool = True,
        width: int | None = None,
        rebuild: bool = True,
    ):
        super().__init__()
        s = target.config
        if type(layers) is not int or not 1 <= layers <= s.layers:
            raise ValueError(
                f"layers is {layers!r}; expected an integer from 1 to the target's {s.layers}"
            )
        reads = (
            list(range(s.layers - layers, s.layers))
            if reads is None
            else [reads]
            if type(reads) is int
            else list(reads)
        )
        if len(reads) != layers or not all(type(i) is int and 0 <= i < s.layers for i in reads):
            raise ValueError(
                f"reads is {reads}; expected {layers} target layers, each from 0 to {s.layers - 1}"
            )
        if (
            shared
            and width not in (None, s.width)
            or width is not None
            and (type(width) is not int or width < 1 or width % s.head_dim)
        ):
            raise ValueError(
                f"width is {width!r}; expected a multiple of {s.head_dim}, and with shared=true the target's {s.width}"
            )
        for key, value in {"cross": cross, "shared": shared, "rebuild": rebuild}.items():
            if type(value) is not bool:
                raise ValueError(f"{key} is {value!r}; expected true or false")
        self.settings = {
            "layers": layers,
            "reads": reads,
            "cross": cross,
            "shared": shared,
            "width": width,
            "rebuild": rebuild,
        }
        self.reads, self.cross, self.shared, self.rebuild = reads, cross, shared, rebuild
        own = width or s.width
        heads = own // s.head_dim
        self.config = (
            s
            if own == s.width
            else replace(
                s, width=own, heads=heads, kv_heads=heads, hidden=max(1, s.hidden * own // s.width)
            )
        )
        self.layers = nn.ModuleList(DecoderLayer(self.config) for _ in range(layers))
        for layer in self.layers:
            for writes in (layer.output, layer.down):
                nn.init.normal_(writes.weight, std=0.02)
        self.glimpses = nn.ModuleList(Glimpse(own, s) for _ in range(layers if cross else 0))
        self.norm = RMSNorm(own, s.norm_eps)
        if shared:
            self.norm.load_state_dict(target.norm.state_dict())
        else:
            self.embed = nn.Embedding(s.vocab, own)
            nn.init.normal_(self.embed.weight, std=0.02)
        self.to(target.device, target.dtype)

    def run(
        self,
        target: Decoder,
        token: Tensor,
        keys: Keys,
        sees: Tensor | None,
        cache: KVCache | None = None,
        start: int = 0,
        parent: Sequence[int] = (),
    ) -> Tensor:
        """Rows `token [b, n]` at text positions start ...: `[b, n, width]` after the last layer, before the norm.

        `keys` and `sees [n, m]` as for `Glimpse`; with a cache the first `start` rows of the drafter's own are seen too. With `parent`,
        that of all rows of a tree, these are its last n, kept from `start` on; each sees its ancestors, and the rows before the tree.
        """
        rows, device = token.shape[1], token.device
        if parent:
            position, mask = branches(start + rows - len(parent), list(parent), rows, device)
        else:
            position = torch.arange(start, start + rows, device=device)
            mask = None if cache is None else ancestor_mask(start, chain(rows), device)
        rotation = target.rotation(position)
        if cache is not None:
            cache.reserve(start + rows)
        x = (target if self.shared else self).embed(token)
        for i, layer in enumerate(self.layers):
            x = layer.attend(x, rotation, mask, cache, i, start)
            if self.cross:
                x = self.glimpses[i](x, rotation, *keys[i], sees)
            x = layer.mlp(x)
        return x

    def logits(self, target: Decoder, x: Tensor) -> Tensor:
        """Logits `[..., vocab]` of what `run` gave."""
        return F.linear(self.norm(x), (target.head if self.shared else self.embed).weight)

    @torch.no_grad()
    def read(self, target: Decoder, token: Tensor) -> tuple[Keys, Tensor]:
        """The target's keys and values at whole texts `token [b, n]`, for the layers read, and its last hidden states `[b, n, width]`."""
        rows = token.shape[1]
        cache = target.cache(batch=len(token), capacity=rows)
        rotation = target.rotation(torch.arange(rows, device=token.device))
        mask = torch.ones(rows, rows, dtype=torch.bool, device=token.device).tril()
        hidden = target.run(target.embed(token), range(len(target.layers)), rotation, mask, cache)
        return [(cache.key[i], cache.value[i]) for i in self.reads], hidden

    def teach(self, target: Decoder, token: Tensor, keys: Keys, block: int) -> Tensor:
        """`run` on whole texts `token [b, n]` under the block-wise mask (`blockwise`)."""
        return self.run(target, token, keys, blockwise(token.shape[1], block).to(token.device))


def blockwise(rows: int, block: int) -> Tensor:
    """Bool `[rows, rows]`: row j sees the target's keys of the blocks before its own, k < block * floor(j / block) (GLIDE §4.1).

    So within a block of 5 the newest key is 1, 2, .. 5 rows old, as it is for the first, second, .. fifth token of a draft.
    ValueError for a block that is no integer of 1 or more.
    """
    if type(block) is not int or block < 1:
        raise ValueError(
            f"block is {block!r}; expected an integer of 1 row or more (the paper has 5)"
        )
    place = torch.arange(rows)
    return place < (place // block * block)[:, None]


class GlideDrafter(Drafter):
    """Drafts with a glimpse of what the target has cached: at every step of a round the keys of all committed rows, no more.

    Step i of a round is so i rows away from the newest key (not `prefix_only`, but for `cross=False`). One layer: its own keys depend
    on tokens alone, rows of accepted drafts stay. More layers: theirs depend on which keys of the target were seen. With `rebuild` all
    committed tokens enter under one rule, the row at j sees keys k < j: rows of accepted drafts are forgotten and enter anew with
    the next round's first step (`history_free`). Without it they stay as they were drafted, and the drafter is not history-free.
    """

    name = "glide"
    taps = ()

    def __init__(self, target: Decoder, part: Glide):
        self.decoder, self.part = target, part
        self.prefix_only = not part.cross
        self.keeps = (
            len(part.layers) == 1 or not part.cross
        )  # rows of accepted drafts are what fresh ones would be
        self.history_free = self.keeps or part.rebuild
        self.predictors = {}

    @classmethod
    def load(cls, folder: Path, target: Decoder, made_for: Mapping[str, str]) -> "GlideDrafter":
        """From glide.json and glide.safetensors, as `save_part` writes them."""
        return cls(target, load_part(Glide, folder, "glide", target, made_for))

    def begin(self, target, prompt: list[int], prefill, pick: Pick) -> None:
        self.target, self.pick = target, pick
        self.cache = KVCache(
            self.part.config,
            len(self.part.layers),
            1,
            len(prompt) + 64,
            self.decoder.dtype,
            self.decoder.device,
        )
        self.text, self.draft, self.parent = list(prompt), [], []
        self.rows = 0
        if len(prompt) > 1:
            self._feed(prompt[:-1])

    @torch.inference_mode()
    def next(self) -> Step:
        slot = len(self.draft)
        if (
            not slot
        ):  # the last committed token is read anew where a draft of it was given up unverified
            self.rows = min(self.rows, len(self.text) - 1)
        hidden = self._feed(self.draft[-1:] if slot else self.text[self.rows :])[-1]
        logits = self.part.logits(self.decoder, hidden)
        self.draft.append(self.pick(logits, slot))
        return Step(self.draft[-1], slot, logits, hidden)

    @torch.inference_mode()
    def grow(self, token: list[int], parent: list[int]) -> Tensor:
        if not self.parent:
            self.rows = min(self.rows, len(self.text) - 1)
            hidden = self._feed(self.text[self.rows :])[-1:]
            self.parent = list(parent)
        else:
            self.parent, root = self.parent + parent, self.rows
            self.rows = root - 1 + len(self.parent) - len(token)
            hidden = self._feed(token, self.parent)
            self.rows = root  # a tree's rows are not counted
        return self.part.logits(self.decoder, hidden)

    def resume(self) -> None:
        return None

    def rollback(self, accepted: int) -> None:
        kept = accepted if self.keeps or not self.part.rebuild else 0
        self.rows = min(self.rows, len(self.text) + kept)
        self.draft, self.parent = [], []

    def catch_up(self, tokens: list[int], output, path) -> None:
        self.text += tokens

    @torch.inference_mode()
    def _feed(self, tokens: list[int], parent: Sequence[int] = ()) -> Tensor:
        device, start, known = self.decoder.device, self.rows, self.target.length
        held = self.target.cache
        keys = [(held.key[i][:, :, :known], held.value[i][:, :, :known]) for i in self.part.reads]
        # a drafted row stands behind every key there is, rows of the text see those before them
        sees = None
        if start < known:
            sees = (
                torch.arange(known, device=device)
                < torch.arange(start, start + len(tokens), device=device)[:, None]
            )
        x = self.part.run(
            self.decoder,
            torch.tensor([tokens], device=device),
            keys,
            sees,
            self.cache,
            start,
            parent,
        )
        self.rows += len(tokens)
        return x[0]
