"""Walking a drafter along a known sequence, one committed token and one target pass a time."""

from collections.abc import Iterator, Sequence

from torch import Tensor

from real.draft import Drafter, Pick
from real.model.target import Target, TargetOutput


def greedy_pick(logits: Tensor, slot: int, hidden: Tensor | None = None) -> int:
    """The token with the largest logit, as a drafter's `real.draft.Pick`."""
    return int(logits.argmax())


def start(
    target: Target, drafter: Drafter, prompt: Sequence[int], pick: Pick = greedy_pick
) -> TargetOutput:
    """Prefills all of `prompt` but its last token and begins the drafter's sequence; returns the
    prefill's output."""
    prefill = target.prefill(list(prompt[:-1]))
    drafter.begin(target, list(prompt), prefill, pick)
    return prefill


def along(
    target: Target,
    drafter: Drafter,
    prompt: Sequence[int],
    tokens: Sequence[int],
    pick: Pick = greedy_pick,
) -> Iterator[tuple[int, int, TargetOutput]]:
    """Yields (t, last, output) with the drafter ready to draft after `prompt` and `tokens[:t]`.

    | value | meaning |
    | --- | --- |
    | t | 0 .. n - 1: committed tokens of the sequence |
    | last | the last committed token, whose target row is not computed yet |
    | output | the pass before it: the prefill's, then one row a step |

    Between two steps `tokens[t]` is committed, whatever was drafted. A caller that drafts more
    than once at a position calls `drafter.rollback(0)` after each draft.
    """
    output = start(target, drafter, prompt, pick)
    last = prompt[-1]
    for t, token in enumerate(tokens):
        yield t, last, output
        output = target.verify([last], [-1])
        target.commit([0])
        drafter.rollback(0)
        last = int(token)
        drafter.catch_up([last], output, [0])
