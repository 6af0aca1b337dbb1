"""What a recording tells of dynamic trees and beams: where in their order the text's own tokens stand, at every position."""

import numpy as np
import torch
from torch import Tensor

from real.decode.along import along
from real.decode.tree_search import CandidateTree, search_tree, top_tokens
from real.draft import Drafter, ParallelDrafter, check_grows
from real.draft.parallel import position_batches
from real.drafters import parallel_form
from real.model.full_pass import TargetPass
from real.model.target import Target
from real.record.rows import RecordError, Scores, Settings

OUT = 255
"""Stands for a node that is in no tree, or that 255 others precede."""


def orders(
    target: Target,
    drafter: Drafter,
    settings: Settings,
    prompt: list[int],
    text: np.ndarray,
    sequence: int,
):
    """uint8 `[n, K]`: place of the text's node at depth j + 1 in the order of the dynamic tree of `settings.tree` grown at row t.

    And uint8 `[n, 2]`: of what a beam search of that width and depth ends with (`real.decode.beam_search.BeamSearch`), the nodes on the text, and all nodes.

    The tree is as deep as its D levels, K and the budget left there allow; the first B of the order are the tree of B nodes
    (`real.decode.dynamic_tree.DynamicTree`), so one recording serves every B. 255 where the text has left the tree, or has ended. ValueError for a drafter
    that grows no such tree, or whose proposals depend on earlier rounds; RecordError under the rejection rule.
    """
    _check(drafter, settings)
    (width, levels), n = settings.tree, len(text)
    places, beam = np.full((n, settings.K), OUT, np.uint8), np.zeros((n, 2), np.uint8)
    for t, last, _ in along(target, drafter, prompt, text):
        deep = min(levels, settings.budget - t - 1)
        offer = (
            search_tree(drafter, settings.rule, sequence, t, last, width, deep) if deep else None
        )
        if offer is not None:
            rows, place = (
                _rows_along(offer, text[t : t + deep].tolist()),
                {row: i for i, row in enumerate(offer.order())},
            )
            places[t, : len(rows)] = np.minimum([place[row] for row in rows], OUT)
            ends = offer.ends()
            beam[t] = sum(row in ends for row in rows), len(ends)
        drafter.rollback(0)
    return places, beam


def _check(drafter: Drafter, settings: Settings) -> None:
    if settings.rule.sampled:
        raise RecordError(
            "dynamic trees do not run under the rejection rule; record without a tree"
        )
    if not drafter.history_free:
        raise RecordError(
            f"drafter {drafter.name!r} depends on earlier rounds; a recording of it would not replay exactly"
        )
    check_grows(drafter, settings.tree[1])


def _rows_along(offer: CandidateTree, text: list[int]) -> list[int]:
    """Rows along `text`, for as long as there are."""
    row, found = 0, []
    child = {
        (above, token): i for i, (above, token) in enumerate(zip(offer.parent, offer.token)) if i
    }
    for token in text:
        row = child.get((row, token))
        if row is None:
            break
        found.append(row)
    return found


@torch.inference_mode()
def ordered(
    target: Target,
    drafter: Drafter,
    settings: Settings,
    prompt: list[int],
    text: np.ndarray,
    sequence: int,
):
    """As `orders`, of all positions at once, for a drafter with a parallel form."""
    _check(drafter, settings)
    (width, levels), n = settings.tree, len(text)
    places, beam = np.full((n, settings.K), OUT, np.uint8), np.zeros((n, 2), np.uint8)
    known, make = TargetPass(target.decoder, prompt, text.tolist()), parallel_form(drafter)
    assert make is not None
    first, scored = (
        max(0, make.min_context - len(prompt)),
        Scores(settings.rule, sequence, n + levels),
    )
    if first < n:
        fork = make(drafter, known)
        every = torch.arange(first, n, device=known.token.device)
        for at in position_batches(every, width, known, fork):
            grown = [
                [t.cpu().numpy() for t in level]
                for level in _grown(fork, scored, at, width, levels)
            ]
            here = at.cpu().numpy()
            places[here, :levels], beam[here] = _placed(
                grown, here, np.minimum(levels, settings.budget - here - 1), text
            )
    return places, beam


def _grown(
    fork: ParallelDrafter, scored: Scores, at: Tensor, width: int, levels: int
) -> list[tuple[Tensor, ...]]:
    """`real.decode.tree_search.search_tree` at all places, level by level: of its nodes token, score and parent `[m, c]`, and those searched on `[m, width]`.

    A parent is the number of a node in the level above, as are those searched on in their own.
    """
    m, found = len(at), []
    logits, standing, above = (
        fork.start(at)[0],
        torch.zeros(m, 1, dtype=torch.float64, device=at.device),
        torch.zeros_like(at)[:, None],
    )
    for level in range(levels):
        rows = logits.shape[1]
        flat = logits.reshape(m * rows, -1)
        kids, _ = top_tokens(scored(flat, (at + level).repeat_interleave(rows)), width)
        added = (flat.double() / scored.rule.temperature).log_softmax(-1).gather(-1, kids)
        token, score = (
            kids.reshape(m, -1),
            (standing[..., None] + added.reshape(m, rows, width)).flatten(1),
        )
        chosen = score.sort(dim=-1, descending=True, stable=True).indices[:, :width]
        found.append((token, score, above.repeat_interleave(width, 1), chosen))
        if level + 1 < levels:
            logits = fork.extend(chosen // width, token.gather(1, chosen))[0]
            standing, above = score.gather(1, chosen), chosen
    return found


def _placed(
    grown: list[list[np.ndarray]], at: np.ndarray, deep: np.ndarray, text: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Rows of `orders` at the places `at [m]` of trees as `_grown` gives them, each cut to `deep [m]` levels."""
    m, levels = len(at), len(grown)
    # of equal scores the less deep stands first, then the earlier: in a level nodes stand as they were made
    key = np.concatenate(
        [np.where((level < deep)[:, None], -grown[level][1], np.inf) for level in range(levels)], 1
    )
    place = np.empty(key.shape, np.int64)
    np.put_along_axis(place, key.argsort(1, kind="stable"), np.arange(key.shape[1])[None], 1)
    kept, below = [], np.zeros((m, 1), bool)
    for level in reversed(range(levels)):
        token, _, _, chosen = grown[level]
        last = np.zeros(token.shape, bool)
        np.put_along_axis(last, chosen, True, 1)
        here = last & (deep == level + 1)[:, None]
        if level + 1 < levels:
            row, node = below.nonzero()
            here[row, grown[level + 1][2][row, node]] = True
        kept.insert(0, here)
        below = here
    places, beam = np.full((m, levels), OUT, np.uint8), np.zeros((m, 2), np.int64)
    beam[:, 1] = sum(level.sum(1) for level in kept)
    alive, node, start = np.ones(m, bool), np.zeros(m, np.int64), 0
    for level, (token, _, parent, _) in enumerate(grown):
        wanted = text[np.minimum(at + level, len(text) - 1)]
        hit = (token == wanted[:, None]) & (parent == node[:, None])
        alive &= hit.any(1) & (level < deep) & (at + level < len(text))
        node = hit.argmax(1)
        row = alive.nonzero()[0]
        places[row, level] = np.minimum(place[row, start + node[row]], OUT)
        beam[row, 0] += kept[level][row, node[row]]
        start += token.shape[1]
    return places, beam.astype(np.uint8)
