"""The walk: from the target's scores of a pass's rows to the tokens that are committed."""

from dataclasses import dataclass

from torch import Tensor

from real.block import depths
from real.sampling import Rule


@dataclass(frozen=True)
class Walk:
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


def walk(
    rule: Rule, logits: Tensor, token: list[int], parent: list[int], sequence: int, position: int, end_tokens: tuple[int, ...]
) -> Walk:
    """Follows the target's picks down the drafted rows for as long as a row carries the token picked.

    `token[0]` is the last committed token; row i predicts the text position `position` + its depth. A chain is the
    tree whose row i follows row i - 1. Of siblings that carry the same token the first is followed.
    """
    depth = depths(parent)
    scores = rule.scores(logits, sequence, [position + d for d in depth])
    picks = scores.argmax(-1).tolist()
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
    return Walk(committed, path, len(path) - 1, scores[path])
