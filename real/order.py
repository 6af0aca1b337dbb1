"""What a recording tells of dynamic trees and beams: where in their order the text's own tokens stand, at every position."""

import numpy as np

from real.draft import Drafter, growing
from real.rows import RecordError, Settings
from real.target import Target
from real.tree import Offer, search

OUT = 255
"""Stands for a node that is in no tree, or that 255 others precede."""


def orders(target: Target, drafter: Drafter, settings: Settings, prompt: list[int], text: np.ndarray, sequence: int):
    """uint8 `[n, K]`: place of the text's node at depth j + 1 in the order of the dynamic tree of `settings.tree` grown at row t.

    And uint8 `[n, 2]`: of what a beam search of that width and depth ends with (`real.tree.Beam`), the nodes on the text, and all nodes.

    The tree is as deep as its D levels, K and the budget left there allow; the first B of the order are the tree of B nodes
    (`real.tree.Dynamic`), so one recording serves every B. 255 where the text has left the tree, or has ended. ValueError for a drafter
    that grows no such tree, or whose proposals depend on earlier rounds; RecordError under the rejection rule.
    """
    if settings.rule.sampled:
        raise RecordError("dynamic trees do not run under the rejection rule; record without a tree")
    if not drafter.history_free:
        raise RecordError(f"drafter {drafter.name!r} depends on earlier rounds; a recording of it would not replay exactly")
    (width, levels), n = settings.tree, len(text)
    growing(drafter, levels)
    places, beam = np.full((n, settings.K), OUT, np.uint8), np.zeros((n, 2), np.uint8)
    prefill = target.prefill(prompt[:-1])
    drafter.begin(target, prompt, prefill, lambda logits, *_: int(logits.argmax()))
    last = prompt[-1]
    for t in range(n):
        deep = min(levels, settings.budget - t - 1)
        offer = search(drafter, settings.rule, sequence, t, last, width, deep) if deep else None
        if offer is not None:
            along, place = _along(offer, text[t : t + deep].tolist()), {row: i for i, row in enumerate(offer.order())}
            places[t, : len(along)] = np.minimum([place[row] for row in along], OUT)
            ends = offer.ends()
            beam[t] = sum(row in ends for row in along), len(ends)
        drafter.rollback(0)
        verdict = target.verify([last], [-1])
        target.keep([0])
        drafter.rollback(0)
        last = int(text[t])
        drafter.catch_up([last], verdict, [0])
    return places, beam


def _along(offer: Offer, text: list[int]) -> list[int]:
    """Rows along `text`, for as long as there are."""
    row, found = 0, []
    child = {(above, token): i for i, (above, token) in enumerate(zip(offer.parent, offer.token)) if i}
    for token in text:
        row = child.get((row, token))
        if row is None:
            break
        found.append(row)
    return found
