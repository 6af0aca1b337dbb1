"""The walk: from the target's scores or distributions at a pass's rows to the tokens that are committed."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from real.draft import Draft
from real.model.tree_mask import depths
from real.sampling import AddressedDraws, Rule
from simspec.rng import RESIDUAL


@dataclass(frozen=True)
class VerifyResult:
    """What a verification commits.

    | field | meaning |
    | --- | --- |
    | token | accepted draft tokens, then the target's own (none after an accepted end token) |
    | path | rows of the pass whose keys stay: row 0 and the accepted ones |
    | accepted | draft tokens emitted |
    | scores `[len(path), vocab]` | the target's scores at the rows of the path |
    """

    token: list[int]
    path: list[int]
    accepted: int
    scores: Tensor


def accept_exact(
    rule: Rule,
    logits: Tensor,
    token: list[int],
    parent: list[int],
    sequence: int,
    position: int,
    end_tokens: tuple[int, ...],
    text: Sequence[int] | None = None,
) -> VerifyResult:
    """Follows the target's picks down the drafted rows for as long as a row carries the token picked.

    `token[0]` is the last committed token; row i predicts the text position `position` + its depth. A chain is the
    tree whose row i follows row i - 1. Of siblings that carry the same token the first is followed. With `text` (the new text from its
    start) its tokens stand in for the picks, which are made all the same: they are in `scores`.
    """
    depth = depths(parent)
    scores = rule.scores(logits, sequence, [position + d for d in depth])
    picks = scores.argmax(-1).tolist()
    if text is not None:
        picks = [text[position + d] if position + d < len(text) else -1 for d in depth]
    committed, path = [], [0]
    while True:
        pick = picks[path[-1]]
        child = next((i for i, p in enumerate(parent) if p == path[-1] and token[i] == pick), None)
        committed.append(pick)
        if child is None:
            break
        path.append(child)
        if pick in end_tokens:
            break
    return VerifyResult(committed, path, len(path) - 1, scores[path])


def rejection_sample(
    rule: Rule,
    logits: Tensor,
    draft: Draft,
    draws: AddressedDraws,
    round: int,
    end_tokens: tuple[int, ...],
) -> VerifyResult:
    """Recursive rejection down the drafted rows: the committed text follows the target's distribution exactly.

    At a row with target distribution p, its children one after the other: child x, drawn from q, is accepted with probability
    min(1, p(x) / q(x)); else p becomes norm(max(0, p - q)), and q loses x (siblings are drawn without replacement). Where no child
    stands the token is drawn from what p has become; with one child a row this is speculative sampling (Leviathan et al., Algorithm 1),
    with more that of SpecInfer with draws as in Sequoia. A row whose child nobody drew (`draft.q` lacks the row) is certain: q = 1 there.
    """
    p = rule.probs(logits)
    children: dict[int, list[int]] = {}
    for row, above in enumerate(draft.parent):
        children.setdefault(above, []).append(row)
    committed, path = [], [0]
    while not (committed and committed[-1] in end_tokens):
        row = path[-1]
        left, q, chosen = p[row], draft.q.get(row), None
        for child in children.get(row, ()):
            token = draft.token[child]
            if q is None:  # no distribution: as if drawn from one that is sure of it
                odds, rest = float(left[token]), left.clone()
                rest[token] = 0
            else:
                odds, rest = min(1.0, float(left[token] / q[token])), (left - q).clamp(min=0)
            if draws.accept(odds, round, child):
                chosen = child
                break
            left = rest / rest.sum()
            if q is not None:
                q = q.clone()
                q[token] = 0
                q = q / q.sum()
        if chosen is None:
            committed.append(draws.sample(left, round, row, RESIDUAL))
            break
        committed.append(draft.token[chosen])
        path.append(chosen)
    return VerifyResult(committed, path, len(path) - 1, p[path].log())
