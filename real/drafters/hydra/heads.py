"""Hydra's heads: as Medusa's, but each also reads the embeddings of the tokens before its own."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from real.model.decoder import Decoder
from real.model.draft_head import StackedHeads


class ResidualBlock(nn.Module):
    """R x + silu(W x + b) from `inputs` concatenated vectors of the width to one.

    R is trained with `projected`, else it selects the first vector.
    """

    def __init__(self, width: int, inputs: int, projected: bool):
        super().__init__()
        self.width = width
        self.linear = nn.Linear(inputs * width, width)
        nn.init.normal_(self.linear.weight, std=0.02)
        nn.init.zeros_(self.linear.bias)
        self.residual = nn.Linear(inputs * width, width) if projected else None

    def forward(self, x: Tensor) -> Tensor:
        residual = x[..., : self.width] if self.residual is None else self.residual(x)
        return residual + F.silu(self.linear(x))


class HydraHeads(StackedHeads):
    """Head j reads f_i and embeddings of t_{i+1} .. t_{i+1+j}, and predicts t_{i+2+j}, j from 0.

    A feature is what the target's head multiplies, f_i at the position of t_i (Hydra, arXiv
    2402.05109).

    | setting | meaning |
    | --- | --- |
    | heads | stacks of residual blocks, each followed by a vocabulary head |
    | blocks | blocks of a stack: the first reads 2 + j vectors, the others one |
    | own_head | a vocabulary head with a bias per stack (as released); False: the target's |
    | residual | a trained matrix on the first block's residual path (as released) |

    ValueError for fewer than one head or block.
    """

    stacks: nn.ModuleList
    head: nn.ModuleList

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
        stacks = [
            [
                ResidualBlock(width, 2 + j, residual),
                *(ResidualBlock(width, 1, False) for _ in range(blocks - 1)),
            ]
            for j in range(heads)
        ]
        # embeddings are an order of magnitude smaller than features: both shall count at first
        size = target.embed.weight.std() / target.norm.weight.square().mean().sqrt()
        for stack in stacks:
            stack[0].linear.weight.data[:, width:] /= size.to(stack[0].linear.weight)
        self.stacks = nn.ModuleList(nn.Sequential(*stack) for stack in stacks)
        if own_head:
            own = [nn.Linear(width, vocab) for _ in range(heads)]
            for head in own:
                head.weight.data.copy_(target.head.weight.data)
                head.bias.data.zero_()
            self.head = nn.ModuleList(own)
        self.to(target.device, target.dtype)

    def teacher_forced(self, target: Decoder, feature: Tensor, token: Tensor, head: int) -> Tensor:
        """Output of stack `head` for the rows `feature [b, n, width]` f_i.

        `token [b, at least n + 1 + head]` t_0, t_1, ...
        """
        rows = feature.shape[1]
        embeddings = [
            target.embed(token[:, 1 + j : 1 + j + rows]).to(feature.dtype) for j in range(head + 1)
        ]
        return self.stacks[head](torch.cat([feature, *embeddings], -1))
