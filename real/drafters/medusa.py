"""Medusa: residual heads on the target's last feature, each predicting one later token (Medusa, arXiv 2401.10774)."""

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
from real.model.tree_mask import depths


class Block(nn.Module):
    """x + silu(W x + b), the identity before training."""

    def __init__(self, width: int):
        super().__init__()
        self.linear = nn.Linear(width, width)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.silu(self.linear(x))


class Medusa(nn.Module):
    """The learnt part: `heads` stacks of `blocks` residual blocks; head j sees feature f_i and predicts t_{i+2+j}, j from 0.

    A feature is what the target's head multiplies, f_i at the position of t_i; t_{i+1} is the target's own pick from it. Each
    stack ends in the target's head, or with `own_head` in a matrix of its own that starts as a copy of it (as published).
    ValueError for fewer than one head or block.
    """

    def __init__(self, target: Decoder, heads: int = 4, blocks: int = 1, own_head: bool = False):
        super().__init__()
        if type(heads) is not int or type(blocks) is not int or min(heads, blocks) < 1:
            raise ValueError(
                f"heads is {heads!r} and blocks {blocks!r}; expected integers, 1 or more"
            )
        width, vocab = target.config.width, target.config.vocab
        self.settings = {"heads": heads, "blocks": blocks, "own_head": own_head}
        self.stacks = nn.ModuleList(
            nn.Sequential(*(Block(width) for _ in range(blocks))) for _ in range(heads)
        )
        if own_head:
            self.head = nn.ModuleList(nn.Linear(width, vocab, bias=False) for _ in range(heads))
            for head in self.head:
                head.weight.data.copy_(target.head.weight.data)
        self.to(target.device, target.dtype)

    def logits(self, target: Decoder, head: int, hidden: Tensor) -> Tensor:
        """Logits `[..., vocab]` of head `head` from what its stack gave, `[..., width]`."""
        return (self.head[head] if self.settings["own_head"] else target.head)(hidden)

    def teach(self, target: Decoder, feature: Tensor, token: Tensor, head: int) -> Tensor:
        """What stack `head` gives for the rows `feature [b, n, width]`; `token` is not read: no Medusa head sees a draft."""
        return self.stacks[head](feature)


class MedusaDrafter(Drafter):
    """Drafts one token a head from the feature that the last committed token was picked from; all heads cost one lump.

    That token itself has not been through the target yet and no head sees it, nor any draft: the draft is a function of the
    feature (`history_free`, not `prefix_only`). Behind the last head, and where the text is one token long, nothing is offered.
    """

    name = "medusa"
    taps = ()
    prefix_only = False
    history_free = True
    captures = True

    def __init__(self, target: Decoder, part: Medusa):
        self.decoder, self.part = target, part
        self.max_draft_length = len(part.stacks)
        self.predictors = {}

    @classmethod
    def load(cls, folder: Path, target: Decoder, made_for: Mapping[str, str]) -> "MedusaDrafter":
        """From medusa.json and medusa.safetensors, as `save_part` writes them, or from a checkpoint as `published` reads it."""
        folder = Path(folder)
        if (folder / "config.json").exists() and not (folder / "medusa.json").exists():
            return cls(target, published(folder, target))
        return cls(target, load_part(Medusa, folder, "medusa", target, made_for))

    @torch.inference_mode()
    def begin(self, target, prompt: list[int], prefill, pick: Pick) -> None:
        self.pick, self.drafted, self.parent = pick, 0, []
        self.feature = self.decoder.norm(prefill.hidden[-1]) if len(prefill.hidden) else None

    @torch.inference_mode()
    def next(self) -> Step | None:
        slot, part = self.drafted, self.part
        if self.feature is None or slot == len(part.stacks):
            return None
        if not slot:
            self._read()
        self.drafted += 1
        return Step(
            self.pick(self.logits[slot], slot, self.hidden[slot]),
            slot,
            self.logits[slot],
            self.hidden[slot],
        )

    @torch.inference_mode()
    def grow(self, token: list[int], parent: list[int]) -> Tensor | None:
        if self.feature is None:
            return None
        if not self.parent:
            self._read()
        self.parent = self.parent + parent
        return torch.stack([self.logits[depth] for depth in depths(self.parent)[-len(token) :]])

    def resume(self) -> None:
        return None

    def rollback(self, accepted: int) -> None:
        self.drafted, self.parent = 0, []

    @torch.inference_mode()
    def catch_up(self, tokens: list[int], output, path: list[int]) -> None:
        self.feature = self.decoder.norm(output.hidden[path[-1]])

    def _read(self) -> None:
        part, target = self.part, self.decoder

        def heads(feature: Tensor) -> tuple[Tensor, ...]:
            hidden = [stack(feature) for stack in part.stacks]
            return *hidden, *(part.logits(target, j, each) for j, each in enumerate(hidden))

        found = self.passes.call(self.name, heads, self.feature)
        self.hidden, self.logits = found[: self.max_draft_length], found[self.max_draft_length :]


def published(folder: Path, target: Decoder) -> Medusa:
    """A Medusa from the form that FasterDecoding/Medusa releases: config.json and medusa_lm_head.safetensors (or model.safetensors).

    Tensors H.B.linear.weight, H.B.linear.bias of block B of head H and H.<blocks>.weight, that head's matrix; a leading "medusa_head." or
    "heads." is dropped. "medusa_num_layers" in config.json is the number of blocks; heads are counted in the tensors, since released
    configs say 2 beside files of 5. WeightsError, one line, for anything else or another target's sizes.
    """
    try:
        blocks = int(
            json.loads((folder / "config.json").read_text(encoding="utf-8"))["medusa_num_layers"]
        )
    except (OSError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise WeightsError(
            f"{folder} is no Medusa checkpoint: config.json says no medusa_num_layers ({type(error).__name__})"
        ) from error
    file = next(
        (
            folder / name
            for name in ("medusa_lm_head.safetensors", "model.safetensors")
            if (folder / name).exists()
        ),
        None,
    )
    state = {}
    for name, value in read_state(file or folder / "medusa_lm_head.safetensors").items():
        plain = re.sub(r"^(medusa_head|heads)\.", "", name)
        if match := re.fullmatch(r"(\d+)\.(\d+)\.weight", plain):
            plain = f"head.{match[1]}.weight" if int(match[2]) == blocks else plain
        elif re.fullmatch(r"\d+\.\d+\.linear\.(weight|bias)", plain):
            plain = f"stacks.{plain}"
        state[plain] = value
    heads = len([name for name in state if name.startswith("head.")])
    try:
        part = Medusa(target, heads, blocks, own_head=True)
    except ValueError as error:
        raise WeightsError(f"{folder} is no Medusa checkpoint: {error}") from error
    fill(part, state, str(folder))
    return part.requires_grad_(False).eval()
