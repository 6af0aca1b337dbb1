"""Tree order: where the recorded tokens stand in the dynamic tree grown at every position."""

import numpy as np

from real.decode.along import along
from real.decode.tree_search import CandidateTree, search_tree
from real.draft import Drafter, check_grows
from real.model.target import Target
from real.record.settings import RecordError, Settings
from real.record.stepwise import check_history_free

NOT_IN_TREE = 255
"""The order of a node that is in no tree, or that at least 255 others precede."""

TreeOrder = tuple[np.ndarray, np.ndarray]
"""(order uint8 `[n, K]`, beam uint8 `[n, 2]`), as in `simspec.Trace`."""


def tree_order_stepwise(
    target: Target,
    drafter: Drafter,
    settings: Settings,
    prompt: list[int],
    tokens: np.ndarray,
    sequence: int,
) -> TreeOrder:
    """Order and beam of the dynamic tree of `settings.tree` at every position.

    | array | value at row t |
    | --- | --- |
    | order[t, j] | place of token t + j in the order of the nodes; NOT_IN_TREE once it has left |
    | beam[t] | nodes on the sequence, and all nodes, that a beam search ends with |

    A tree is as deep as its levels, K and the budget left allow. The first B nodes of the order are
    the tree of B nodes, so one recording serves every B. Under the rejection rule, too, the tree is
    that of the verified prefix alone. ValueError for a drafter that grows no such tree; RecordError
    for one that is not history-free.
    """
    width, levels = tree_shape(drafter, settings)
    n = len(tokens)
    order, beam = np.full((n, settings.K), NOT_IN_TREE, np.uint8), np.zeros((n, 2), np.uint8)
    for t, last, _ in along(target, drafter, prompt, tokens.tolist()):
        depth = min(levels, settings.budget - t - 1)
        offer = (
            search_tree(drafter, settings.rule, sequence, t, last, width, depth) if depth else None
        )
        if offer is not None:
            path = _path(offer, tokens[t : t + depth].tolist())
            place = {row: i for i, row in enumerate(offer.order())}
            order[t, : len(path)] = np.minimum([place[row] for row in path], NOT_IN_TREE)
            ends = offer.ends()
            beam[t] = sum(row in ends for row in path), len(ends)
        drafter.rollback(0)
    return order, beam


def tree_shape(drafter: Drafter, settings: Settings) -> tuple[int, int]:
    """(width, levels) of the recorded trees, once the drafter is checked."""
    check_history_free(drafter)
    if not settings.tree:
        raise RecordError("the settings name no tree; expected (width, levels)")
    width, levels = settings.tree
    check_grows(drafter, levels)
    return width, levels


def _path(offer: CandidateTree, tokens: list[int]) -> list[int]:
    """Rows of the tree along `tokens`, as far as they reach."""
    nodes = enumerate(zip(offer.parent, offer.token))
    child = {(parent, token): row for row, (parent, token) in nodes if row}
    path: list[int] = []
    for token in tokens:
        row = child.get((path[-1] if path else 0, token))
        if row is None:
            break
        path.append(row)
    return path
