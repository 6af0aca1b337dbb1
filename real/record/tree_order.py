"""Tree order: ranks of recorded tokens in the dynamic tree grown at every position."""

from dataclasses import replace
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from real.decode.loop import along
from real.decode.plans import CandidateTree, search_tree, top_tokens
from real.draft import Drafter, ParallelDrafter, check_grows
from real.draft.kind import DraftedLogits
from real.model.target import Target
from real.record.rows import SequenceScores, SharedPass, check_history_free, parallel_batches
from real.record.settings import RecordError, Settings

NOT_IN_TREE = 255
"""The order of a node that is in no tree, or that at least 255 others precede."""

TreeOrder = tuple[np.ndarray, np.ndarray]
"""(order uint8 `[n, K]`, beam uint8 `[n, 2]`), as in `simspec.Trace`."""


def tree_order_stepwise(
    target: Target, drafter: Drafter, settings: Settings, prompt: list[int], tokens: np.ndarray,
    sequence: int
) -> TreeOrder:  # fmt: skip
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


A = TypeVar("A", Tensor, np.ndarray)


class Level(NamedTuple, Generic[A]):
    """One level of the trees of m positions, c nodes each; tensors or arrays `[m, c]`.

    parent: number in the level above; expanded `[m, width]`: nodes that the next level grows from.
    """

    token: A
    score: A
    parent: A
    expanded: A


@torch.inference_mode()
def tree_order_parallel(
    target: Target, drafter: Drafter, settings: Settings, prompt: list[int], tokens: np.ndarray,
    sequence: int, shared: SharedPass | None = None
) -> TreeOrder:  # fmt: skip
    """Computes `tree_order_stepwise` for all positions at once."""
    width, levels = tree_shape(drafter, settings)
    n = len(tokens)
    order, beam = np.full((n, settings.K), NOT_IN_TREE, np.uint8), np.zeros((n, 2), np.uint8)
    shared = shared or SharedPass()
    full = shared.target_pass(target.decoder, prompt, tokens.tolist())
    scores = shared.scores(settings.rule, sequence, n + levels)
    for parallel, batch in parallel_batches(drafter, full, n, width)[1]:
        grown = _grow(parallel, scores, batch, width, levels)
        trees = [Level(*(field.cpu().numpy() for field in level)) for level in grown]
        position = batch.cpu().numpy()
        depth = np.minimum(levels, settings.budget - position - 1)
        order[position, :levels], beam[position] = _order(trees, position, depth, tokens)
    return order, beam


def _grow(
    parallel: ParallelDrafter, scores: SequenceScores, position: Tensor, width: int, levels: int
) -> list[Level[Tensor]]:
    """`real.decode.tree_search.search_tree` from `position [m]`, level by level."""
    m, grown = len(position), []
    logits = DraftedLogits.of(parallel.start(position)[0])
    above = torch.zeros(m, 1, dtype=torch.float64, device=position.device)
    expanded = torch.zeros_like(position)[:, None]
    for level in range(levels):
        rows = logits.logits.shape[1]
        if logits.token is not None and len(logits.token) < width:
            logits = DraftedLogits(logits.whole(), logits.vocab, None)
        flat = replace(logits, logits=logits.logits.flatten(0, 1))
        children, _ = top_tokens(scores(flat, (position + level).repeat_interleave(rows)), width)
        logprob = (flat.logits.double() / scores.rule.temperature).log_softmax(-1)
        logprob = logprob.gather(-1, children)
        token = flat.tokens(children).reshape(m, -1)
        score = (above[..., None] + logprob.reshape(m, rows, width)).flatten(1)
        parent = expanded.repeat_interleave(width, 1)
        expanded = score.sort(dim=-1, descending=True, stable=True).indices[:, :width]
        grown.append(Level(token, score, parent, expanded))
        if level + 1 < levels:
            proposal = parallel.extend(expanded // width, token.gather(1, expanded))
            logits = DraftedLogits.of(proposal[0])
            above = score.gather(1, expanded)
    return grown


def _order(
    trees: list[Level[np.ndarray]], position: np.ndarray, depth: np.ndarray, tokens: np.ndarray
) -> TreeOrder:
    """Order and beam at `position [m]`, each tree cut to `depth [m]` levels."""
    m, levels = len(position), len(trees)
    place, kept = _places(trees, depth), _beam_nodes(trees, depth)
    order, beam = np.full((m, levels), NOT_IN_TREE, np.uint8), np.zeros((m, 2), np.int64)
    beam[:, 1] = sum(level.sum(1) for level in kept)
    on_path, node, start = np.ones(m, bool), np.zeros(m, np.int64), 0
    for level, tree in enumerate(trees):
        expected = tokens[np.minimum(position + level, len(tokens) - 1)]
        match = (tree.token == expected[:, None]) & (tree.parent == node[:, None])
        on_path &= match.any(1) & (level < depth) & (position + level < len(tokens))
        node = match.argmax(1)
        row = on_path.nonzero()[0]
        order[row, level] = np.minimum(place[row, start + node[row]], NOT_IN_TREE)
        beam[row, 0] += kept[level][row, node[row]]
        start += tree.token.shape[1]
    return order, beam.astype(np.uint8)


def _places(trees: list[Level[np.ndarray]], depth: np.ndarray) -> np.ndarray:
    """Place of every node, levels side by side, int64 `[m, nodes]`.

    Higher scores come first; ties go to the shallower node, then to the smaller number.
    """
    keys = [
        np.where((level < depth)[:, None], -tree.score, np.inf) for level, tree in enumerate(trees)
    ]
    key = np.concatenate(keys, 1)
    place = np.empty(key.shape, np.int64)
    np.put_along_axis(place, key.argsort(1, kind="stable"), np.arange(key.shape[1])[None], 1)
    return place


def _beam_nodes(trees: list[Level[np.ndarray]], depth: np.ndarray) -> list[np.ndarray]:
    """Bool `[m, c]` of each level: the expanded nodes of the deepest one, and their ancestors."""
    kept: list[np.ndarray] = []
    below = np.zeros((len(depth), 1), bool)
    for level in reversed(range(len(trees))):
        expanded = np.zeros(trees[level].token.shape, bool)
        np.put_along_axis(expanded, trees[level].expanded, True, 1)
        nodes = expanded & (depth == level + 1)[:, None]
        if level + 1 < len(trees):
            row, node = below.nonzero()
            nodes[row, trees[level + 1].parent[row, node]] = True
        kept.insert(0, nodes)
        below = nodes
    return kept
