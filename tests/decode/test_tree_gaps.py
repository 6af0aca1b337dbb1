"""Gaps of a tree search: the smallest difference that decided which nodes exist."""

import math

import pytest
import torch

from real.decode.plans import DynamicTree, RoundStart, SequenceStart, search_tree
from real.decode.verify import PhaseTimer
from real.draft import Drafter
from real.sampling import Rule

FIRST = (0.5, 0.3, 0.1, 0.06, 0.04)


class Table(Drafter):
    """Distributions by the last token: 4 begins, 0 and 1 follow it."""

    name = "table"

    def __init__(self, behind_0, behind_1):
        self.rows = {4: FIRST, 0: behind_0, 1: behind_1}

    def grow(self, token, parent):
        return torch.tensor([self.rows[t] for t in token], dtype=torch.float64).log()


def test_gap_at_the_edge_of_an_expanded_level_is_seen():
    """The second node to expand has 0.3 * 0.5 (1 + 1e-6), the next one 0.5 * 0.3."""
    drafter = Table((0.58, 0.3, 0.06, 0.04, 0.02), (0.5 + 5e-7, 0.2, 0.15, 0.1, 0.05 - 5e-7))
    tree = search_tree(drafter, Rule(), 0, 0, 4, 2, 2)
    assert tree.token == [4, 0, 1, 0, 1, 0, 1]
    assert sorted(tree.last) == [3, 5]
    assert tree.gap == pytest.approx(1e-6, rel=1e-3)


def test_gap_at_the_edge_of_the_budget_is_seen():
    """Two nodes of 0.5 and 0.3 are submitted, and one of 0.29 is not."""
    drafter = Table((0.58, 0.3, 0.06, 0.04, 0.02), (2 / 3, 0.2, 0.08, 0.04, 1 / 75))
    for nodes, gap in ((2, math.log(0.3 / 0.29)), (3, math.log(0.2 / 0.15)), (6, 0.2877)):
        plan, clock = DynamicTree(2, 2, nodes), PhaseTimer(torch.device("cpu"))
        plan.begin(SequenceStart(drafter, Rule(), 0, None, None))
        clock.begin()
        draft = plan.draft(RoundStart(4, 0, 0, 2, (), clock))
        assert len(draft.token) == nodes + 1
        assert plan.end(draft, None, None) == pytest.approx(gap, abs=1e-3)


def test_equal_scores_keep_the_order_of_their_rows():
    """Nodes (0, 0), (0, 1), (1, 0), (1, 1) all have 0.25: the first ones come first."""
    half = (0.5, 0.5, 0.0, 0.0, 0.0)
    drafter = Table(half, half)
    drafter.rows[4] = half
    tree = search_tree(drafter, Rule(), 0, 0, 4, 2, 2)
    assert tree.order() == [1, 2, 3, 4, 5, 6]
    assert tree.gap == 0
