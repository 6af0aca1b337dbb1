"""Trees through a drafter: each node's logits are those behind its own path, and nothing of a
tree stays behind it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_catch_up import _begin, _round, _same_draft, _same_rows
from toy_lm import DRAFTERS, END, RULES, toy_pair, toy_prompts

from real.decode.loop import decode
from real.decode.plans import BeamSearch, Cape, DynamicTree, StaticTree
from real.draft import Draft, check_grows
from real.model.passes import ancestor_mask, branches, depths
from real.model.target import Target
from simspec.tree.tree import tree_of_widths

GROWERS = tuple(name for name in DRAFTERS if name != "prompt_lookup")
DEEPEST = 4


@st.composite
def trees(draw, most=8):
    """(token, parent) of a tree behind row 0, at most DEEPEST - 1 deep: its last rows too have
    logits of a head that exists."""
    parent = [-1]
    for _ in range(draw(st.integers(1, most))):
        fit = [row for row, depth in enumerate(depths(parent)) if depth < DEEPEST - 1]
        parent.append(draw(st.sampled_from(fit)))
    return [
        0,
        *draw(st.lists(st.integers(4, 20), min_size=len(parent) - 1, max_size=len(parent) - 1)),
    ], parent


def grown(drafter, token, parent, together=True):
    """Logits `[n, vocab]` of a tree's rows, a level a call or a row a call."""
    depth = depths(parent)
    calls = [
        [row for row in range(len(token)) if depth[row] == level] for level in range(max(depth) + 1)
    ]
    calls = calls if together else [[row] for row in range(len(token))]
    number, rows = {-1: -1}, {}
    for call in calls:
        logits = drafter.grow([token[row] for row in call], [number[parent[row]] for row in call])
        for row, logit in zip(call, logits):
            number[row], rows[row] = len(number) - 1, logit
    return torch.stack([rows[row] for row in range(len(token))])


def path_to(row, parent):
    path = []
    while row:
        path.insert(0, row)
        row = parent[row]
    return path


def behind(name, text, tokens):
    """The drafter's logits behind `text` and these tokens, as a chain of fresh models."""
    target, drafter = toy_pair(name)
    _begin(drafter, target, text, lambda logits, slot, *_: [*tokens, 0][slot])
    for _ in tokens:
        drafter.next()
    return drafter.next().logits


@pytest.mark.parametrize("name", GROWERS)
@settings(deadline=None, max_examples=6)
@given(st.integers(0, 99), trees(), st.booleans(), st.integers(0, 3))
def test_node_logits_equal_their_path_as_a_chain(name, seed, tree, together, rounds):
    target, drafter = toy_pair(name)
    text = [5, *toy_prompts(1, seed)[0]]
    _begin(drafter, target, text)
    for i in range(rounds):
        text += _round(target, drafter, text, i, i, 1, 4 + i)
    token, parent = tree
    token[0] = text[-1]
    logits = grown(drafter, token, parent, together)
    assert (drafter.resume() is None) == (name != "early_exit")
    for row in range(len(token)):
        wanted = behind(name, text, [token[i] for i in path_to(row, parent)])
        torch.testing.assert_close(logits[row], wanted, rtol=0, atol=1e-10)


def _tree_round(target, drafter, text, tree, node, miss):
    """A round that submits this tree, of which the path to `node` is accepted."""
    token, parent = [text[-1], *tree[0][1:]], tree[1]
    if drafter.grow(token[:1], [-1]) is not None:
        drafter.rollback(0)
        grown(drafter, token, parent)
    by_level = sorted(range(len(token)), key=depths(parent).__getitem__)
    output = target.verify(token, parent, drafter.resume(by_level))
    path = [0, *path_to(node % len(token), parent)]
    target.commit(path)
    drafter.rollback(Draft(token, parent, 0, 0).kept(path))
    committed = [*(token[row] for row in path[1:]), miss]
    drafter.catch_up(committed, output, path)
    return committed


TREE = st.tuples(trees(), st.integers(0, 8), st.integers(4, 20))
CHAIN = st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(4, 20))


