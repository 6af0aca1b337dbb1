"""Shapes of draft trees, their files, and the best ones."""

import json
from dataclasses import replace

import naive_tree
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import traces
from tree_strategies import shapes

from simspec import CostModel, TraceError, synthetic
from simspec.output.files import write_json
from simspec.tree.search import (
    best_tree,
    draft_room,
    expected_committed,
    expected_seconds,
    fastest_tree,
    medusa_like,
    rank_acceptance,
    sequoia_trees,
)
from simspec.tree.tree import Tree, TreeError, chain_tree, from_paths, load_tree, tree_of_widths


def sequoia_tree(acceptance, nodes):
    """The last of the trees."""
    return list(sequoia_trees(acceptance, nodes))[-1]


@st.composite
def acceptances(draw, K=3, R=3):
    size = draw(st.integers(1, K)), draw(st.integers(1, R))
    return np.random.default_rng(draw(st.integers(0, 2**32))).dirichlet(
        np.ones(size[1] + 1), size[0]
    )[:, :-1]


@settings(max_examples=200)
@given(shapes(), st.integers(0, 6))
def test_paths_depth_and_cuts_equal_a_set_of_paths(tree, cap):
    paths = set(tree.paths)
    assert len(paths) == len(tree)
    assert all(path[:-1] in paths or len(path) == 1 for path in paths)
    assert tree.depth == tuple(map(len, tree.paths))
    assert tree.levels == max(map(len, paths), default=0)
    assert tree.rows == len({path[:-1] for path in paths})
    assert set(tree.cut(cap).paths) == {path for path in paths if len(path) <= cap}
    again = from_paths([list(path) for path in tree.paths])
    assert set(again.paths) == paths
    assert again.rows == tree.rows
    assert list(again.depth) == sorted(again.depth)


def test_shapes_by_hand():
    assert chain_tree(3) == Tree((0, 1, 2), (0, 0, 0))
    assert chain_tree(0) == Tree()
    assert Tree().levels == 0
    assert tree_of_widths((2, 1)).paths == ((0,), (1,), (0, 0), (1, 0))
    assert len(tree_of_widths((4, 2, 1))) == 20
    assert tree_of_widths((4, 2, 1)).rows == 1 + 4 + 8
    assert from_paths([[1], [0, 0], [0]]) == Tree((0, 0, 1), (0, 1, 0))
    assert Tree(np.array([0, 1]), [0, 5]).rank == (0, 5)


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: Tree((2, 1), (0, 0)), "row 2, expected an earlier row"),
        (lambda: Tree((1,), (0,)), "row 1, expected an earlier row"),
        (lambda: Tree((0, 9), (0, 0)), "row 9, expected an earlier row"),
        (lambda: Tree((0, 0), (1, 1)), "nodes 0 and 1 both have rank 1 under row 0"),
        (lambda: Tree((0,), (32,)), "too wide"),
        (lambda: Tree((0,) * 64, tuple(range(32)) * 2), "64 nodes are over budget"),
        (lambda: Tree((0,), ()), "1 parents and 0 ranks"),
        (lambda: Tree((-1,), (0,)), "integers >= 0"),
        (lambda: Tree((0.0,), (0,)), "integers >= 0"),
        (lambda: Tree((True,), (0,)), "integers >= 0"),
        (lambda: Tree("0", "0"), "integers >= 0"),
        (lambda: chain_tree(4).within(3), "4 levels are too deep, here drafts reach 3"),
        (lambda: from_paths([[0, 0]]), "starts from [0], which is not in the tree"),
        (lambda: from_paths([[0], [0]]), "there twice"),
        (lambda: from_paths([[]]), "is no path"),
        (lambda: from_paths([["a"]]), "is no path"),
        (lambda: from_paths([3]), "is no path"),
        (lambda: from_paths([[-1]]), "integers >= 0"),
        (lambda: tree_of_widths((8, 8)), "over budget"),
        (lambda: tree_of_widths((2, 0)), "at least 1"),
        (lambda: sequoia_tree([[0.5]], 64), "over budget"),
        (lambda: sequoia_tree([[0.5]], -1), "an integer in 0..63"),
        (lambda: sequoia_tree([[1.5]], 3), "probabilities in [0, 1]"),
        (lambda: sequoia_tree([0.5], 3), "probabilities in [0, 1]"),
        (lambda: medusa_like(np.full((2, 33), 0.01), 3), "at most 32 ranks"),
        (
            lambda: expected_seconds(chain_tree(3), [[0.5]] * 3, CostModel.from_ratio(0.1, 2)),
            "prices 2 levels and 2 nodes",
        ),
    ],
)
def test_invalid_trees_are_refused_in_one_line(make, words):
    with pytest.raises(TreeError) as caught:
        make()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 250


