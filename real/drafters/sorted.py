"""Sorted drafting: nested exits of one small language model (S2D, arXiv 2407.01955)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from real.draft import Drafter, DrafterKind, PaperRecipe, Pick, Step, TrainingBatch, TrainingRecipe
from real.draft.kind import Proposal
from real.draft.losses import next_prediction_loss
from real.model.checkpoint import WeightsError, check_same_vocabulary, load_decoder
from real.model.decoder import Decoder
from real.model.passes import BranchCache, ForwardContext, Span, TargetPass, causal_mask
from simspec.output.files import parse_json, reraised
from simspec.trace.quantization import LOG_ODDS


class SortedModel(Decoder):
    """A decoder with exits after some of its layers; the last exit is the whole decoder."""

    exits: tuple[int, ...]
    settings: dict

    @classmethod
    def of(cls, lm: Decoder, exits: Sequence[int]) -> "SortedModel":
        """The decoder with these exits; it shares all modules with `lm`."""
        model = cls.__new__(cls)
        model.__dict__.update(lm.__dict__)
        model.exits = tuple(exits)
        return model

    def restrict(self, target: Decoder, token: Tensor) -> None:
        """ValueError: a draft vocabulary is not stored for it."""
        raise ValueError(
            "sorted: its exits draft from the whole vocabulary; leave --draft-vocab out"
        )

    def through_exits(
        self,
        x: Tensor,
        rotation: tuple[Tensor, Tensor],
        mask: Tensor | None = None,
        cache: Any = None,
    ) -> list[Tensor]:
        """Rows after each exit; the arguments are those of `Decoder.run`."""
        taps: dict[int, Tensor | None] = dict.fromkeys(self.exits)
        self.run(x, range(len(self.layers)), rotation, mask, cache, tap=taps)
        return [rows for rows in taps.values() if rows is not None]


def sorted_model(
    target: Decoder, exits: Sequence[int] = (), thresholds: Sequence[float] = ()
) -> SortedModel:
    """A copy of the target's first layers, norm, embedding and head, to be trained (S2D §3.3).

    | setting | meaning |
    | --- | --- |
    | exits | layers after which it exits; default as 6, 9 and 12 of 32 |
    | thresholds | of all exits but the last; default 0.75 each |

    It is a separate model and drafts for any target with the same tokenizer. ValueError for exits
    that are not ascending layers of the target.
    """
    layers = target.config.layers
    if not exits:
        exits = sorted({max(1, round(layers * share)) for share in (3 / 16, 9 / 32, 3 / 8)})
    check_exits(exits, layers)
    model = SortedModel(replace(target.config, layers=exits[-1]), target.frequency, target.scaling)
    model.to(target.device, target.dtype)
    own = model.state_dict()
    model.load_state_dict({k: v for k, v in target.state_dict().items() if k in own})
    model.context, model.window = target.context, target.window
    model.exits = tuple(exits)
    thresholds = list(thresholds) or [0.75] * (len(exits) - 1)
    model.settings = {"exits": list(exits), "thresholds": thresholds}
    return model


def check_exits(exits: object, layers: int) -> tuple[int, ...]:
    """The exits; ValueError unless they are ascending numbers of the layers."""
    if (
        not isinstance(exits, (list, tuple))
        or not exits
        or not all(type(layer) is int for layer in exits)
        or list(exits) != sorted(set(exits))
        or not 1 <= exits[0] <= exits[-1] <= layers
    ):
        raise ValueError(f"exits are {exits!r}; expected ascending layers of 1 to {layers}")
    return tuple(exits)


class Cascade:
    """The first exit whose confidence reaches its threshold, else the last (S2D, Algorithm 1).

    | argument | meaning |
    | --- | --- |
    | exits | layers after which the exits are, ascending |
    | threshold | of each exit but the last, in [0, 1]; 0 always exits there |

    Confidence is the largest probability at temperature 1, on the grid of recorded confidences, so
    that a recording of all exits decides as a run does. Printed is the probability of the sampled
    token: an exit chosen by the token makes q another law than the token's, and loses the target's
    distribution. S2D's threshold of the last exit is a policy: confidence:T. ValueError for other
    thresholds.
    """

    def __init__(self, exits: Sequence[int], threshold: Sequence[float]):
        self.exits = tuple(exits)
        self.threshold = tuple(float(value) for value in threshold)
        if len(self.threshold) != len(self.exits) - 1:
            raise ValueError(
                f"{len(self.threshold)} thresholds for exits after {self.exits} layers; "
                f"expected {len(self.exits) - 1}, one for each but the last"
            )
        if not all(0 <= value <= 1 for value in self.threshold):
            raise ValueError(f"thresholds are {self.threshold}; expected numbers in [0, 1]")
        # confidence whose grid value is under the threshold stays under this edge
        edges = np.concatenate(([-np.inf], (LOG_ODDS[1:] + LOG_ODDS[:-1]) / 2, [np.inf]))
        codes = np.searchsorted(LOG_ODDS, self.threshold)
        self.edge = [float(edges[code]) for code in codes]

    def leaves(self, exit: int, logits: Tensor) -> bool:
        """Whether a token with logits `[vocab]` is drafted at this exit."""
        return exit == len(self.edge) or bool(confidence(logits) >= self.edge[exit])

    def choose(self, lm: Decoder, hidden: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """(logits `[..., vocab]`, hidden `[..., width]`) of the exits that draft, from all exits'
        `hidden [..., width]`."""
        out = hidden[-1]
        logits = lm.logits(out)
        for exit in reversed(range(len(self.edge))):
            own = lm.logits(hidden[exit])
            leaves = (confidence(own) >= self.edge[exit])[..., None]
            logits, out = torch.where(leaves, own, logits), torch.where(leaves, hidden[exit], out)
        return logits, out


def confidence(logits: Tensor) -> Tensor:
    """The largest probability, float64, of logits `[..., vocab]`."""
    return torch.log_softmax(logits.double(), -1).max(-1).values.exp()


class SortedDrafter(Drafter):
    """A language model that drafts each token by its first confident exit (S2D, arXiv 2407.01955).

    Rows that left early are passed through the deeper layers, not copied, when a later token goes
    there: proposals depend on the token prefix alone, and the catching up is part of the draft's
    time. Layers between two exits are a segment; `rows[e]` are the valid rows of segment e in the
    KV cache, and `waiting[e]` the rows after them that have passed the segment before.
    """

    name = "sorted"
    prefix_only = True
    history_free = True
    captures = True

    def __init__(self, decoder: SortedModel, cascade: Cascade):
        self.decoder, self.cascade = decoder, cascade
        self.first = (0, *cascade.exits)

    @classmethod
    def load(cls, folder: Path, target: Decoder, made_for: Mapping[str, str]) -> "SortedDrafter":
        """From a transformers checkpoint and sorted.json; WeightsError for another vocabulary."""
        lm = load_decoder(folder, target.dtype, target.device)
        check_same_vocabulary(folder, lm, target)
        file = Path(folder) / "sorted.json"
        with reraised(WeightsError, f"{file} holds no exits of a sorted drafter"):
            stored = parse_json(file.read_text(encoding="utf-8"))
            exits = check_exits(stored["exits"], len(lm.layers))
            if exits[-1] != len(lm.layers):
                raise ValueError(f"its last exit is {exits[-1]} of {len(lm.layers)} layers")
            cascade = Cascade(exits, stored["thresholds"])
        return cls(SortedModel.of(lm, exits), cascade)

    def begin(self, target, prompt: list[int], prefill, pick: Pick) -> None:
        lm, self.pick = self.decoder, pick
        self.cache = self.passes.cache(self.name, lm, len(lm.layers), len(prompt) + 64)
        self.committed = list(prompt)
        self.draft: list[int] = []
        self.parent: list[int] = []
        self.taken: list[int] = []
        self.rows = [0] * len(self.cascade.exits)
        empty = lm.embed.weight[:0].detach()
        self.waiting = [empty] * len(self.rows)
        if len(prompt) > 1:
            self._pass_all(prompt[:-1])

    @torch.inference_mode()
    def next(self) -> Step:
        slot = len(self.draft)
        tokens = self.draft[-1:] if slot else self._backlog()
        self._embed(tokens)
        for exit in range(len(self.rows)):
            hidden = self._segment(exit)[-1]
            logits = self.decoder.logits(hidden)
            if self.cascade.leaves(exit, logits):
                break
        self.taken.append(exit)
        self.draft.append(self.pick(logits, slot, hidden))
        return Step(self.draft[-1], slot, logits, hidden)

    @torch.inference_mode()
    def grow(self, token: list[int], parent: list[int]) -> Tensor:
        if not self.parent:
            hidden = [rows[-1:] for rows in self._pass_all(self._backlog())]
        else:  # rows of a tree follow the root's, and are not counted
            span = Span.tree(self.rows[0] - 1, self.parent + parent, len(token))
            x, hidden = self.decoder.embed(torch.tensor(token, device=self.decoder.device)), []
            for exit in range(len(self.rows)):
                x = self._run(exit, x, span)
                hidden.append(x)
        self.parent = self.parent + parent
        return self.cascade.choose(self.decoder, hidden)[0]

    def rollback(self, accepted: int) -> None:
        self._truncate(len(self.committed) + accepted)
        self.draft, self.parent, self.taken = [], [], []

    def catch_up(self, tokens: list[int], output, path) -> None:
        self.committed += tokens

    def _backlog(self) -> list[int]:
        """Committed tokens without a row of the first segment: at least the last one."""
        self._truncate(len(self.committed) - 1)
        return self.committed[self.rows[0] :]

    def _truncate(self, valid: int) -> None:
        """Keeps the first `valid` rows of every segment, and of those that wait."""
        self.rows = [min(rows, valid) for rows in self.rows]
        for exit in range(1, len(self.rows)):
            self.waiting[exit] = self.waiting[exit][: self.rows[exit - 1] - self.rows[exit]]

    def _embed(self, tokens: list[int]) -> None:
        token = torch.tensor(tokens, device=self.decoder.device)
        self.waiting[0] = self.decoder.embed(token)

    def _pass_all(self, tokens: list[int]) -> list[Tensor]:
        """Output of every segment, with all rows that wait."""
        self._embed(tokens)
        return [self._segment(exit) for exit in range(len(self.rows))]

    @torch.inference_mode()
    def _segment(self, exit: int) -> Tensor:
        """Passes the rows that wait for a segment; they then wait for the next one."""
        x = self._run(exit, self.waiting[exit], Span(self.rows[exit], len(self.waiting[exit])))
        self.rows[exit] += len(x)
        self.waiting[exit] = x[:0]
        if exit + 1 < len(self.rows):
            self.waiting[exit + 1] = torch.cat((self.waiting[exit + 1], x))
        return x

    def _run(self, exit: int, x: Tensor, span: Span) -> Tensor:
        lm, layers = self.decoder, range(self.first[exit], self.first[exit + 1])

        def body(x: Tensor, at: ForwardContext) -> tuple[Tensor, ...]:
            return (at.through(lm, x, layers),)

        return self.passes.run(f"{self.name} {exit}", lm, body, [x], span, self.cache)[0]


class ParallelSorted:
    """Drafts of the chosen exits (`start`, `extend`), or hidden states of all exits.

    `at` and `behind` return the hidden states `[m, n, width]` of every exit.
    """

    min_context = 1

    def __init__(self, drafter: SortedDrafter, sequence: TargetPass):
        self.lm, self.cascade = drafter.decoder, drafter.cascade
        self.prompt_length, self.rows = sequence.prompt_length, len(sequence.token)
        device = sequence.token.device
        self.cache = self.lm.cache(capacity=self.rows)
        rotation = self.lm.rotation(torch.arange(self.rows, device=device))
        x = self.lm.embed(sequence.token[None])
        self.hidden = self.lm.through_exits(x, rotation, causal_mask(self.rows, device), self.cache)
        self.cached_layers = len(self.lm.layers)

    def at(self, position: Tensor) -> Sequence[Tensor]:
        self.branches: Any = BranchCache(self.cache, self.rows, position + self.prompt_length)
        return [rows[0, position + self.prompt_length - 1][:, None] for rows in self.hidden]

    def behind(self, parent: Tensor, token: Tensor) -> Sequence[Tensor]:
        rotation, mask = self.branches.step(parent, self.lm)
        return self.lm.through_exits(self.lm.embed(token), rotation, mask, self.branches)

    def start(self, position: Tensor) -> Proposal:
        return self.cascade.choose(self.lm, self.at(position))

    def extend(self, parent: Tensor, token: Tensor) -> Proposal:
        return self.cascade.choose(self.lm, self.behind(parent, token))


def sorted_loss(
    head: SortedModel,
    target: Decoder,
    batch: TrainingBatch,
    soft: bool = True,
    generator: torch.Generator | None = None,
    together: bool = True,
) -> Tensor:
    """Mean over the exits of their cross-entropies (SoFT: S2D Eq. 3).

    Towards the target's distribution, or with `soft=False` towards the next token. `together` False
    trains the last exit alone (SFT).
    """
    position = torch.arange(batch.token.shape[1] - 1, device=batch.token.device)
    rows = head.through_exits(head.embed(batch.token[:, :-1]), head.rotation(position))
    losses = [
        next_prediction_loss(head, x, target, batch, soft) for x in rows[0 if together else -1 :]
    ]
    return torch.stack(losses).mean()


RECIPE = TrainingRecipe(
    sorted_model,
    sorted_loss,
    lambda target, head: SortedDrafter(head, Cascade(head.exits, head.settings["thresholds"])),
    "model",
    soft=True,
    rate=1e-3,
    reads=lambda head, soft: ("feature",) if soft else (),
    paper=PaperRecipe(
        "S2D §3.3 and §7.1, arXiv 2407.01955",
        soft=False,
        settings={"together": True},
        batch=128,
        silent=("rate", "optimizer", "betas", "decay", "clip", "warmup"),
    ),
)


KIND = DrafterKind(SortedDrafter, SortedDrafter.load, RECIPE, ParallelSorted)
