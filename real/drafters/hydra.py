"""Hydra: as Medusa, but each head also sees the tokens drafted before its own (Hydra, arXiv 2402.05109)."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from real.draft import Drafter, Pick, Step
from real.model.checkpoint import WeightsError
from real.model.decoder import Decoder
from real.model.draft_head import fill, load_part, read_state


class Mix(nn.Module):
    """R x + silu(W x + b) from `parts` vectors of the width, side by side, to one; R takes the first of them unless it is learnt."""

    def __init__(self, width: int, parts: int, learnt: bool):
        super().__init__()
        self.width = width
        self.linear = nn.Linear(parts * width, width)
        nn.init.normal_(self.linear.weight, std=0.02)
        nn.init.zeros_(self.linear.bias)
        self.residual = nn.Linear(parts * width, width) if learnt else None

    def forward(self, x: Tensor) -> Tensor:
        straight = x[..., : self.width] if self.residual is None else self.residual(x)
        return straight + F.silu(self.linear(x))


class Hydra(nn.Module):
    """The learnt part: head j sees feature f_i and the embeddings of t_{i+1} .. t_{i+1+j} and predicts t_{i+2+j}, j from 0.

    A feature is what the target's head multiplies, f_i at the position of t_i. Each stack is a mix of its 2 + j vectors, then
    `blocks` - 1 residual mixes of one, then the target's head. The released heads also learn the residual's matrix
    (`residual`), and have a vocabulary matrix with a bias each (`own_head`). ValueError for fewer than one head or block.
    """

    def __init__(
        self,
        target: Decoder,
        heads: int = 4,
        blocks: int = 1,
        own_head: bool = False,
        residual: bool = False,
    ):
        super().__init__()
        if type(heads) is not int or type(blocks) is not int or min(heads, blocks) < 1:
            raise ValueError(
                f"heads is {heads!r} and blocks {blocks!r}; expected integers, 1 or more"
            )
        width, vocab = target.config.width, target.config.vocab
        self.settings = {
            "heads": heads,
            "blocks": blocks,
            "own_head": own_head,
            "residual": residual,
        }
        self.stacks = nn.ModuleList(
            nn.Sequential(
                Mix(width, 2 + j, residual), *(Mix(width, 1, False) for _ in range(blocks - 1))
            )
            for j in range(heads)
        )
        # embeddings are an order smaller than features: both shall count at first
        size = target.embed.weight.std() / target.norm.weight.square().mean().sqrt()
        for stack in self.stacks:
            stack[0].linear.weight.data[:, width:] /= size.to(stack[0].linear.weight)
        if own_head:
            self.head = nn.ModuleList(nn.Linear(width, vocab) for _ in range(heads))
            for head in self.head:
                head.weight.data.copy_(target.head.weight.data)
                head.bias.data.zero_()
        self.to(target.device, target.dtype)

    def logits(self, target: Decoder, head: int, hidden: Tensor) -> Tensor:
        """Logits `[..., vocab]` of head `head` from what its stack gave, `[..., width]`."""
        return (self.head[head] if self.settings["own_head"] else target.head)(hidden)

    def teach(self, target: Decoder, feature: Tensor, token: Tensor, head: int) -> Tensor:
        """What stack `head` gives for the rows `feature [b, n, width]` f_i, with `token [b, at least n + 1 + head]` t_0, t_1, ..."""
        rows = feature.shape[1]
        seen = [
            target.embed(token[:, 1 + j : 1 + j + rows]).to(feature.dtype) for j in range(head + 1)
        ]
        return self.stacks[head](torch.cat([feature, *seen], -1))


class HydraDrafter(Drafter):
    """Drafts one token a head, each head fed the token that the head before it drafted.

    A draft is a function of the feature that the last committed token was picked from, of that token and of itself (`history_free`, not
    `prefix_only`). Behind the last head, and where the text is one token long, nothing is offered.
    """

    name = "hydra"
    taps = ()
    prefix_only = False
    history_free = True

    def __init__(self, target: Decoder, part: Hydra):
        self.decoder, self.part = target, part
        self.max_draft_length = len(part.stacks)
        self.predictors = {}

    @classmethod
    def load(cls, folder: Path, target: Decoder, made_for: Mapping[str, str]) -> "HydraDrafter":
        """From hydra.json and hydra.safetensors, as `save_part` writes them, or from a checkpoint as `published` reads it."""
        folder = Path(folder)
        if (folder / "config.json").exists() and not (folder / "hydra.json").exists():
            return cls(target, published(folder, target))
        return cls(target, load_part(Hydra, folder, "hydra", target, made_for))

    @torch.inference_mode()
    def begin(self, target, prompt: list[int], prefill, pick: Pick) -> None:
        self.pick, self.last, self.draft, self.paths = pick, prompt[-1], [], []
        self.feature = self.decoder.norm(prefill.hidden[-1]) if len(prefill.hidden) else None

    @torch.inference_mode()
    def next(self) -> Step | None:
        slot, decoder = len(self.draft), self.decoder
        if self.feature is None or slot == len(self.part.stacks):
            return None
        hidden = self._behind([[self.last, *self.draft]])[0]
        logits = self.part.logits(decoder, slot, hidden)
        self.draft.append(self.pick(logits, slot))
        return Step(self.draft[-1], slot, logits, hidden)

    @torch.inference_mode()
    def grow(self, token: list[int], parent: list[int]) -> Tensor | None:
        if self.feature is None:
            return None
        new: list[list[int]] = []
        for t, p in zip(token, parent):
            new.append([t] if p < 0 else [*(self.paths + new)[p], t])
        self.paths = self.paths + new
        logits = torch.empty(
            len(new),
            self.decoder.config.vocab,
            dtype=self.decoder.dtype,
            device=self.decoder.device,
        )
        for length in {len(path) for path in new}:
            rows = [i for i, path in enumerate(new) if len(path) == length]
            logits[rows] = self.part.logits(
                self.decoder, length - 1, self._behind([new[i] for i in rows])
            )
        return logits

    def resume(self) -> None:
        return None

    def rollback(self, accepted: int) -> None:
        self.draft, self.paths = [], []

    @torch.inference_mode()
    def catch_up(self, tokens: list[int], output, path: list[int]) -> None:
        self.feature = self.decoder.norm(output.hidden[path[-1]])
        self.last = tokens[-1]

    def _behind(self, paths: list[list[int]]) -> Tensor:
        """What a stack gives `[n, width]` behind n paths of tokens, each from the last committed one, all of one length."""
        token = torch.tensor(paths, device=self.decoder.device)
        feature = self.feature.expand(len(paths), -1)
        return self.part.stacks[len(paths[0]) - 1](
            torch.cat((feature, self.decoder.embed(token).flatten(1)), -1)
        )


def published(folder: Path, target: Decoder) -> Hydra:
    """A Hydra from the form of zankner/Hydra's plain heads ("mlp"): config.json and hydra_lm_head.safetensors (or model.safetensors).

    Tensors hydra_mlp.H.B.linear.{weight,bias} of block B of head H, hydra_mlp.H.0.res_connection.{weight,bias}, and
    hydra_lm_head.H.{weight,bias}; a leading "hydra_head." is dropped. config.json says "hydra_num_layers". WeightsError, one line, for
    anything else: Hydra++ ("prefix-mlp", with a decoder layer over the features) and heads that see no drafts are not computed here.
    """
    try:
        config = dict(json.loads((folder / "config.json").read_text(encoding="utf-8")))
        blocks, kind = int(config["hydra_num_layers"]), config.get("hydra_head_arch", "mlp")
    except (OSError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise WeightsError(
            f"{folder} is no Hydra checkpoint: config.json says no hydra_num_layers ({type(error).__name__})"
        ) from error
    if kind != "mlp" or config.get("grounded_heads") is False:
        raise WeightsError(
            f"{folder} holds Hydra heads of the kind {kind!r}; expected 'mlp' heads that see the drafted tokens"
        )
    file = next(
        (
            folder / name
            for name in ("hydra_lm_head.safetensors", "model.safetensors")
            if (folder / name).exists()
        ),
        None,
    )
    state = {
        _ours(name): value
        for name, value in read_state(file or folder / "hydra_lm_head.safetensors").items()
    }
    heads = len([name for name in state if re.fullmatch(r"head\.\d+\.weight", name)])
    try:
        part = Hydra(target, heads, blocks, own_head=True, residual=True)
    except ValueError as error:
        raise WeightsError(f"{folder} is no Hydra checkpoint: {error}") from error
    fill(part, state, str(folder))
    return part.requires_grad_(False).eval()


def _ours(name: str) -> str:
    """Our name of a released tensor, or the name itself where there is none (`fill` then refuses it)."""
    plain = name.removeprefix("hydra_head.")
    plain = re.sub(r"^hydra_lm_head\.", "head.", plain)
    return re.sub(r"^hydra_mlp\.", "stacks.", plain).replace(".res_connection.", ".residual.")
