"""What drafters of a trained head share: stacks with vocabulary heads, released files, loading."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from real.draft.kind import TrainingRecipe
from real.draft.protocol import Drafter, Pick
from real.model.decoder import Decoder, DecoderConfig, DecoderLayer
from real.model.draft_head import (
    DraftHead,
    DraftVocabularyHead,
    Head,
    check_vocabulary,
    fill,
    load_draft_head,
    made,
)


def new_layers(config: DecoderConfig, count: int) -> nn.ModuleList:
    """Decoder layers that add little to the residual stream before training."""
    layers = [DecoderLayer(config) for _ in range(count)]
    for layer in layers:
        for residual_writer in (layer.output, layer.down):
            nn.init.normal_(residual_writer.weight, std=0.02)
    return nn.ModuleList(layers)


class ResidualBlock(nn.Module):
    """R x + silu(W x + b) from `inputs` concatenated vectors of the width to one.

    R is trained with `projected`, else it selects the first vector. W is drawn with the deviation
    `std`; 0: the block is the identity before training.
    """

    def __init__(self, width: int, inputs: int = 1, projected: bool = False, std: float = 0.0):
        super().__init__()
        self.width = width
        self.linear = nn.Linear(inputs * width, width)
        nn.init.zeros_(self.linear.bias)
        if std:
            nn.init.normal_(self.linear.weight, std=std)
        else:
            nn.init.zeros_(self.linear.weight)
        self.residual = nn.Linear(inputs * width, width) if projected else None

    def forward(self, x: Tensor) -> Tensor:
        residual = x[..., : self.width] if self.residual is None else self.residual(x)
        return residual + F.silu(self.linear(x))


class StackedHeads(DraftHead):
    """Base class of one stack a drafted token, each with the target's vocabulary head or its own.

    | attribute | meaning |
    | --- | --- |
    | settings["own_head"] | whether `head` has a vocabulary head for every stack |
    | head | these heads |

    ValueError for fewer than one head or block.
    """

    stacks: nn.ModuleList
    head: nn.ModuleList

    def __init__(self, heads: int, blocks: int, **settings: object):
        super().__init__()
        if type(heads) is not int or type(blocks) is not int or min(heads, blocks) < 1:
            raise ValueError(
                f"heads is {heads!r} and blocks {blocks!r}; expected integers, 1 or more"
            )
        self.settings = {"heads": heads, "blocks": blocks, **settings}

    def add_heads(self, target: Decoder, bias: bool) -> None:
        """Copies of the target's vocabulary head, where the settings have own ones."""
        if self.settings["own_head"]:
            width, vocab = target.config.width, target.config.vocab
            own = [nn.Linear(width, vocab, bias=bias) for _ in range(self.settings["heads"])]
            for head in own:
                head.weight.data.copy_(target.head.weight.data)
                if bias:
                    head.bias.data.zero_()
            self.head = nn.ModuleList(own)
        self.to(target.device, target.dtype)

    def restrict(self, target: Decoder, token: Tensor) -> None:
        """See `DraftHead.restrict`; separate heads keep the rows of these tokens."""
        if not self.settings["own_head"]:
            return super().restrict(target, token)
        self.draft_token = check_vocabulary(token, target.config.vocab)
        own = (
            DraftVocabularyHead(cast(nn.Linear, head), token, trained=True) for head in self.head
        )
        self.head = nn.ModuleList(own)

    def output(self, target: Decoder, head: int) -> nn.Module:
        """The vocabulary head after stack `head`."""
        return self.head[head] if self.settings["own_head"] else self.shared_output(target)

    def logits(self, target: Decoder, head: int, hidden: Tensor) -> Tensor:
        """Logits `[..., vocab]` of head `head` from the output of its stack, `[..., width]`."""
        return self.output(target, head)(hidden)


class StackedDrafter(Drafter):
    """Base class of drafters that read the target's feature after the last committed token.

    A draft is a function of that feature, and of what else the stacks read of the round
    (`history_free`, not `prefix_only`). Nothing is offered after the last head, or after a prompt
    of one token.
    """

    prefix_only = False
    history_free = True

    def __init__(self, target: Decoder, head: Any):
        self.decoder, self.head = target, head
        self.max_draft_length: int = len(head.stacks)

    @torch.inference_mode()
    def begin(self, target, prompt: list[int], prefill, pick: Pick) -> None:
        self.pick = pick
        self.feature: Any = self.decoder.norm(prefill.hidden[-1]) if len(prefill.hidden) else None

    @torch.inference_mode()
    def catch_up(self, tokens: list[int], output, path: list[int]) -> None:
        self.feature = self.decoder.norm(output.hidden[path[-1]])


def head_loader(
    recipe: TrainingRecipe, published: Callable[[Path, Decoder], nn.Module] | None = None
) -> Callable[[Path, Decoder, Mapping[str, str]], Drafter]:
    """`DrafterKind.load` of a recipe's head: from <file>.json and <file>.safetensors.

    Or else from a released checkpoint's config.json, by `published`.
    """

    def load(folder: Path, target: Decoder, made_for: Mapping[str, str]) -> Drafter:
        folder, file = Path(folder), recipe.file
        foreign = (folder / "config.json").exists() and not (folder / f"{file}.json").exists()
        if published is not None and foreign:
            return recipe.drafter(target, published(folder, target))
        head = load_draft_head(recipe.head, folder, file, target, made_for)
        return recipe.drafter(target, head)

    return load


def filled(
    make: Callable[..., Head],
    target: Decoder,
    settings: Mapping[str, object],
    state: Mapping[str, Tensor],
    folder: Path,
) -> Head:
    """`make(target, **settings)` with a released `state`, frozen; WeightsError if that is unfit."""
    head = made(make, target, settings, f"{folder / 'config.json'}")
    fill(head, state, str(folder))
    return head.requires_grad_(False).eval()
