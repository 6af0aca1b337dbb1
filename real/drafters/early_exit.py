"""EESD: early exit from the target after its first layers."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from real.draft import Drafter, DrafterKind, PaperRecipe, Pick, Step, TrainingBatch, TrainingRecipe
from real.draft.heads import head_loader
from real.draft.kind import ParallelLanguageModel
from real.draft.losses import next_prediction_loss
from real.model.decoder import Decoder, DecoderLayer, RMSNorm
from real.model.draft_head import DraftHead, DraftVocabularyHead, check_vocabulary
from real.model.passes import EAGER, ForwardContext, Span
from real.model.target import Resume


class EarlyExitHead(DraftHead):
    """Trained weights after the target's first `depth` layers (EESD §3.1).

    | setting | meaning |
    | --- | --- |
    | depth | target layers that run before the exit |
    | own_head | a separate vocabulary head; False: the target's, neither trained nor stored; \
None: its own where there is no new layer |
    | layers | new decoder layers: 1 in EESD §3.1, 0 in its Table 4 |

    New layers and head start as copies of the target's last layer and head. ValueError for a depth
    that leaves no target layer out, a negative number of layers, and neither layer nor head of its
    own.
    """

    head: Any

    def __init__(self, target: Decoder, depth: int, own_head: bool | None = None, layers: int = 1):
        super().__init__()
        if not 1 <= depth < target.config.layers:
            raise ValueError(
                f"exit after {depth} layers of {target.config.layers}; "
                f"expected 1 to {target.config.layers - 1}"
            )
        if layers < 0:
            raise ValueError(f"{layers} new layers; expected 0 (the head alone) or more")
        if own_head is None:
            own_head = not layers
        if not (layers or own_head):
            raise ValueError(
                "layers=0 and own_head=false leave a norm alone to train; "
                "expected a new layer, or a separate head (EESD Table 4)"
            )
        self.depth, self.own_head = depth, own_head
        self.settings = {"depth": depth, "own_head": own_head, "layers": layers}
        self.layers = nn.ModuleList(DecoderLayer(target.config) for _ in range(layers))
        self.norm = RMSNorm(target.config.width, target.config.norm_eps)
        if own_head:
            self.head = nn.Linear(target.config.width, target.config.vocab, bias=False)
        self.to(target.device, target.dtype)  # before copying, which rounds to the copy's dtype
        for layer in self.layers:
            layer.load_state_dict(target.layers[-1].state_dict())
        self.norm.load_state_dict(target.norm.state_dict())
        if own_head:
            self.head.weight.data.copy_(target.head.weight.data)

    def restrict(self, target: Decoder, token: Tensor) -> None:
        """Like `DraftHead.restrict`; a separate head keeps the rows of these tokens."""
        if not self.own_head:
            return super().restrict(target, token)
        self.draft_token = check_vocabulary(token, target.config.vocab)
        own: Any = DraftVocabularyHead(self.head, token, trained=True)
        self.head = own

    def as_language_model(self, target: Decoder) -> Decoder:
        """A decoder of the target's first layers and these; it shares all modules with both."""
        lm = Decoder.__new__(Decoder)
        nn.Module.__init__(lm)
        lm.config, lm.frequency, lm.scaling = target.config, target.frequency, target.scaling
        lm.embed = target.embed
        lm.layers = nn.ModuleList([*target.layers[: self.depth], *self.layers])
        lm.norm = self.norm
        lm.head = self.head if self.own_head else self.shared_output(target)
        return lm


