"""Tree policies: names, refusals, and the orders of dynamic trees in recordings."""

from dataclasses import replace
from functools import partial

import naive_tree
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import costs, joined
from tree_strategies import NODES, example, ordered, ranked, recordings, tree_seconds

from simspec import CostModel, PolicyError, TraceError, load_trace, replay, sweep, synthetic
from simspec.policies import make, parse
from simspec.policies.trees import RULES, cape, dynamic_tree, optimal_tree, static, tree_oracle
from simspec.published import FOLDER
from simspec.replay.sweep import supported_policies
from simspec.tree.replay import outcomes, prepare_tree, replay_tree
from simspec.tree.search import rank_acceptance, sequoia_trees
from simspec.tree.tree import (
    MAX_NODES,
    TreeError,
    TreePolicy,
    chain_tree,
    load_tree,
    published_tree,
)

FITTED = ("optimal_tree:6,medusa", "optimal_tree:6", "optimal_tree:6,full", "optimal_tree")
SHAPES = ("static:2x1", "static:3", "cape:section", "cape:appendix,k=2", "cape:7", "dynamic_tree:8")


def test_names_parse_back_to_their_policy():
    trace = example()
    for text in SHAPES:
        policy = parse(text)
        assert policy.name == text
        assert make(policy.name, trace, NODES) == policy
        assert make(policy, trace, NODES) is policy
    for text in (*FITTED, "tree_oracle"):
        assert make(text, trace, NODES).name == text
    for text, words in (
        ("static:absent.json", "absent.json: not a draft tree"), ("static:8x8x8", "over budget"),
        ("static:33", "too wide"), ("static:0", "at least 1"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            parse(text)


def test_trees_fitted_on_some_prompts_use_only_those():
    trace = example()
    for rule in RULES:
        made = partial(optimal_tree, 8, rule)
        assert made(fit=[0, 2, 4])(trace, NODES) == made()(trace.select([0, 2, 4]), NODES)
        assert len(made()(trace, NODES).tree) == 8


@pytest.mark.parametrize(
    "name, nodes_by_depth", [("eagle-25", [4, 8, 8, 3, 2]), ("medusa-63", [10, 28, 23, 2])]
)
def test_published_trees_are_found_by_name_and_as_files(name, nodes_by_depth):
    tree = parse(f"static:{name}").tree
    assert [tree.depth.count(level + 1) for level in range(tree.levels)] == nodes_by_depth
    assert f"{len(tree)}" == name.split("-")[1]
    assert parse(f"static:{name}").name == f"static:{name}"
    assert load_tree(FOLDER / f"tree-{name}.json") == tree
    assert (0,) * tree.levels in tree.paths
    with pytest.raises(TreeError, match="'eagle-26' is not published, expected one of eagle-25"):
        published_tree("eagle-26")


def test_missing_columns_are_named():
    trace, plain = example(), synthetic.iid(0.5, 3, 9, 4)
    silent = replace(
        plain, rank=np.where(np.arange(4) < plain.run[:, None], 0, 255).astype(np.uint8)
    )
    drawn = replace(trace.meta, rule="rejection", temperature=1.0, prefix_only=False)
    none = np.zeros(trace.rows, np.uint8)
    rejection = replace(
        trace, ratio=np.ones((trace.rows, 4), np.float32), rank=None, run=none, meta=drawn
    )
    bare = replace(trace, feature=None, meta=replace(trace.meta, features=()))
    for given_trace, text, error, words in (
        (plain, "static:2x1", TraceError, "records no rank"),
        (plain, "optimal_tree:4", TraceError, "records no rank"),
        (trace, "dynamic_tree:4", TraceError, "records no order"),
        (bare, "cape:section", TraceError, "'confidence' is not in this trace"),
        (silent, "cape:2", TraceError, "ranks only the one token"),
        (rejection, "static:2", TraceError, "rejection rule"),
        (trace, "static:1x1x1x1x1", TreeError, "5 levels are too deep, here drafts reach 4"),
        (trace, "cape:2,k=5", PolicyError, "drafts chains of 5, here drafts reach 4"),
    ):
        with pytest.raises(error, match=words):
            replay_tree(given_trace, make(text, given_trace, NODES))
        with pytest.raises(error, match=words):
            sweep(given_trace, [text], 0.1, progress=False)
    assert len(replay_tree(bare, cape(2))) > 0
    with pytest.raises(PolicyError, match="planned for 360 rows, the trace has 27"):
        outcomes(silent, tree_oracle(trace, NODES))
    kept, notes = supported_policies(
        {"a": trace, "b": plain}, ["fixed:1", "static:2x1"], {"a": NODES, "b": NODES}
    )
    assert kept == {"a": ["fixed:1", "static:2x1"], "b": ["fixed:1"]}
    assert "records no rank" in notes[0]


def test_unpriced_trees_are_refused():
    trace, short = example(), CostModel.from_ratio(0.1, 4)
    fitted = ("optimal_tree:9,medusa", "optimal_tree:9", "optimal_tree:9,full")
    for text in ("static:4x2", *fitted, "cape:7"):
        with pytest.raises(ValueError, match="prices 4 .* measure with more rows"):
            sweep(trace, [text], short, progress=False)
    with pytest.raises(ValueError, match="prices 2 levels"):
        prepare_tree(trace, static("1x1x1"), CostModel.from_ratio(0.1, 2, MAX_NODES))
    with pytest.raises(ValueError, match="prices 4 submitted tokens"):
        short.seconds_tree(replay_tree(trace, static("4x2")), 0, 0)
    with pytest.raises(PolicyError, match="replay_tree"):
        replay(trace, static("2"))
    with pytest.raises(PolicyError, match="kind is 'x'"):
        TreePolicy("a", "x")
    with pytest.raises(PolicyError, match="expected a Tree"):
        TreePolicy("a", "static", tree=(0,))
    assert tree_oracle(trace, short).plan[1].nodes.max() <= 4


def test_order_is_saved_selected_and_validated(tmp_path):
    plain = example(prompts=3)
    trace = ordered(plain, 2, 3)
    trace.save(tmp_path / "t.parquet")
    again = load_trace(tmp_path / "t.parquet")
    assert again == trace
    assert again.meta.tree == (2, 3)
    assert "tree" not in plain.meta.to_json()
    assert replay_tree(trace.select([1]), dynamic_tree(4)) == replay_tree(
        trace, dynamic_tree(4)
    ).select([1], trace)
    order = trace.order.copy()
    order[0] = [3, 2, 255, 255]
    deep = trace.order.copy()
    deep[0, 3] = 200
    back = trace.order.copy()
    back[0] = [255, 3, 255, 255]
    for change, words in (
        (lambda: replace(trace, order=order), "order, row 0"),
        (lambda: replace(trace, order=back), "order, row 0"),
        (lambda: replace(trace, order=deep), "after the 3 levels"),
        (lambda: replace(trace, order=None), "order is missing"),
        (lambda: replace(plain, order=trace.order), "order is there"),
        (lambda: replace(trace, meta=replace(trace.meta, tree=(1, 3))), "under the width 1"),
        (lambda: replace(trace.meta, tree=(0, 3)), "meta.tree is"),
        (lambda: replace(trace.meta, tree=(2,)), "meta.tree is"),
    ):
        with pytest.raises(TraceError, match=words):
            change()


COST = CostModel([0, 0.01, 0.02], 1 + 0.01 * np.arange(9), [0.0], 0.0, 1.0)


def hard_then_easy():
    """Four first tokens of ten are right; the second one is where the first one is not.

    Behind a right first token the target's second one is the drafter's second choice.
    """
    trace = synthetic.iid(0.0, 1, 400, 2)
    right = np.arange(400) % 10 < 4
    first, second = np.where(right, 0, 200), np.where(right, 1, 0)
    rank = np.stack((first, second), 1).astype(np.uint8)
    return replace(trace, run=right.astype(np.uint8), rank=rank)


def test_medusa_counts_every_row_and_sequoia_the_reached_ones():
    """Behind a right first token the second is of rank 1; over all rows it is of rank 0."""
    trace = hard_then_easy()
    every = rank_acceptance(trace, reached=False)[1]
    reached = rank_acceptance(trace)[1]
    assert every[0] == pytest.approx(0.6, abs=0.01)
    assert reached[0] == 0
    assert optimal_tree(2, "medusa").resolve(trace, COST).tree.paths == ((0,), (0, 0))
    assert optimal_tree(2).resolve(trace, COST).tree.paths == ((0,), (0, 1))


@pytest.mark.parametrize("rule", RULES)
def test_trees_are_fitted_on_the_sequences_that_are_named(rule):
    """Sequence 0 accepts chains, sequence 1 second choices."""
    chains = ranked(synthetic.iid(1.0, 1, 200, 2), 1)
    rank = chains.rank.copy()
    second = replace(chains, run=np.zeros_like(chains.run), rank=np.maximum(rank, 1))
    both = joined(chains, second)
    trees = [optimal_tree(2, rule, [s]).resolve(both, COST).tree.paths for s in (0, 1)]
    assert trees[0] == ((0,), (0, 0))
    assert trees[1] != trees[0]


@settings(max_examples=25)
@given(
    recordings(optional=False, max_K=3, max_rows=6, max_sequences=2),
    costs(nodes=MAX_NODES),
    st.booleans(),
)
def test_tree_oracle_has_the_least_time_over_its_trees(trace, cost, dynamic):
    trees = {chain_tree(k) for k in range(1, trace.K + 1)}
    trees |= {
        tree.cut(d)
        for tree in sequoia_trees(rank_acceptance(trace), MAX_NODES)
        for d in range(1, trace.K + 1)
    }
    policies = [TreePolicy("one", "static", tree=tree) for tree in trees if len(tree)]
    if dynamic:
        trace = ordered(trace, 2, min(3, trace.K))
        policies = [dynamic_tree(n) for n in range(1, MAX_NODES + 1)] + policies
    figures = {
        tuple(tuple(columns.tolist()) for columns in outcomes(trace, policy)) for policy in policies
    }

    def options(s, row):
        return {(0, 0, 0, 0, 0), *(tuple(column[row] for column in columns) for columns in figures)}

    best = tree_oracle(trace, cost)
    rounds = replay_tree(trace, best, cost)
    seconds = tree_seconds(rounds, trace, best, cost)
    for s in range(trace.sequences):
        total = seconds[rounds.offset[s] : rounds.offset[s + 1]].sum()
        assert total == pytest.approx(naive_tree.least(trace, cost, s, options), rel=1e-12)
    for policy in policies[:9]:
        assert (
            seconds.sum()
            <= tree_seconds(replay_tree(trace, policy), trace, policy, cost).sum() + 1e-9
        )
