"""The protocol between the decode loop and a drafter."""

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Self

import numpy as np
import torch
from torch import Tensor

from real.model.checkpoint import WeightsError
from real.model.decoder import Decoder
from real.model.passes import EAGER, EagerPasses, Span
from real.model.target import Resume, Target, TargetOutput
from simspec.output.files import parse_json, reraised

Pick = Callable[..., int]
"""(logits [vocab], draft slot, hidden state or None) -> token, by the decode rule.

It adds the noise of the slot's position, or the slot's draw. Features that a policy reads are
fetched together with the token, from these logits and this hidden state."""


@dataclass(frozen=True)
class Step:
    """One drafted token; row 0 is the last committed token."""

    token: int
    parent: int  # row of the round's pass that it follows; slot j of a chain follows row j
    logits: Tensor | None  # [vocab]: that it was picked from; None for drafters without
    hidden: Tensor | None = None  # [d_D]: the last hidden state, before norm and head


@dataclass(frozen=True)
class Draft:
    """Tokens and tree that a round submits to the target."""

    token: list[int]  # of each row of the pass: the last committed token, then the drafted ones
    parent: list[int]  # the row that each row follows; -1 for row 0
    computed: int  # steps of the drafter that were run
    line: int  # rows 1 .. line are the chain that the drafter holds in its own state
    # row -> distribution [vocab] that its first child was drawn from; empty unless drawn
    q: Mapping[int, Tensor] = field(default_factory=dict)
    own: int = 0  # number of last rows that are the drafter's: passed, never accepted
    # the row here of each row that `Drafter.grow` passed, in its order; -1: not submitted
    grown: tuple[int, ...] = ()

    @property
    def offered(self) -> "Draft":
        """The draft without the drafter's own rows: those that may be accepted."""
        if not self.own:
            return self
        rows = len(self.token) - self.own
        return replace(self, token=self.token[:rows], parent=self.parent[:rows], own=0)

    def kept(self, path: list[int]) -> int:
        """Leading tokens of the drafter's own chain that the committed `path` keeps."""
        return next(
            (i for i, row in enumerate(path[1:]) if row != i + 1 or row > self.line), len(path) - 1
        )


class Drafter:
    """Base class of drafters; on its own it proposes nothing, so that the loop decodes plainly.

    A round: `next` until the policy or the drafter stops; `complete`; verification; `rollback`;
    `catch_up`.
    A drafter that can draft trees overrides `grow`, which is then called in place of `next`.
    """

    name: str = "none"  # shown in tables and metadata
    taps: tuple[int, ...] = ()  # target layers whose residual stream `catch_up` receives
    prefix_only: bool = True  # proposals depend on the verified prefix's tokens alone (tested)
    history_free: bool = True  # `next` depends on prefix and draft so far alone (tested)
    has_logits: bool = True  # steps carry logits; a drafter without them exposes no features
    tokens_only: bool = False  # reads tokens, nothing of the target: recorded without its passes
    lm: Decoder | None = None  # the decoder that the drafter runs by itself, if it has one
    predictors: Mapping = MappingProxyType({})  # feature name -> acceptance predictor
    max_draft_length: int | None = None  # most tokens that it drafts in a round; None: no limit
    captures: bool = False  # its passes run through `passes`, so that an engine can capture them
    passes: EagerPasses = EAGER  # how its own passes run

    @property
    def grows(self) -> bool:
        """Whether it can draft trees."""
        return type(self).grow is not Drafter.grow

    def longest(self, K: int) -> int:
        """The longest draft that it can make where K tokens are allowed."""
        return K if self.max_draft_length is None else min(K, self.max_draft_length)

    def begin(self, target: Target, prompt: list[int], prefill: TargetOutput, pick: Pick) -> None:
        """Starts a sequence; `prefill` covers all tokens of the prompt but the last."""

    def next(self) -> Step | None:
        """Drafts one more token, or None where it has nothing more to offer in this round."""
        return None

    def grow(self, token: list[int], parent: list[int]) -> Tensor | None:
        """Passes n more rows of the round's tree: logits `[n, vocab]` after each.

        Rows are numbered over the round; `parent` names rows of earlier calls by number. Each row
        attends to the committed tokens and its ancestors. The first call is `grow([last], [-1])`:
        the row of the last committed token, and the backlog before it; None where the drafter has
        nothing to offer. `rollback(0)` then keeps that row and nothing of the tree.
        """
        raise NotImplementedError(f"drafter {self.name!r} drafts chains only")

    def complete(self, draft: Draft) -> Draft:
        """The round's draft with what the drafter adds to it: candidates, and its rows.

        Candidates reach no deeper than the draft, which comes first.
        """
        return draft

    def resume(self, grown: Sequence[int] = ()) -> Resume | None:
        """Target layers that verification may skip, because this drafter has run them.

        For a tree, `grown` is that of its `Draft`.
        """
        return None

    def rollback(self, accepted: int) -> None:
        """Forgets the drafted tokens after the first `accepted` ones."""

    def catch_up(self, tokens: list[int], output: TargetOutput, path: list[int]) -> None:
        """Receives the committed `tokens` and the rows `path` of the pass that they came from."""