class EarlyExitDrafter(Drafter):
    """Drafts through the target's first layers, whose rows the verification need not recompute.

    k draft steps feed x_last, d_1 .. d_{k-1} to the shared layers; `verify` takes over from there
    (`resume`) and runs them for d_k only, or for the leaves of a tree. New layers have their own
    cache. Rows of their backlog are read from the target's tap at that depth. Proposals depend on
    the token prefix alone.
    """

    name = "early_exit"
    prefix_only = True
    history_free = True
    captures = True

    def __init__(self, target: Decoder, head: EarlyExitHead):
        self.head = head
        self.taps = (head.depth,)
        self.lm: Decoder = head.as_language_model(target)

    def begin(self, target, prompt: list[int], prefill, pick: Pick) -> None:
        depth = self.head.depth
        if depth not in target.taps:
            raise ValueError(
                f"the target taps layers {target.taps}; early_exit needs depth {depth} among them"
            )
        self.target, self.pick = target, pick
        self.cache = self.passes.cache(self.name, self.lm, len(self.head.layers), len(prompt) + 64)
        self.rows = 0
        self.last = prompt[-1]
        self.backlog: list[Tensor] = [prefill.taps[depth]]
        self.draft: list[int] = []
        self.hidden: list[Tensor] = []
        self.parent: list[int] = []
        self._run_backlog("")

    @torch.inference_mode()
    def next(self) -> Step:
        slot = len(self.draft)
        if not slot:
            self.start = self.target.length
        token = self.draft[-1] if self.draft else self.last
        shared = self.target.draft_rows([token], slot, self.head.depth)
        self.hidden.append(shared)
        self.backlog.append(shared)
        hidden, logits = (t[-1] for t in self._run_backlog("last"))
        self.draft.append(self.pick(logits, slot, hidden))
        return Step(self.draft[-1], slot, logits, hidden)

    @torch.inference_mode()
    def grow(self, token: list[int], parent: list[int]) -> Tensor:
        held, self.parent = len(self.parent), self.parent + parent
        shared = self.target.draft_rows(token, held, self.head.depth, self.parent)
        self.hidden.append(shared)
        if not held:
            self.backlog.append(shared)
            return self._run_backlog("last")[1]
        span = Span.tree(self.target.length, self.parent, len(token))
        return self._forward(shared, span, "tree")[1]

    def resume(self, grown: Sequence[int] = ()) -> Resume | None:
        if not self.hidden:
            return None
        return Resume(self.head.depth, torch.cat(self.hidden), tuple(grown))

    def rollback(self, accepted: int) -> None:
        # the target's length counts this round's rows; one of another chain may follow the accepted
        drafted = self.start + 1 + accepted if self.draft else self.rows
        self.rows = min(self.rows, self.target.length, drafted)
        self.draft, self.hidden, self.parent = [], [], []

    def catch_up(self, tokens: list[int], output, path: list[int]) -> None:
        # rows of the new layers that this round's draft left out: from the tap, at the next draft
        missing = self.target.length - self.rows - sum(len(h) for h in self.backlog)
        if missing:
            self.backlog.append(output.taps[self.head.depth][path[-missing:]])
        self.last = tokens[-1]

    @torch.inference_mode()
    def _run_backlog(self, head: str) -> tuple[Tensor, ...]:
        """Output of the new layers for the backlog; with `head` also `[1, vocab]` of the last."""
        x = torch.cat(self.backlog)
        self.backlog = []
        if not len(x):
            return (x,)
        output = self._forward(x, Span(self.rows, len(x)), head)
        self.rows += len(x)
        return output

    def _forward(self, x: Tensor, span: Span, head: str) -> tuple[Tensor, ...]:
        lm, layers = self.lm, self.head.layers

        def body(x: Tensor, at: ForwardContext) -> tuple[Tensor, ...]:
            x = x[None]
            for i, layer in enumerate(layers):
                x = layer(x, at.rotation, at.mask, at.cache, i, at.start)
            x = x[0]
            return x, *([lm.logits(at.end(x) if head == "last" else x)] if head else ())

        passes = self.passes if head else EAGER  # a prompt's pass has its own number of rows
        return passes.run(f"{self.name} {head}", lm, body, [x], span, self.cache)


def early_exit_loss(
    head: EarlyExitHead,
    target: Decoder,
    batch: TrainingBatch,
    soft: bool = False,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Cross-entropy at the learned tokens, towards these or the target's distribution."""
    lm = head.as_language_model(target)
    (x,) = batch.features(target, f"tap:{head.depth}")
    rotation = lm.rotation(torch.arange(x.shape[1], device=x.device))
    x = lm.run(x, range(head.depth, len(lm.layers)), rotation)
    return next_prediction_loss(lm, x, target, batch, soft)


RECIPE = TrainingRecipe(
    EarlyExitHead,
    early_exit_loss,
    EarlyExitDrafter,
    "exit",
    soft=False,
    rate=2e-3,
    reads=lambda head, soft: (f"tap:{head.depth}", *(["feature"] if soft else [])),
    defaults={"depth": 1},
    paper=PaperRecipe(
        "EESD §3.1-3.2 and Table 9",
        soft=False,
        settings={"layers": 1, "own_head": True},
        rate=1e-3,
        batch=64,
        silent=("optimizer", "betas", "decay", "clip", "warmup"),
    ),
)


KIND = DrafterKind(EarlyExitDrafter, head_loader(RECIPE), RECIPE, ParallelLanguageModel)
