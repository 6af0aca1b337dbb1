"""Medusa: residual heads on the target's last feature, each predicting one later token."""

import json
import re
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from real.draft import DrafterKind, PaperRecipe, Pick, Step, TrainingRecipe
from real.draft.heads import ResidualBlock, StackedDrafter, StackedHeads, filled, head_loader
from real.draft.kind import DraftedLogits, Proposal
from real.draft.losses import multi_head_loss
from real.model.checkpoint import WeightsError
from real.model.decoder import Decoder
from real.model.draft_head import DraftVocabularyHead, head_rows, read_state, write_published
from real.model.passes import TargetPass, depths
from simspec.output.files import reraised


class MedusaHeads(StackedHeads):
    """Head j reads feature f_i and predicts t_{i+2+j}, j from 0 (Medusa, arXiv 2401.10774).

    A feature is what the target's head multiplies, f_i at the position of t_i; t_{i+1} is the
    target's own pick from it.

    | setting | meaning |
    | --- | --- |
    | heads | stacks of residual blocks, each followed by a vocabulary head |
    | blocks | residual blocks in a stack |
    | own_head | a separate vocabulary head per stack (as published); False: the target's |

    """

    def __init__(self, target: Decoder, heads: int = 4, blocks: int = 1, own_head: bool = False):
        super().__init__(heads, blocks, own_head=own_head)
        width = target.config.width
        self.stacks = nn.ModuleList(
            nn.Sequential(*(ResidualBlock(width) for _ in range(blocks))) for _ in range(heads)
        )
        self.add_heads(target, bias=False)

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

    what = f"{folder} is no medusa checkpoint: config.json says no number of blocks"
    with reraised(WeightsError, what):
        config = dict(json.loads((folder / "config.json").read_text(encoding="utf-8")))
        served = config.get("model_type") == "medusa" and "num_heads" in config
        blocks = config["num_hidden_layers" if served else "medusa_num_layers"]
    own, state = folder / "model.safetensors", {}
    file = folder / "medusa_lm_head.safetensors"
    file = own if own.exists() and not file.exists() else file
    for name, value in read_state(file).items():
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
    form = {"heads": count, "blocks": blocks, "own_head": True}
    return filled(MedusaHeads, target, form, state, folder)


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


class MedusaDrafter(StackedDrafter):
    """Drafts one token a head from the feature after the last committed token.

    All heads run in one pass, at the first step. No head reads the last committed token, which has
    not been through the target, nor any draft.
    """

    name = "medusa"

    def begin(self, target, prompt: list[int], prefill, pick: Pick) -> None:
        super().begin(target, prompt, prefill, pick)
        self.drafted = 0
        self.parent: list[int] = []

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

    def _run_heads(self) -> None:
        self.hidden = [stack(self.feature) for stack in self.head.stacks]
        self.logits = [self.head.logits(self.decoder, j, x) for j, x in enumerate(self.hidden)]


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


KIND = DrafterKind(MedusaDrafter, head_loader(RECIPE, published), RECIPE, ParallelMedusa)