Silent = Drafter
"""The drafter that proposes nothing: with it the loop is plain decoding."""


def check_grows(drafter: Drafter, levels: int) -> Drafter:
    """The drafter itself; ValueError where it cannot draft trees of that many `levels`."""
    if not drafter.grows:
        raise ValueError(
            f"drafter {drafter.name!r} drafts chains, it grows no trees; "
            "use a policy of chains, or CAPE's if it has logits"
        )
    if drafter.max_draft_length is not None and levels > drafter.max_draft_length:
        raise ValueError(
            f"a tree of {levels} levels is too deep for drafter {drafter.name!r} "
            f"that drafts {drafter.max_draft_length} tokens; cut it"
        )
    return drafter


class CachedDrafter(Drafter):
    """Base class of drafters with rows of their own in a cache, one for each token read.

    Rows of the backlog (the last draft after a full acceptance, every round of k = 0) enter with
    the next round's first step: the catch-up that a cost model prices. Rows of a tree follow the
    root's, and are not counted.
    """

    def begin(self, target: Target, prompt: list[int], prefill: TargetOutput, pick: Pick) -> None:
        self.pick, self.committed, self.rows = pick, list(prompt), 0
        self.draft: list[int] = []
        self.parent: list[int] = []
        if len(prompt) > 1:
            self._append(prompt[:-1], "")

    @torch.inference_mode()
    def next(self) -> Step:
        slot = len(self.draft)
        tokens = self.draft[-1:] if slot else self._backlog()
        hidden, logits = (t[-1] for t in self._append(tokens))
        self.draft.append(self.pick(logits, slot, hidden))
        return Step(self.draft[-1], slot, logits, hidden)

    @torch.inference_mode()
    def grow(self, token: list[int], parent: list[int]) -> Tensor:
        if not self.parent:
            logits = self._append(self._backlog())[1]
        else:
            span = Span.tree(self.rows - 1, self.parent + parent, len(token))
            logits = self._forward(token, span, "tree")[1]
        self.parent = self.parent + parent
        return logits

    def rollback(self, accepted: int) -> None:
        # valid rows: those of committed tokens, and of accepted drafts that were fed in turn
        self.rows = min(self.rows, len(self.committed) + accepted)
        self.draft, self.parent = [], []

    def catch_up(self, tokens: list[int], output: TargetOutput, path: list[int]) -> None:
        self.committed += tokens

    def _backlog(self) -> list[int]:
        """Committed tokens without a valid row: at least the last one, recomputed if need be."""
        self.rows = min(self.rows, len(self.committed) - 1)
        return self.committed[self.rows :]

    @torch.inference_mode()
    def _append(self, tokens: list[int], head: str = "last") -> tuple[Tensor, ...]:
        """`_forward` of a chain after all rows."""
        output = self._forward(tokens, Span(self.rows, len(tokens)), head)
        self.rows += len(tokens)
        return output

    def _forward(self, tokens: list[int], span: Span, head: str) -> tuple[Tensor, ...]:
        """Hidden states `[n, d_D]`; logits of the "last", or of all of a "tree"; "": none."""
        raise NotImplementedError


class ConfiguredDrafter(Drafter):
    """Base class of drafters without weights, whose `settings` are keywords of their class."""

    has_logits = False
    settings: Mapping[str, object]

    @classmethod
    def load(
        cls, folder: Path, target: Decoder | None = None, made_for: Mapping[str, str] = {}
    ) -> Self:
        """With the "settings" of <name>.json in `folder`, or the defaults without that file.

        WeightsError for a file that holds none, or wrong ones.
        """
        file = Path(folder) / f"{cls.name}.json"
        if not file.exists():
            return cls()
        with reraised(WeightsError, f"{file} holds no settings of {cls.name}"):
            return cls(**parse_json(file.read_text(encoding="utf-8"))["settings"])


class CopyingDrafter(ConfiguredDrafter):
    """Base class of drafters that copy earlier tokens of the sequence, by one search a round.

    A chain drafted one token later continues a longer match, so not `prefix_only`.
    """

    prefix_only = False
    history_free = True
    tokens_only = True

    def begin(self, target: Target, prompt: list[int], prefill: TargetOutput, pick: Pick) -> None:
        self.sequence, self.drafted = array("i", prompt), 0

    def next(self) -> Step | None:
        if not self.drafted:
            # of a copy: an array whose buffer anything still holds cannot grow
            self.draft = self._found(np.array(self.sequence)).tolist()
        if self.drafted == len(self.draft):
            return None
        self.drafted += 1
        return Step(self.draft[self.drafted - 1], self.drafted - 1, None)

    def rollback(self, accepted: int) -> None:
        self.drafted = 0

    def catch_up(self, tokens: list[int], output: TargetOutput, path: list[int]) -> None:
        self.sequence.extend(tokens)

    def _found(self, sequence: np.ndarray) -> np.ndarray:
        """The draft int32 `[d]` after the tokens int32 `[n]`."""
        raise NotImplementedError
