"""Medusa: residual heads on the target's last feature, each predicting one later token."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from real.draft import Drafter, DrafterKind, PaperRecipe, Pick, Step, TrainingRecipe
from real.draft.kind import DraftedLogits, Proposal
from real.draft.losses import multi_head_loss
from real.model.checkpoint import WeightsError
from real.model.decoder import Decoder
from real.model.draft_head import (
    DraftVocabularyHead,
    StackedHeads,
    block_count,
    declared_heads,
    fill,
    head_rows,
    load_draft_head,
    read_state,
    write_published,
)
from real.model.passes import TargetPass, depths


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
    | own_head | a separate vocabulary head per stack (as published); False: the target's |

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


def published(folder: Path, target: Decoder) -> MedusaHeads:
    """MedusaHeads from a checkpoint of FasterDecoding/Medusa, or of vLLM's form (`publish`).

    | file | content |
    | --- | --- |
    | config.json | "medusa_num_layers", in vLLM's form "num_hidden_layers": the number of blocks |
    | medusa_lm_head.safetensors, or model.safetensors | the tensors below |
    | tensor H.B.linear.weight, H.B.linear.bias | block B of head H |
    | tensor H.<blocks>.weight | the vocabulary head of head H |
    | tensors blocks.H.layers.B.weight, lm_heads.H.weight | the same in vLLM's form |

    A leading "medusa_head." or "heads." is dropped. Heads are counted in the tensors, since
    released configs say 2 with files of 5. With "original_lm_head" all share lm_heads.0.
    WeightsError for anything else or other sizes.
    """
    try:
        config = dict(json.loads((folder / "config.json").read_text(encoding="utf-8")))
        served = config.get("model_type") == "medusa" and "num_heads" in config
        name = "num_hidden_layers" if served else "medusa_num_layers"
        blocks = block_count(config[name], f"{folder / 'config.json'}")
    except WeightsError:
        raise
    except (OSError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise WeightsError(
            f"{folder} is no Medusa checkpoint: "
            f"config.json says no medusa_num_layers ({type(error).__name__})"
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
        ours = re.sub(r"^(medusa_head|heads)\.", "", name)
        if match := re.fullmatch(r"(\d+)\.(\d+)\.weight", ours):
            ours = f"head.{match[1]}.weight" if int(match[2]) == blocks else ours
        elif re.fullmatch(r"\d+\.\d+\.linear\.(weight|bias)", ours):
            ours = f"stacks.{ours}"
        ours = re.sub(r"^blocks\.(\d+)\.layers\.(\d+)\.", r"stacks.\1.\2.linear.", ours)
        state[re.sub(r"^lm_heads\.", "head.", ours)] = value
    count = len([name for name in state if name.startswith("head.")])
    if served and config.get("original_lm_head") and "head.0.weight" in state:
        count = len({name.split(".")[1] for name in state if name.startswith("stacks.")})
        state |= {f"head.{i}.weight": state["head.0.weight"] for i in range(count)}
    try:
        heads = MedusaHeads(target, count, blocks, own_head=True)
    except ValueError as error:
        raise WeightsError(f"{folder} is no Medusa checkpoint: {error}") from error
    fill(heads, state, str(folder))
    return heads.requires_grad_(False).eval()


def publish(heads: MedusaHeads, target: Decoder, folder: Path) -> None:
    """Writes config.json and model.safetensors of vLLM's method `medusa`; `published` reads them.

    Heads that share a vocabulary head have it once, as lm_heads.0. A draft vocabulary becomes a
    head of all tokens with the same argmax (`DraftVocabularyHead.whole`), since vLLM 0.32 fails on
    a `token_map`. vLLM loads as many heads as it drafts tokens: the first K.
    """
    settings, s = heads.settings, target.config
    own, count = settings["own_head"], settings["heads"]
    config = {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": s.width,
        "vocab_size": s.vocab,
        "num_heads": count,
        "num_hidden_layers": settings["blocks"],
        "medusa_fc_bias": True,
        "original_lm_head": not own,
        "dtype": "float32",
    }
    state = {}
    for name, value in heads.stacks.state_dict().items():
        stack, block, _, kind = name.split(".")
        state[f"blocks.{stack}.layers.{block}.{kind}"] = value
    for i in range(count if own else 1):
        head = heads.output(target, i)
        head = head.whole() if isinstance(head, DraftVocabularyHead) else head
        state[f"lm_heads.{i}.weight"] = head_rows(head)[0].detach()
    write_published(folder, config, state)


class MedusaDrafter(Drafter):
    """Drafts one token a head from the feature after the last committed token.

    All heads run in one pass, at the first step. No head reads the last committed token, which has
    not been through the target, nor any draft: a function of the feature (`history_free`, not
    `prefix_only`). Nothing is offered after the last head, or after a prompt of one token.
    """

    name = "medusa"
    prefix_only = False
    history_free = True
    captures = True

    def __init__(self, target: Decoder, head: MedusaHeads):
        self.decoder, self.head = target, head
        self.max_draft_length: int = len(head.stacks)
        self.predictors = {}

    @classmethod
    def load(cls, folder: Path, target: Decoder, made_for: Mapping[str, str]) -> "MedusaDrafter":
        """From medusa.json and medusa.safetensors, or from a released checkpoint (`published`)."""
        folder = Path(folder)
        if (folder / "config.json").exists() and not (folder / "medusa.json").exists():
            return cls(target, published(folder, target))
        return cls(target, load_draft_head(MedusaHeads, folder, "medusa", target, made_for))

    @torch.inference_mode()
    def begin(self, target, prompt: list[int], prefill, pick: Pick) -> None:
        self.pick, self.drafted = pick, 0
        self.parent: list[int] = []
        self.feature: Any = self.decoder.norm(prefill.hidden[-1]) if len(prefill.hidden) else None

    @torch.inference_mode()
    def next(self) -> Step | None:
        slot = self.drafted
        if self.feature is None or slot == self.max_draft_length:
            return None
        if not slot:
            self._run_heads()
        self.drafted += 1
        logits, hidden = self.logits[slot], self.hidden[slot]
        return Step(self.pick(logits, slot, hidden), slot, logits, hidden)

    @torch.inference_mode()
    def grow(self, token: list[int], parent: list[int]) -> Tensor | None:
        if self.feature is None:
            return None
        if not self.parent:
            self._run_heads()
        self.parent = self.parent + parent
        return torch.stack([self.logits[depth] for depth in depths(self.parent)[-len(token) :]])

    def rollback(self, accepted: int) -> None:
        self.drafted, self.parent = 0, []

    @torch.inference_mode()
    def catch_up(self, tokens: list[int], output, path: list[int]) -> None:
        self.feature = self.decoder.norm(output.hidden[path[-1]])

    def _run_heads(self) -> None:
        head, target = self.head, self.decoder

        def heads(feature: Tensor) -> tuple[Tensor, ...]:
            hidden = [stack(feature) for stack in head.stacks]
            return *hidden, *(head.logits(target, j, x) for j, x in enumerate(hidden))

        output = self.passes.call(self.name, heads, self.feature)
        self.hidden, self.logits = output[: self.max_draft_length], output[self.max_draft_length :]


class ParallelMedusa:
    """Heads on the feature after the last committed token; no head reads a draft."""

    min_context = 2
    cached_layers = 0

    def __init__(self, drafter: MedusaDrafter, sequence: TargetPass):
        self.head, self.target = drafter.head, sequence.target
        self.prompt_length = sequence.prompt_length
        self.features = self.target.norm(sequence.hidden)

    def start(self, position: Tensor) -> Proposal:
        self.slot, self.feature = 0, self.features[position + self.prompt_length - 2]
        return self._propose(1)

    def extend(self, parent: Tensor, token: Tensor) -> Proposal:
        self.slot += 1
        return self._propose(token.shape[1])

    def _propose(self, rows: int) -> Proposal:
        hidden = self.head.stacks[self.slot](self.feature)
        drafted = DraftedLogits.from_head(self.head.output(self.target, self.slot), hidden)
        logits = drafted.logits[:, None].expand(-1, rows, -1)
        return replace(drafted, logits=logits), hidden[:, None].expand(-1, rows, -1)


RECIPE = TrainingRecipe(
    MedusaHeads,
    multi_head_loss,
    MedusaDrafter,
    "medusa",
    soft=True,
    rate=8e-3,
    reads=lambda head, soft: ("feature",),
    defaults={"blocks": 3},
    paper=PaperRecipe(
        "Medusa §2.2.1, arXiv 2401.10774; scripts/train_vicuna_7b.sh of FasterDecoding/Medusa at "
        "ab5d60c for the optimizer; EESD Table 9 has the same rate and batch",
        soft=False,
        settings={"blocks": 1, "own_head": True, "decay": 0.8},
        rate=1e-3,
        warmup=0.1,
        batch=64,
        silent=("betas", "clip"),
    ),
)


KIND = DrafterKind(
    MedusaDrafter,
    MedusaDrafter.load,
    RECIPE,
    ParallelMedusa,
    declared=lambda folder: declared_heads(folder, "medusa"),
)