@given(shapes())
def test_files_round_trip(tmp_path_factory, tree):
    path = tmp_path_factory.mktemp("tree") / "t.json"
    write_json(path, {"parent": tree.parent, "rank": tree.rank})
    assert load_tree(path) == tree
    write_json(path, {"paths": [list(p) for p in tree.paths]})
    assert set(load_tree(path).paths) == set(tree.paths)


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", '{"parent": [0]}', '{"parent": [0], "rank": [0], "x": 1}', '{"paths": 3}',
        '{"paths": [[0, 0]]}', '{"paths": [], "rank": []}', '{"parent": [1], "rank": [0]}',
        '{"parent": [0], "rank": [99]}', '{"parent": [0.5], "rank": [0]}', "[" * 100_000,
        '{"parent": {}, "rank": []}', '{"parent": [1e999], "rank": [0]}',
    ],
)  # fmt: skip
def test_invalid_tree_files_are_refused_by_path(tmp_path, text):
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(ValueError, match="t.json: not a draft tree") as caught:
        load_tree(tmp_path / "t.json")
    assert "\n" not in str(caught.value)


@settings(max_examples=100)
@given(shapes(), acceptances(4, 4))
def test_expected_committed_equals_its_definition(tree, acceptance):
    padded = np.zeros((16, 8))
    padded[: acceptance.shape[0], : acceptance.shape[1]] = acceptance
    assert expected_committed(tree, acceptance) == pytest.approx(
        naive_tree.value(tree.paths, padded), rel=1e-12
    )


@settings(max_examples=40)
@given(acceptances(), st.integers(0, 5))
def test_dynamic_program_finds_the_best_tree(acceptance, nodes):
    K, R = acceptance.shape
    most = max(
        naive_tree.value(tree, acceptance)
        for n in range(nodes + 1)
        for tree in naive_tree.trees_of(n, K, R)
    )
    best = sequoia_tree(acceptance, nodes)
    assert expected_committed(best, acceptance) == pytest.approx(most, rel=1e-12)
    assert len(best) <= nodes
    assert best.levels <= K


def test_control_neither_depth_nor_width_is_always_best():
    deep, broad = np.array([[0.4, 0.35], [0.9, 0.05]]), np.array([[0.4, 0.38], [0.5, 0.05]])
    assert sequoia_tree(deep, 2) == chain_tree(2)
    assert expected_committed(tree_of_widths((2,)), deep) < expected_committed(chain_tree(2), deep)
    assert sequoia_tree(broad, 2) == tree_of_widths((2,))
    assert expected_committed(chain_tree(2), broad) < expected_committed(
        tree_of_widths((2,)), broad
    )


@settings(max_examples=60)
@given(acceptances(8, 8), st.integers(0, 40))
def test_dynamic_program_takes_the_greatest_products(acceptance, nodes):
    """Chances are at most 1, so an ancestor's product is never less: the best nodes are a tree."""
    greedy = expected_committed(medusa_like(acceptance, nodes), acceptance)
    assert expected_committed(sequoia_tree(acceptance, nodes), acceptance) == pytest.approx(
        greedy, rel=1e-12
    )
    values = [expected_committed(tree, acceptance) for tree in sequoia_trees(acceptance, nodes)]
    assert len(values) == nodes + 1
    assert values == sorted(values)


def test_nodes_of_probability_zero_are_left_out():
    assert (
        sequoia_tree([[1.0, 0.0], [0.0, 0.0]], 9)
        == medusa_like([[1.0, 0.0], [0.0, 0.0]], 9)
        == chain_tree(1)
    )


