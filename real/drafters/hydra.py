"""Hydra: as Medusa, but each head also reads the tokens drafted before its own."""

import torch
from torch import Tensor, nn

from real.draft import DrafterKind, PaperRecipe, Pick, Step, TrainingRecipe
from real.draft.heads import ResidualBlock, StackedDrafter, StackedHeads, head_loader
from real.draft.kind import DraftedLogits, Proposal
from real.draft.losses import multi_head_loss
from real.model.decoder import Decoder
from real.model.passes import TargetPass


class HydraHeads(StackedHeads):
    """Head j reads f_i and embeddings of t_{i+1} .. t_{i+1+j}, and predicts t_{i+2+j}, j from 0.

    A feature is what the target's head multiplies, f_i at the position of t_i (Hydra, arXiv
    2402.05109).
    """

    def __init__(
        self,
        target: Decoder,
        heads: int = 4,  # stacks of residual blocks, each followed by a vocabulary head
        blocks: int = 1,  # of a stack: the first reads 2 + j vectors, the others one
        own_head: bool = False,  # with a bias per stack (as released); False: the target's
        residual: bool = False,  # a trained matrix on the first block's path (as released)
    ):
        super().__init__(heads, blocks, own_head=own_head, residual=residual)
        width = target.config.width
        stacks = [
            [
                ResidualBlock(width, 2 + j, residual, 0.02),
                *(ResidualBlock(width, std=0.02) for _ in range(blocks - 1)),
            ]
            for j in range(heads)
        ]
        # embeddings are an order of magnitude smaller than features: both shall count at first
        size = target.embed.weight.std() / target.norm.weight.square().mean().sqrt()
        for stack in stacks:
            stack[0].linear.weight.data[:, width:] /= size.to(stack[0].linear.weight)
        self.stacks = nn.ModuleList(nn.Sequential(*stack) for stack in stacks)
        self.add_heads(target, bias=True)

    def teacher_forced(self, target: Decoder, feature: Tensor, token: Tensor, head: int) -> Tensor:
        """Output of stack `head` for the rows `feature [b, n, width]` f_i.

        `token [b, at least n + 1 + head]` t_0, t_1, ...
        """
        rows = feature.shape[1]
        embeddings = [
            target.embed(token[:, 1 + j : 1 + j + rows]).to(feature.dtype) for j in range(head + 1)
        ]
        return self.stacks[head](torch.cat([feature, *embeddings], -1))


class HydraDrafter(StackedDrafter):
    """Drafts one token a head, each head reading the tokens that the heads before it drafted.

    It reads the last committed token as well.
    """

    name = "hydra"

    def begin(self, target, prompt: list[int], prefill, pick: Pick) -> None:
        super().begin(target, prompt, prefill, pick)
        self.last = prompt[-1]
        self.draft: list[int] = []
        self.paths: list[list[int]] = []

    @torch.inference_mode()
    def next(self) -> Step | None:
        slot, decoder = len(self.draft), self.decoder
        if self.feature is None or slot == self.max_draft_length:
            return None
        hidden = self._hidden([[self.last, *self.draft]])[0]
        logits = self.head.logits(decoder, slot, hidden)
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
        decoder = self.decoder
        shape = len(new), decoder.config.vocab
        logits = torch.empty(shape, dtype=decoder.dtype, device=decoder.device)
        for length in {len(path) for path in new}:
            rows = [i for i, path in enumerate(new) if len(path) == length]
            hidden = self._hidden([new[i] for i in rows])
            logits[rows] = self.head.logits(decoder, length - 1, hidden)
        return logits

    def rollback(self, accepted: int) -> None:
        self.draft, self.paths = [], []

    def catch_up(self, tokens: list[int], output, path: list[int]) -> None:
        super().catch_up(tokens, output, path)
        self.last = tokens[-1]

    def _hidden(self, paths: list[list[int]]) -> Tensor:
        """Output of a stack `[n, width]` after n paths of one length.

        A path holds the last committed token and the drafts after it.
        """
        token = torch.tensor(paths, device=self.decoder.device)
        feature = self.feature.expand(len(paths), -1)
        inputs = torch.cat((feature, self.decoder.embed(token).flatten(1)), -1)
        return self.head.stacks[len(paths[0]) - 1](inputs)


class ParallelHydra:
    """Heads on the last feature, on the last committed token and on the drafts before theirs."""

    min_context = 2
    cached_layers = 0

    def __init__(self, drafter: HydraDrafter, sequence: TargetPass):
        self.head, self.target, self.sequence = drafter.head, sequence.target, sequence
        self.features = self.target.norm(sequence.hidden)

    def start(self, position: Tensor) -> Proposal:
        row = position + self.sequence.prompt_length - 2
        self.feature = self.features[row]
        self.path = self.sequence.token[row + 1].view(-1, 1, 1)
        return self._propose()

    def extend(self, parent: Tensor, token: Tensor) -> Proposal:
        length = self.path.shape[2]
        above = self.path.gather(1, parent[..., None].expand(*parent.shape, length))
        self.path = torch.cat((above, token[..., None]), 2)
        return self._propose()

    def _propose(self) -> Proposal:
        embeddings = self.target.embed(self.path).flatten(2)
        slot = self.path.shape[2] - 1
        feature = self.feature[:, None].expand(-1, embeddings.shape[1], -1)
        hidden = self.head.stacks[slot](torch.cat((feature, embeddings), -1))
        return DraftedLogits.from_head(self.head.output(self.target, slot), hidden), hidden


RECIPE = TrainingRecipe(
    HydraHeads,
    multi_head_loss,
    HydraDrafter,
    "hydra",
    soft=True,
    rate=8e-3,
    reads=lambda head, soft: ("feature",),
    defaults={"residual": True, "blocks": 2},
    paper=PaperRecipe(
        "the command in README.md of zankner/Hydra at 7f39cbd, for Hydra++: its loss and optimizer",
        soft=True,
        settings={"blocks": 1, "own_head": True, "residual": True, "decay": 1.0},
        rate=5e-4,
        decay=0.1,
        batch=32,
        silent=("betas", "clip", "warmup as a share of the steps", "plain heads"),
    ),
)


KIND = DrafterKind(HydraDrafter, head_loader(RECIPE), RECIPE, ParallelHydra)