@pytest.mark.parametrize("name", GROWERS)
@settings(deadline=None, max_examples=8)
@given(st.integers(0, 99), st.lists(TREE | CHAIN, min_size=1, max_size=5), trees())
def test_cache_after_tree_and_chain_rounds_equals_a_fresh_one(name, seed, rounds, last):
    (target, drafter), (other, fresh) = toy_pair(name), toy_pair(name)
    text = list(toy_prompts(1, seed)[0])
    _begin(drafter, target, text)
    for first, second, miss in rounds:
        if isinstance(first, tuple):
            text += _tree_round(target, drafter, text, first, second, miss)
        else:
            text += _round(target, drafter, text, first, first, min(first, second), miss)
    rows = len(text) - 1
    assert target.length == rows
    _begin(fresh, other, text)
    _same_draft(drafter, fresh, 3)
    for one in (drafter, fresh):
        one.rollback(0)
    token, parent = [text[-1], *last[0][1:]], last[1]
    torch.testing.assert_close(
        grown(drafter, token, parent), grown(fresh, token, parent), rtol=0, atol=1e-12
    )
    _same_rows(target.cache, other.cache, rows)
    if hasattr(drafter, "cache"):
        _same_rows(drafter.cache, fresh.cache, rows)


@pytest.mark.parametrize("name", GROWERS)
def test_control_missing_tree_rollback_is_detected(name):
    (target, drafter), (other, fresh) = toy_pair(name), toy_pair(name)
    drafter.rollback = lambda accepted: None
    text = [5, 9, 11, 5, 9, 12]
    _begin(drafter, target, text)
    with pytest.raises((AssertionError, RuntimeError, IndexError)):
        token, parent = [text[-1], 7, 8, 9], [-1, 0, 0, 1]
        before = grown(drafter, token, parent)
        output = target.verify(token, parent)
        target.commit([0, 2])
        drafter.rollback(0)
        drafter.catch_up([8, 4], output, [0, 2])
        _begin(fresh, other, [*text, 8, 4])
        assert len(before) == 4
        kept, wanted = (grown(one, [4, 6], [-1, 0]) for one in (drafter, fresh))
        torch.testing.assert_close(kept, wanted, rtol=0, atol=1e-12)


@settings(deadline=None, max_examples=60)
@given(trees(), st.integers(0, 5), st.integers(1, 8))
def test_last_rows_alone_equal_the_whole_tree(tree, base, rows):
    _, parent = tree
    rows = min(rows, len(parent))
    position, sees = branches(base, parent, rows)
    assert position.tolist() == [base + depth for depth in depths(parent)[-rows:]]
    assert sees.tolist() == ancestor_mask(base, parent)[-rows:].tolist()


@pytest.mark.parametrize("name", GROWERS)
def test_tree_drafting_runs_no_hidden_target_pass(name, monkeypatch):
    passes, counted = [], Target._layers

    def layers(self, x, span, first, last, *options):
        passes.extend([span.rows] * (last == len(self.decoder.layers)))
        return counted(self, x, span, first, last, *options)

    monkeypatch.setattr(Target, "_layers", layers)
    target, drafter = toy_pair(name)
    text = decode(target, drafter, DynamicTree(1, 1, 0), RULES["greedy"], [5, 6, 7], 12, END).token
    for plan in (
        StaticTree(tree_of_widths((3, 2, 1))),
        DynamicTree(2, 3, 6),
        BeamSearch(2, 3),
        Cape(3, 4),
    ):
        passes.clear()
        result = decode(target, drafter, plan, RULES["greedy"], [5, 6, 7], 12, END)
        assert result.token.tolist() == text.tolist()
        assert len(passes) == 1 + len(result.position)  # the prompt, and one a round
        assert passes[1:] == (result.drafted + 1).tolist()


def test_unsupported_trees_are_refused_in_one_line():
    target, lookup = toy_pair("prompt_lookup")
    for plan in (StaticTree(tree_of_widths((2, 1))), DynamicTree(2, 2, 3), BeamSearch(2, 2)):
        with pytest.raises(
            ValueError, match="'prompt_lookup' drafts chains, it grows no trees"
        ) as refused:
            decode(target, lookup, plan, RULES["greedy"], [5, 6], 4)
        assert "\n" not in str(refused.value)
    with pytest.raises(ValueError, match="has no logits"):
        decode(target, lookup, Cape(1, 2), RULES["greedy"], [5, 6], 4)
    for name in ("medusa", "hydra"):
        with pytest.raises(ValueError, match="5 levels is too deep for drafter .* drafts 4 tokens"):
            check_grows(toy_pair(name)[1], 5)
    assert check_grows(toy_pair("eagle")[1], 5)
