"""Tree policies: names, refusals, and the orders of dynamic trees in recordings."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from tree_strategies import NODES, example, ordered

from simspec import CostModel, PolicyError, TraceError, load_trace, replay, sweep, synthetic
from simspec.policies import make, parse
from simspec.policies.trees import RULES, cape, dynamic_tree, optimal_tree, static, tree_oracle
from simspec.published import FOLDER
from simspec.replay.sweep import supported_policies
from simspec.tree.replay import outcomes, prepare_tree, replay_tree, tree_seconds
from simspec.tree.tree import MAX_NODES, TreeError, TreePolicy, load_tree, published_tree

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
    with pytest.raises(ValueError, match="not those of"):
        tree_seconds(replay_tree(trace, static("2")), trace, static("3"), NODES)
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
