"""EESD: the target's first N layers, new layers on top, a norm and a head (EESD §3.1-3.2)."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from real.draft import Drafter, Pick, Step
from real.model.decoder import Decoder
from real.model.draft_head import load_part
from real.model.layer import DecoderLayer, RMSNorm
from real.model.runner import EAGER
from real.model.span import ForwardContext, Span
from real.model.target import Resume


class Exit(nn.Module):
    """The learnt part: decoder layers, a norm and a head, read after the target's first `depth` layers.

    `layers` new ones (EESD §3.1 has one; 0 is its Table 4's exit by the head alone). They and the head start as copies of the
    target's last layer and head. With `own_head=False` the head stays the target's (nothing to learn or store), else it is a matrix
    of its own. ValueError for a depth that leaves no target layer out, or a negative number of layers.
    """

    def __init__(self, target: Decoder, depth: int, own_head: bool = False, layers: int = 1):
        super().__init__()
        if not 1 <= depth < target.config.layers:
            raise ValueError(
                f"exit after {depth} layers of {target.config.layers}; expected 1 to {target.config.layers - 1}"
            )
        if layers < 0:
            raise ValueError(f"{layers} new layers asked for; expected 0 (the head alone) or more")
        self.depth, self.own_head = depth, own_head
        self.settings = {"depth": depth, "own_head": own_head, "layers": layers}
        self.layers = nn.ModuleList(DecoderLayer(target.config) for _ in range(layers))
        for layer in self.layers:
            layer.load_state_dict(target.layers[-1].state_dict())
        self.norm = RMSNorm(target.config.width, target.config.norm_eps)
        self.norm.load_state_dict(target.norm.state_dict())
        if own_head:
            self.head = nn.Linear(target.config.width, target.config.vocab, bias=False)
            self.head.weight.data.copy_(target.head.weight.data)
        self.to(target.device, target.dtype)

    def stand_alone(self, target: Decoder) -> Decoder:
        """The drafter as a language model: a decoder that shares its modules with the target and with this exit."""
        lm = Decoder.__new__(Decoder)
        nn.Module.__init__(lm)
        lm.config, lm.frequency, lm.scaling = target.config, target.frequency, target.scaling
        lm.embed = target.embed
        lm.layers = nn.ModuleList([*target.layers[: self.depth], *self.layers])
        lm.norm = self.norm
        lm.head = self.head if self.own_head else target.head
        return lm


class EarlyExitDrafter(Drafter):
    """Drafts through the target's own first layers, whose cache rows the verification then need not compute again.

    k draft steps feed x_last, d_1 .. d_{k-1} to the shared layers; `verify` takes over from there (`resume`) and runs
    them for d_k only. New layers have their own cache, and rows they have missed are read from the target's tap at that
    depth, so a round of k = 0 leaves nothing behind but a catch-up. Dependent on the token prefix alone.
    """

    name = "early_exit"
    prefix_only = True
    history_free = True
    captures = True

    def __init__(self, target: Decoder, exit: Exit):
        self.exit = exit
        self.taps = (exit.depth,)
        self.lm = exit.stand_alone(target)
        self.sublayers = 2 * exit.depth
        self.predictors = {}

    @classmethod
    def load(cls, folder: Path, target: Decoder, made_for: Mapping[str, str]) -> "EarlyExitDrafter":
        """From exit.json and exit.safetensors, as `save_part` writes them."""
        return cls(target, load_part(Exit, folder, "exit", target, made_for))

    def begin(self, target, prompt: list[int], prefill, pick: Pick) -> None:
        if self.exit.depth not in target.taps:
            raise ValueError(
                f"the target taps layers {target.taps}; early_exit needs depth {self.exit.depth} among them"
            )
        self.target, self.pick = target, pick
        self.cache = self.passes.cache(self.name, self.lm, len(self.exit.layers), len(prompt) + 64)
        self.rows = 0
        self.last = prompt[-1]
        self.owed: list[Tensor] = [prefill.taps[self.exit.depth]]
        self.draft: list[int] = []
        self.hidden: list[Tensor] = []
        self.parent: list[int] = []
        self._settle("")

    @torch.inference_mode()
    def next(self) -> Step:
        slot = len(self.draft)
        if not slot:
            self.start = self.target.length
        token = self.draft[-1] if self.draft else self.last
        shared = self.target.draft_rows([token], slot, self.exit.depth)
        self.hidden.append(shared)
        self.owed.append(shared)
        hidden, logits = (each[-1] for each in self._settle("last"))
        self.draft.append(self.pick(logits, slot, hidden))
        return Step(self.draft[-1], slot, logits, hidden)

    @torch.inference_mode()
    def grow(self, token: list[int], parent: list[int]) -> Tensor:
        held, self.parent = len(self.parent), self.parent + parent
        shared = self.target.draft_rows(token, held, self.exit.depth, self.parent)
        if not held:
            self.owed.append(shared)
            return self._settle("last")[1]
        return self._through(
            shared, Span.tree(self.target.length, self.parent, len(token)), "tree"
        )[1]

    def resume(self) -> Resume | None:
        return Resume(self.exit.depth, torch.cat(self.hidden)) if self.hidden else None

    def rollback(self, accepted: int) -> None:
        # the target's length already counts this round's rows; one that was not drafted in this chain may follow the accepted ones
        self.rows = min(
            self.rows, self.target.length, self.start + 1 + accepted if self.draft else self.rows
        )
        self.draft, self.hidden, self.parent = [], [], []

    def catch_up(self, tokens: list[int], output, path: list[int]) -> None:
        # rows of the new layers that this round's draft did not compute: read from the tap when the next draft begins
        missing = self.target.length - self.rows - sum(len(h) for h in self.owed)
        if missing:
            self.owed.append(output.taps[self.exit.depth][path[-missing:]])
        self.last = tokens[-1]

    @torch.inference_mode()
    def _settle(self, head: str) -> tuple[Tensor, ...]:
        """Takes all owed rows through the new layers: their output, and with `head` the logits `[1, vocab]` of the last one."""
        x = torch.cat(self.owed)
        self.owed = []
        if not len(x):
            return (x,)
        found = self._through(x, Span(self.rows, len(x)), head)
        self.rows += len(x)
        return found

    def _through(self, x: Tensor, span: Span, head: str) -> tuple[Tensor, ...]:
        lm, layers = self.lm, self.exit.layers

        def body(x: Tensor, at: ForwardContext) -> tuple[Tensor, ...]:
            x = x[None]
            for i, layer in enumerate(layers):
                x = layer(x, at.rotation, at.mask, at.cache, i, at.start)
            x = x[0]
            return x, *([lm.logits(at.end(x) if head == "last" else x)] if head else ())

        passes = self.passes if head else EAGER  # the prompt's rows, as many as they are
        return passes.run(f"{self.name} {head}", lm, body, [x], span, self.cache)
