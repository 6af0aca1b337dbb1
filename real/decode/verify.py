"""Verification: from the target's logits at a pass's rows to the committed tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

from real.draft import Draft
from real.model.passes import depths
from real.sampling import AddressedDraws, Rule
from simspec.numerics.rng import RESIDUAL

DRAFTING, VERIFICATION, POLICY, OTHER = range(4)


class PhaseTimer:
    """Time by phase, of a device that may still be busy: synchronised on CUDA where `exact`, else
    as issued."""

    def __init__(self, device, exact: bool = True):
        self.wait = torch.cuda.synchronize if exact and device.type == "cuda" else lambda: None
        self.rows: list[list[float]] = []
        self.then = perf_counter()

    def begin(self) -> None:
        self.rows.append([0.0] * 4)
        self.then = perf_counter()

    def lap(self, phase: int) -> None:
        self.wait()
        now = perf_counter()
        self.rows[-1][phase] += now - self.then
        self.then = now


TINY = 1e-300
"""Replaces probability 0, which rounding at a cutoff of top-k or top-p may give to a token."""


@dataclass(frozen=True)
class VerifyResult:
    """The outcome of a verification."""

    token: list[int]  # accepted draft tokens, then the target's own, but after an end token
    path: list[int]  # rows of the pass that are committed: row 0 and the accepted ones
    accepted: int  # number of accepted draft tokens
    scores: Tensor  # [len(path), vocab]: the target's scores at the rows of the path
    chance: tuple[float, ...] = ()  # of `accept_recorded`: P(accepted) of each tested token


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


def block_sample(
    rule: Rule,
    logits: Tensor,
    draft: Draft,
    draws: AddressedDraws,
    round: int,
    end_tokens: tuple[int, ...],
) -> VerifyResult:
    """Block verification of a chain (Sun et al., arXiv 2403.10444, Algorithm 2): the target's
    distribution, and on average no fewer tokens than `rejection_sample` accepts.

    w_0 = 1, w_i = min(1, w_{i-1} p(x_i) / q(x_i)), r_i = max(0, w_i p - q) and S_i its sum, where q
    = 0 after the last token. From the longest block on, the first i tokens are accepted together
    with probability S_i / (S_i + 1 - w_i), and the next one is drawn from r_i / S_i. q is as in
    `rejection_sample`. ValueError for a tree.
    """
    _check_chain(rule, draft, "verified together")
    p, tokens = rule.probs(logits), draft.token[1:]
    weights, rests = [1.0], []
    for row, token in enumerate(tokens):
        q = draft.q.get(row)
        if q is None:
            q = torch.zeros_like(p[row])
            q[token] = 1
        rests.append((weights[row] * p[row] - q).clamp(min=0))
        weights.append(min(1.0, weights[row] * float(p[row, token] / q[token])))
    rests.append(weights[-1] * p[len(tokens)])
    accepted = len(tokens)
    while accepted:
        total, w = float(rests[accepted].sum()), weights[accepted]
        if draws.accept(total and total / (total + 1 - w), round, accepted):
            break
        accepted -= 1
    committed = tokens[:accepted]
    ended = next((i for i, token in enumerate(committed, 1) if token in end_tokens), 0)
    if ended:
        committed = committed[:ended]
    else:
        committed.append(draws.sample(rests[accepted], round, accepted, RESIDUAL))
    path = list(range((ended or accepted) + 1))
    return VerifyResult(committed, path, len(path) - 1, p[path].log())


def _check_chain(rule: Rule, draft: Draft, done: str) -> None:
    if list(draft.parent) != list(range(-1, len(draft.token) - 1)):
        raise ValueError(
            f"tokens cannot be {done} on a tree under rule {rule.name!r}; expected a chain, "
            "or rule 'greedy' or 'coupled'"
        )


def accept_recorded(
    rule: Rule,
    logits: Tensor,
    draft: Draft,
    draws: AddressedDraws,
    position: int,
    end_tokens: tuple[int, ...],
    forced: Sequence[int],
) -> VerifyResult:
    """Speculative sampling of a chain, given that the new tokens of the sequence are `forced`.

    The drafted token y = forced[position + j] is accepted with the probability of
    `simspec.trace.acceptance.chances`, of q(y) / p(y) here and before, by the draw that a replay
    makes at this row and slot (`drawn_trace`). Any other token is not accepted. A row absent from
    `draft.q` has a deterministic child: q = 1. ValueError for a tree.
    """
    _check_chain(rule, draft, "forced")
    p = rule.probs(logits)
    committed: list[int] = []
    chance: list[float] = []
    product = reached = 1.0  # of block: the ratios' product, and the chance of all so far
    for j, drafted in enumerate(draft.token[1:]):
        token, q = forced[position + j], draft.q.get(j)
        ratio = float(drafted == token)
        if ratio:
            ratio = (1.0 if q is None else float(q[token])) / max(float(p[j, token]), TINY)
        product = min(1e300, ratio * (product if rule.name == "block" else reached))
        accepted = min(1.0, product / reached)
        reached *= accepted
        chance.append(accepted)
        if not draws.accept(accepted, position, j):
            break
        committed.append(token)
        if token in end_tokens:
            break
    path = list(range(len(committed) + 1))
    if not (committed and committed[-1] in end_tokens):
        committed.append(forced[position + len(committed)])
    return VerifyResult(committed, path, len(path) - 1, p[path].log(), tuple(chance))