@settings(max_examples=30)
@given(acceptances(3, 3), st.integers(0, 2**32))
def test_fastest_tree_beats_every_tree(acceptance, seed):
    rng = np.random.default_rng(seed)
    K, R = acceptance.shape
    cost = CostModel(
        np.cumsum([0, *rng.random(K) * 0.3]), 1 + np.cumsum(rng.random(6) * 0.2), [0, 0.1, 0.15],
        0.1, 1.0, node=0.02
    )  # fmt: skip

    def rate(tree):
        return expected_committed(tree, acceptance) / expected_seconds(tree, acceptance, cost)

    best = best_tree(acceptance, cost)
    # Of one depth and number, catch-up and drafter rows apart, the programme's tree is the best:
    # cut those for the comparison.
    bare = replace(cost, catch_up=[0.0], node=0.0)
    everything = [from_paths(tree) for n in range(5) for tree in naive_tree.trees_of(n, K, R)]
    top = max(
        expected_committed(tree, acceptance) / expected_seconds(tree, acceptance, bare)
        for tree in everything
    )
    free = best_tree(acceptance, bare, 4)
    assert expected_committed(free, acceptance) / expected_seconds(
        free, acceptance, bare
    ) == pytest.approx(top, rel=1e-9)
    assert all(
        rate(best) >= rate(tree) * (1 - 1e-9)
        for d in range(K)
        for tree in sequoia_trees(acceptance[: d + 1], min(5, cost.nodes))
    )
    assert len(best_tree(acceptance, cost, 4, 4)) == max(
        len(tree) for d in range(K) for tree in sequoia_trees(acceptance[: d + 1], 4)
    )


def test_verification_steps_decide_the_node_count():
    acceptance = np.full((4, 4), 0.2)
    stairs = CostModel(0.01 * np.arange(5), np.repeat([1.0, 2.0, 3.0], [8, 8, 8]), [0.0], 0.0, 1.0)
    assert len(best_tree(acceptance, stairs)) == 7
    assert best_tree(np.zeros((2, 2)), stairs) == Tree() == fastest_tree([], acceptance, stairs)
    assert len(best_tree(acceptance, CostModel.from_ratio(0.0, 4, 63))) == 63


def test_seconds_by_hand():
    cost = CostModel([0, 1, 3], [10, 11, 12, 13, 14], [0, 0.5, 0.75], 100, 9, node=0.25)
    acceptance = np.array([[0.5, 0.25], [0.5, 0.0]])
    tree = tree_of_widths((2, 1))
    reached = [1, 0.75, 0.375]
    catch_up = 0.5 * (reached[1] - reached[2]) + 0.75 * reached[2]
    assert expected_seconds(tree, acceptance, cost) == pytest.approx(
        100 + 3 + 0.25 * (3 - 2) + 14 + catch_up
    )
    assert expected_seconds(Tree(), acceptance, cost) == 110


@settings(max_examples=60)
@given(traces(), st.integers(1, 32), st.booleans())
def test_rank_acceptance_counts_rows(trace, R, reached):
    if trace.rank is None:
        with pytest.raises(TraceError, match="no rank"):
            rank_acceptance(trace)
        return
    chosen = list(range(0, trace.sequences, 2))
    acceptance = rank_acceptance(trace, R, chosen, reached)
    assert acceptance.shape == (trace.K, R)
    for d in range(trace.K):
        counts, rows = np.zeros(R), 0
        for s in chosen:
            for t in range(trace.offset[s], trace.offset[s + 1]):
                cap, left = naive_tree.limits(trace, s, t)
                if d < min(cap, left) and not (
                    reached and any(trace.rank[t, j] >= R for j in range(d))
                ):
                    rows += 1
                    if trace.rank[t, d] < R:
                        counts[trace.rank[t, d]] += 1
        np.testing.assert_allclose(acceptance[d], counts / max(rows, 1))
    cap, left = draft_room(trace)
    assert [(c, n) for c, n in zip(cap.tolist(), left.tolist())] == [
        naive_tree.limits(trace, s, t)
        for s in range(trace.sequences)
        for t in range(trace.offset[s], trace.offset[s + 1])
    ]


def test_rank_acceptance_refuses_ranks_beyond_trees():
    trace = synthetic.iid(0.5, 2, 9, 3)
    ranked = replace(trace, rank=np.where(np.arange(3) < trace.run[:, None], 0, 1).astype(np.uint8))
    with pytest.raises(TreeError, match="R is 40"):
        rank_acceptance(ranked, 40)
    json.dumps(rank_acceptance(ranked, 2).tolist(), allow_nan=False)
