"""Medusa's heads: residual blocks on the target's last feature, one stack for each later token."""

from torch import Tensor, nn
from torch.nn import functional as F

from real.model.decoder import Decoder
from real.model.draft_head import StackedHeads


class ResidualBlock(nn.Module):
    """x + silu(W x + b), the identity before training."""

    def __init__(self, width: int):
        super().__init__()
        self.linear = nn.Linear(width, width)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.silu(self.linear(x))


class MedusaHeads(StackedHeads):
    """Head j reads feature f_i and predicts t_{i+2+j}, j from 0 (Medusa, arXiv 2401.10774).

    A feature is what the target's head multiplies, f_i at the position of t_i; t_{i+1} is the
    target's own pick from it.

    | setting | meaning |
    | --- | --- |
    | heads | stacks of residual blocks, each followed by a vocabulary head |
    | blocks | residual blocks in a stack |
    | own_head | a vocabulary head of its own per stack (as published); False: the target's |

    ValueError for fewer than one head or block.
    """

    stacks: nn.ModuleList
    head: nn.ModuleList

    def __init__(self, target: Decoder, heads: int = 4, blocks: int = 1, own_head: bool = False):
        super().__init__()
        if type(heads) is not int or type(blocks) is not int or min(heads, blocks) < 1:
            raise ValueError(
                f"heads is {heads!r} and blocks {blocks!r}; expected integers, 1 or more"
            )
        width, vocab = target.config.width, target.config.vocab
        self.settings = {"heads": heads, "blocks": blocks, "own_head": own_head}
        self.stacks = nn.ModuleList(
            nn.Sequential(*(ResidualBlock(width) for _ in range(blocks))) for _ in range(heads)
        )
        if own_head:
            own = [nn.Linear(width, vocab, bias=False) for _ in range(heads)]
            for head in own:
                head.weight.data.copy_(target.head.weight.data)
            self.head = nn.ModuleList(own)
        self.to(target.device, target.dtype)

    def teacher_forced(self, target: Decoder, feature: Tensor, token: Tensor, head: int) -> Tensor:
        """Output of stack `head` for `feature [b, n, width]`; no Medusa head reads a `token`."""
        return self.stacks[head](feature)
