"""Verification: from the target's logits at a pass's rows to the committed tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from real.draft import Draft
from real.model.tree_mask import depths
from real.sampling import AddressedDraws, Rule
from simspec.rng import RESIDUAL


@dataclass(frozen=True)
class VerifyResult:
    """The outcome of a verification.

    | field | meaning |
    | --- | --- |
    | token | accepted draft tokens, then the target's own (none after an accepted end token) |
    | path | rows of the pass that are committed: row 0 and the accepted ones |
    | accepted | number of accepted draft tokens |
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
    forced: Sequence[int] | None = None,
) -> VerifyResult:
    """Accepts the drafted path on which every token is the target's pick.

    `token[0]` is the last committed token; row i predicts the token at `position` + its depth. A
    chain is the tree whose row i follows row i - 1. Of siblings with the same token the first is
    followed. With `forced`, all new tokens of the sequence, these replace the picks; `scores`
    remain the target's.
    """
    depth = depths(parent)
    scores = rule.scores(logits, sequence, [position + d for d in depth])
    picks = scores.argmax(-1).tolist()
    if forced is not None:
        picks = [forced[position + d] if position + d < len(forced) else -1 for d in depth]
    committed: list[int] = []
    path = [0]
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
    """Recursive rejection sampling down the drafted rows; committed tokens follow the target's
    distribution.

    At a row with target distribution p, its children are tried in turn. Child x, drawn from q,
    is accepted with probability min(1, p(x) / q(x)). After a rejection p becomes norm(max(0, p -
    q)), and q loses x (siblings are drawn without replacement). If no child is accepted, the
    token is drawn from the final p. A row absent from `draft.q` has a deterministic child: q =
    1.

    One child a row: speculative sampling (Leviathan et al., Algorithm 1). More: SpecInfer, with
    draws as in Sequoia.
    """
    p = rule.probs(logits)
    children: dict[int, list[int]] = {}
    for row, parent in enumerate(draft.parent):
        children.setdefault(parent, []).append(row)
    committed: list[int] = []
    path = [0]
    while not (committed and committed[-1] in end_tokens):
        row = path[-1]
        left, q, chosen = p[row], draft.q.get(row), None
        for child in children.get(row, ()):
            token = draft.token[child]
            if q is None:  # a deterministic drafter: q = 1 at its token
                probability, rest = float(left[token]), left.clone()
                rest[token] = 0
            else:
                probability, rest = min(1.0, float(left[token] / q[token])), (left - q).clamp(min=0)
            if draws.accept(probability, round, child):
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
