"""The protocol between the decode loop and a drafter."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from torch import Tensor

from real.model.target import Resume, Target, TargetOutput

Pick = Callable[..., int]
"""(logits [vocab], draft slot, hidden state or None) -> token: the decode rule, with the noise of that slot's text position, or the draw
of that slot. With the `Step.hidden` that comes with the logits all that a policy reads is fetched together with the token."""


@dataclass(frozen=True)
class Step:
    """One drafted token.

    | field | meaning |
    | --- | --- |
    | token | what is proposed |
    | parent | row of the round's pass that it follows: slot j of a chain follows row j (row 0 is the last committed token) |
    | logits `[vocab]` | the drafter's own prediction that it was picked from; None for drafters without one |
    | hidden `[d_D]` | the drafter's last hidden state, before norm and head, that the logits come from; None where there is none |
    """

    token: int
    parent: int
    logits: Tensor | None
    hidden: Tensor | None = None


@dataclass(frozen=True)
class Draft:
    """What a round submits to the target.

    | field | meaning |
    | --- | --- |
    | token | of each row of the pass: row 0 the last committed token, then what was drafted |
    | parent | the row that each row follows; -1 for row 0 |
    | computed | steps of the drafter that were paid for |
    | line | rows 1 .. line are a chain that the drafter has in its own state; what it computed beyond is not among them |
    | q | row -> the drafter's distribution `[vocab]` that the first of the row's children was drawn from; empty unless drawn |
    """

    token: list[int]
    parent: list[int]
    computed: int
    line: int
    q: Mapping[int, Tensor] = field(default_factory=dict)

    def kept(self, path: list[int]) -> int:
        """How many leading drafts of the drafter's own chain the committed `path` keeps."""
        return next(
            (i for i, row in enumerate(path[1:]) if row != i + 1 or row > self.line), len(path) - 1
        )


@runtime_checkable
class Drafter(Protocol):
    """Whatever proposes tokens.

    | attribute | meaning |
    | --- | --- |
    | name | for tables |
    | taps | depths of the target, in layers, whose residual stream `catch_up` must receive |
    | prefix_only | what it proposes depends on the tokens of the verified prefix alone (declared, and tested) |
    | history_free | `next` depends on the verified prefix and the draft so far, not on earlier rounds (declared, tested) |
    | predictors | feature name -> Predictor of this drafter on its target: what it shows beside its logits; may be left out |
    | silent | its steps carry no logits, so that it shows no features; may be left out where they do |
    | sublayers | how many of the target's attention and MLP sub-layers one drafted token runs through; 0 where left out |
    | deepest | how many tokens behind the last committed one it can draft; no limit where left out |
    | passes | how its own passes are run, `real.model.runner.EAGER` where nothing else is set; left out where it has no choice |
    | grow | a method, `Grows`; left out by drafters that draft chains alone |

    A round: `next` until the policy or the drafter stops; the target verifies; `rollback`; `catch_up`.
    """

    name: str
    taps: tuple[int, ...]
    prefix_only: bool
    history_free: bool

    def begin(self, target: Target, prompt: list[int], prefill: TargetOutput, pick: Pick) -> None:
        """Starts a text whose prompt's last token is not in the target's cache yet; `prefill` covers the others."""

    def next(self) -> Step | None:
        """Drafts one more token, or None where it has nothing more to offer in this round."""

    def resume(self) -> Resume | None:
        """What the round's verification may skip, because this drafter has run those target layers already."""

    def rollback(self, accepted: int) -> None:
        """Forgets the drafted tokens behind the first `accepted` ones (which may be fewer than it computed, and than were committed)."""

    def catch_up(self, tokens: list[int], output: TargetOutput, path: list[int]) -> None:
        """Learns the committed `tokens` (accepted ones, then the target's) and the rows `path` of the pass they came by."""


class Grows(Protocol):
    """A drafter that can draft trees: in a round it is asked either for `next`, or to `grow`."""

    def grow(self, token: list[int], parent: list[int]) -> Tensor | None:
        """Takes n more rows of the round's tree through the drafter: logits `[n, vocab]` after each.

        Rows are numbered over the round as they are given; `parent` names rows of earlier calls by number. Each sees the committed
        text and its ancestors alone. The first call is `grow([last], [-1])`: the last committed token's row, and what the drafter
        owes before it; None where it has nothing to offer in this round. `rollback(0)` then leaves that row and nothing of the tree,
        and `resume` None: the verification computes every row anew.
        """


def growing(drafter: Drafter, levels: int) -> Grows:
    """The drafter itself; ValueError where it grows no trees, or none of so many `levels`."""
    if not hasattr(drafter, "grow"):
        raise ValueError(
            f"drafter {drafter.name!r} drafts chains, it grows no trees; use a policy of chains, or CAPE's if it has logits"
        )
    deepest = getattr(drafter, "deepest", levels)
    if levels > deepest:
        raise ValueError(
            f"a tree of {levels} levels is too deep for drafter {drafter.name!r} that drafts {deepest} tokens; cut it"
        )
    return drafter


class Silent:
    """Offers nothing: with it the loop is plain decoding."""

    name = "none"
    taps = ()
    prefix_only = True
    history_free = True

    def begin(self, target, prompt, prefill, pick) -> None: ...

    def next(self) -> None:
        return None

    def resume(self) -> None:
        return None

    def rollback(self, accepted: int) -> None: ...

    def catch_up(self, tokens, output, path) -> None: ...
