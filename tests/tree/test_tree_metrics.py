"""Metrics, sweeps, scores and costs of tree policies."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from tree_strategies import NODES, example, ordered, prices, recordings, shapes

from simspec import CostModel, summary, sweep
from simspec.policies.trees import static
from simspec.replay.sweep import sweep_rows
from simspec.tree.replay import replay_tree, tree_seconds
from simspec.tree.tree import TreePolicy


@settings(max_examples=60)
@given(recordings(optional=False), shapes(), prices())
def test_tree_metrics_equal_counts(trace, tree, cost):
    policy = TreePolicy("tree", "static", tree=tree.cut(trace.K))
    rounds = replay_tree(trace, policy)
    metrics = summary(
        rounds, trace, cost, K=policy.longest(trace.K),
        seconds=tree_seconds(rounds, trace, policy, cost)
    )  # fmt: skip
    assert metrics.drafted == rounds.drafted.sum()
    assert metrics.cut_share == 0
    assert (
        metrics.v_d == pytest.approx(rounds.accepted.sum() / rounds.drafted.sum())
        if metrics.drafted
        else np.isnan(metrics.v_d)
    )
    for j, rate in enumerate(metrics.accept_by_depth, 1):
        tried = [
            a for levels, a in zip(rounds.computed, rounds.accepted) if levels >= j and a >= j - 1
        ]
        assert rate == pytest.approx(np.mean([a >= j for a in tried])) if tried else np.isnan(rate)


def test_sweep_groups_trees_by_task_and_prompt():
    trace = ordered(example(prompts=4), 2, 3)
    texts = [
        "fixed:2", "static:3x2", "cape:section,k=3", "cape:appendix", "cape:2,k=2",
        "optimal_tree:6,full", "optimal_tree:6", "optimal_tree", "dynamic_tree:5", "tree_oracle",
    ]  # fmt: skip
    for by in ("trace", "task", "prompt"):
        table = sweep(trace, texts, 0.1, replicates=2, by=by, progress=False)
        assert table.policy.unique().tolist() == texts
        assert not table.random.any()
    per = table[table.policy == "static:3x2"]
    rounds = replay_tree(trace, static("3x2"))
    assert per[per.replicate == 0].drafted.sum() == rounds.drafted.sum()
    assert per[per.replicate == 0].tokens.sum() == trace.rows
    one = sweep(trace, texts, 0.1, 1, progress=False).set_index("policy")
    assert (
        one.speedup["tree_oracle"]
        >= one.speedup.drop("tree_oracle").filter(regex="dynamic|optimal|medusa").max()
    )
    assert one.v_d["static:3x2"] == pytest.approx(rounds.accepted.sum() / rounds.drafted.sum())
    assert (
        list(sweep_rows(trace, [static("2")], NODES, 1))[0]["computed"]
        == replay_tree(trace, static("2")).computed.sum()
    )


def test_only_cape_pays_for_confidence():
    trace = example()
    dear = replace(NODES, feature=0.5)
    speed = [
        sweep(trace, ["cape:1,k=2", "cape:section,k=2"], cost, 1, progress=False).speedup.tolist()
        for cost in (NODES, dear)
    ]
    assert speed[0][0] == speed[1][0]
    assert speed[0][1] > speed[1][1]


def test_tree_costs_round_trip(tmp_path):
    cost = CostModel([0, 1], [1, 2, 3, 5], [0], 0, 1, node=0.5)
    cost.to_json(tmp_path / "c.json")
    assert CostModel.from_json(tmp_path / "c.json") == cost
    assert cost.nodes == 3
    assert cost.K == 1
    assert "node" not in NODES.to_dict()
    assert cost.to_dict()["node"] == 0.5
    assert cost.widen(3) is cost
    assert cost.widen(5).verify.tolist() == pytest.approx([1, 2, 3, 5, 6.5, 8])
    assert cost.truncate(1).verify.tolist() == [1, 2]
    assert cost.extend(5).verify.tolist() == [1, 2, 3, 5, 7, 9]
    with pytest.raises(ValueError, match="too few to continue"):
        CostModel.from_ratio(0.1, 1).widen(4)
    with pytest.raises(ValueError, match="node is -1"):
        replace(cost, node=-1)
