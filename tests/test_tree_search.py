"""Tree search in the engine: beams, top tokens, the order of offers, and refused trees."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_lm import END, RULES, VOCAB, toy_cost, toy_pair, toy_prompts
from tree_runs import DRAFTERS, logprob_and_scores

from real.decode.loop import decode
from real.decode.plans import (
    BeamSearch,
    DynamicTree,
    RoundStart,
    SequenceStart,
    StaticTree,
    make_plan,
    search_tree,
    top_tokens,
)
from real.record import Settings
from real.record.sequences import target_sequence
from real.sampling import Rule
from simspec import policies
from simspec.tree.tree import Tree, TreeError, TreePolicy, chain_tree, tree_of_widths


@pytest.mark.parametrize("rule", RULES)
def test_beams_equal_beam_search_and_are_lossless(rule):
    for name in DRAFTERS:
        target, drafter = toy_pair(name)
        for seed, prompt in enumerate(toy_prompts(3, 5)):
            expected, _ = target_sequence(target, Settings(6, 14, RULES[rule], END), prompt, seed)
            result = decode(target, drafter, BeamSearch(3, 3), RULES[rule], prompt, 14, END, seed)
            assert result.token.tolist() == expected.tolist()
            assert result.drafted.max() <= 9
            assert result.computed.max() == 3
    target, drafter = toy_pair("model")
    prompt, drafts, rule = [5, 6, 7], {}, RULES[rule]

    def draft(plan):
        drafter.begin(target, prompt, target.prefill(prompt[:-1]), None)
        plan.begin(SequenceStart(drafter, rule, 0, None, None))
        drafts["draft"] = plan.draft(
            RoundStart(7, 0, 0, 3, END, type("Clock", (), {"lap": lambda self, phase: None})())
        )
        return drafts["draft"]

    beams = [((), 0.0)]
    for level in range(3):
        offers = []
        for tokens, total in beams:
            logprob, scores = logprob_and_scores("model", prompt, list(tokens), rule)
            ranked = scores(0, level).sort(descending=True, stable=True).indices.tolist()[:3]
            offers += [((*tokens, t), total + float(logprob[t])) for t in ranked]
        beams = sorted(offers, key=lambda offer: -offer[1])[:3]
    beam = draft(BeamSearch(3, 3))
    paths = {0: ()}
    for row, (token, parent) in enumerate(zip(beam.token, beam.parent)):
        if row:
            paths[row] = (*paths[parent], token)
    assert set(paths.values()) == {tokens[:n] for tokens, _ in beams for n in range(4)}
    assert len(paths) == len(set(paths.values()))


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.lists(st.integers(-2, 2), min_size=6, max_size=6), min_size=1, max_size=4),
    st.integers(1, 6),
)
def test_top_tokens_break_ties_by_index_and_return_the_gap(rows, width):
    scores = torch.tensor(rows, dtype=torch.float64)
    scores[scores == -2] = -torch.inf
    token, gap = top_tokens(scores, width)
    for values, best, near in zip(scores.tolist(), token.tolist(), gap):
        order = sorted(range(6), key=lambda i: (-values[i], i))
        assert best == order[:width]
        gaps = [values[a] - values[b] for a, b in zip(order[:width], order[1 : width + 1])]
        assert near == min((g for g in gaps if g == g), default=np.inf)
    with pytest.raises(TreeError, match="7 children of a node are too wide for a vocabulary of 6"):
        top_tokens(scores, 7)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 50), st.integers(1, 4), st.integers(1, 4), st.sampled_from(list(RULES)))
def test_tree_order_lists_ancestors_first(seed, width, levels, rule):
    target, drafter = toy_pair("medusa")
    prompt = [4, *toy_prompts(1, seed)[0]]
    drafter.begin(target, prompt, target.prefill(prompt[:-1]), None)
    offer = search_tree(drafter, RULES[rule], seed, 0, prompt[-1], width, levels)
    order = offer.order()
    assert len(order) == width + (levels - 1) * width**2
    assert sorted(order) == list(range(1, len(offer.token)))
    assert all(
        offer.parent[row] == 0 or order.index(offer.parent[row]) < i for i, row in enumerate(order)
    )
    assert (np.diff([offer.score[row] for row in order]) <= 0).all()


def test_invalid_trees_are_refused_in_one_line():
    target, drafter = toy_pair("model")
    cases = [
        (lambda: Tree((2, 1), (0, 0)), "expected an earlier row"),
        (lambda: DynamicTree(0, 3, 5), "width is 0"),
        (lambda: DynamicTree(33, 3, 5), "width is 33"),
        (lambda: DynamicTree(3, 0, 5), "levels is 0"),
        (lambda: BeamSearch(8, 8), "64 nodes, over budget"),
        (
            lambda: make_plan(TreePolicy("t", "static", tree=chain_tree(7)), 6, 0, toy_cost()),
            "too deep",
        ),
        (lambda: make_plan(policies.parse("dynamic_tree:5"), 6, 0, toy_cost()), "only replayed"),
        (
            lambda: decode(
                target, drafter, StaticTree(tree_of_widths((VOCAB + 1,))), Rule(), [5, 6], 4
            ),
            "too wide for a vocabulary",
        ),
    ]
    for call, hint in cases:
        with pytest.raises(ValueError, match=hint) as refused:
            call()
        assert "\n" not in str(refused.value)
