"""Replays of tree policies against their slow twin; their metrics, sweeps, scores and costs."""

from dataclasses import replace

import naive_tree
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import costs
from tree_strategies import NODES, example, ordered, recordings, scores, shapes, tree_seconds

from simspec import CostModel, Rounds, committed, replay, summary, sweep, synthetic
from simspec.policies import fixed
from simspec.policies.trees import cape, dynamic_tree, static
from simspec.replay.sweep import sweep_rows
from simspec.trace.quantization import LOG_ODDS
from simspec.tree.replay import Outcome, outcomes, replay_tree, sibling_counts
from simspec.tree.tree import MAX_NODES, TreePolicy, chain_tree, from_paths, tree_of_widths


def equal(trace, policy, cost, figures_at):
    """Replay and prices equal the twin's; figures_at(s, row, backlog): its figures of a round."""
    slow = naive_tree.replay(trace, figures_at)
    fast = replay_tree(trace, policy, cost)
    assert fast == Rounds.join(
        [
            [(row, levels, nodes, accepted) for row, levels, nodes, _, accepted, _ in rounds]
            for rounds in slow
        ]
    )
    expected = [second for rounds in slow for second in naive_tree.seconds(rounds, cost)]
    assert tree_seconds(fast, trace, policy, cost).tolist() == expected
    return fast


@settings(max_examples=150)
@given(recordings(optional=False), shapes(), costs(nodes=MAX_NODES))
def test_static_tree_equals_its_set_of_paths(trace, tree, cost):
    tree = tree.cut(trace.K)
    policy = TreePolicy("tree", "static", tree=tree)
    equal(
        trace,
        policy,
        cost,
        lambda s, row, backlog: naive_tree.static(trace, s, row, tree.parent, tree.rank),
    )


@settings(max_examples=150)
@given(
    recordings(optional=False),
    st.sampled_from(["section", "appendix", 0, 1, 3, 31]),
    st.integers(0, 6),
    costs(nodes=MAX_NODES),
)
def test_cape_equals_its_chain_and_sets(trace, table, k, cost):
    k = min(k, trace.K)
    column = [name for name, _ in trace.meta.features].index("confidence")

    def width(row, slot):
        return (
            table
            if isinstance(table, int)
            else naive_tree.cape_width(LOG_ODDS[trace.feature[row, slot, column]], table)
        )

    policy = cape(table, k)
    equal(
        trace,
        policy,
        cost,
        lambda s, row, backlog: naive_tree.cape(trace, s, row, k, lambda slot: width(row, slot)),
    )


@settings(max_examples=80)
@given(
    recordings(optional=False, max_K=4, max_rows=6, max_sequences=2), st.integers(1, 3),
    st.integers(1, 4), st.integers(0, 99), costs(nodes=MAX_NODES)
)  # fmt: skip
def test_one_recorded_order_serves_every_budget(trace, width, depth, seed, cost):
    trace = ordered(trace, width, min(depth, trace.K), seed)
    for nodes in (0, 1, 2, 5, 9, MAX_NODES):
        equal(
            trace, dynamic_tree(nodes), cost,
            lambda s, row, backlog, nodes=nodes: naive_tree.dynamic(
                trace, s, row, scores(seed, s, row), *trace.meta.tree, nodes
            ),
        )  # fmt: skip


@settings(max_examples=60)
@given(recordings(optional=False), st.integers(0, 6))
def test_tree_without_branches_equals_the_fixed_chain(trace, k):
    """Where no end token cuts it: rows, levels, nodes and accepted tokens; sets of no width are
    the chain whatever cuts it.
    """
    k = min(k, trace.K)
    assert replay_tree(trace, cape(0, k)) == replay(trace, fixed(k))
    whole = replace(trace, depth=np.full(trace.rows, trace.K, np.uint8), run=_runs(trace))
    assert replay_tree(whole, TreePolicy("chain", "static", tree=chain_tree(k))) == replay(
        whole, fixed(k)
    )


def _runs(trace):
    left = np.repeat(trace.offset[1:], np.diff(trace.offset)) - np.arange(trace.rows)
    ok = (trace.rank == 0) & (np.arange(trace.K) < left[:, None])
    return np.logical_and.accumulate(ok, axis=1).sum(axis=1).astype(np.uint8)


@settings(max_examples=60)
@given(recordings(optional=False), st.integers(0, 6), costs(nodes=MAX_NODES))
def test_sets_of_width_zero_cost_the_same_as_the_chain(trace, k, cost):
    rounds = replay_tree(trace, cape(0, min(k, trace.K)))
    assert (
        tree_seconds(rounds, trace, cape(0, min(k, trace.K)), cost).tolist()
        == cost.seconds(rounds).tolist()
    )


@settings(max_examples=60)
@given(recordings(optional=False), shapes(), shapes())
def test_more_nodes_never_accept_less(trace, tree, other):
    paths = {*tree.paths, *other.paths}
    if len(paths) > MAX_NODES:
        return
    both = TreePolicy("both", "static", tree=from_paths(paths).cut(trace.K))
    one = TreePolicy("one", "static", tree=tree.cut(trace.K))
    assert (outcomes(trace, both).accepted >= outcomes(trace, one).accepted).all()
    rounds = replay_tree(trace, both)
    assert committed(rounds, trace).sum() == trace.rows
    assert (committed(rounds, trace) <= rounds.accepted + 1).all()


def test_cape_widths_at_the_bin_edges():
    p = np.array([1e-9, 0.29, 0.3, np.nextafter(0.3, 1), 0.6, 0.61, 0.8, 0.81, 1.0])
    assert sibling_counts(p, "section").tolist() == [7, 7, 7, 5, 5, 3, 3, 1, 1]
    assert sibling_counts(p, "appendix").tolist() == [7, 7, 5, 5, 3, 3, 1, 1, 1]
    assert [naive_tree.cape_width(x, "appendix") for x in p] == sibling_counts(
        p, "appendix"
    ).tolist()
    assert [naive_tree.cape_width(x, "section") for x in p] == sibling_counts(p, "section").tolist()
    assert sibling_counts(np.zeros(3), 4).tolist() == [4, 4, 4]


def test_cape_fills_its_32_from_the_first_slot():
    """Six tokens of a low confidence want 7 siblings each: 26 are left, which end inside the
    fourth slot's set.
    """
    one = synthetic.iid(0.0, 1, 40, 8)
    feature = np.zeros((40, 8, 1), np.uint8)
    rank = np.full((40, 8), 9, np.uint8)
    trace = replace(
        one,
        feature=feature,
        rank=rank,
        meta=replace(one.meta, features=(("confidence", "confidence"),)),
    )
    figures = outcomes(trace, cape("section", 6))
    assert figures.levels[0] == 6
    assert figures.nodes[0] == 32
    assert figures.levels[-1] == 0 == figures.nodes[-1]
    assert figures.accepted.max() == 0

    def with_miss_at(slot, r):
        """The chain is right before that slot, where the text's token has rank r."""
        rank = np.full((40, 8), 9, np.uint8)
        rank[:, :slot], rank[:, slot] = 0, r
        left = np.arange(40, 0, -1)
        return replace(trace, rank=rank, run=np.minimum(slot, left).astype(np.uint8))

    assert [
        int(outcomes(with_miss_at(3, r), cape("section", 6)).accepted[0]) for r in (1, 5, 6, 7)
    ] == [4, 4, 3, 3]
    assert [
        int(outcomes(with_miss_at(2, r), cape("section", 6)).accepted[0]) for r in (1, 7, 8)
    ] == [3, 3, 2]
    assert int(outcomes(with_miss_at(4, 1), cape("section", 6)).accepted[0]) == 4
    assert outcomes(with_miss_at(2, 1), cape("section", 6)).backlog[0] == 1
    assert outcomes(with_miss_at(2, 8), cape("section", 6)).backlog[0] == 0


def test_plans_follow_the_backlog_that_a_tree_leaves():
    """Choice 0 leaves a row, choice 1 none; the plan takes the choice of the backlog's number."""
    by_choice = {"levels": (1, 1), "nodes": (1, 2), "rows": (1, 1), "accepted": (1, 1)}
    columns = (*by_choice.values(), (1, 0))
    outcome = Outcome(*(np.tile(np.array(two)[:, None], (1, 8)) for two in columns))
    plan = np.tile([0, 1], (8, 1)), outcome
    rounds = replay_tree(synthetic.iid(1.0, 1, 8, 2), TreePolicy("both", "planned", plan=plan))
    assert rounds.row.tolist() == [0, 2, 4, 6]
    assert rounds.drafted.tolist() == [1, 2, 1, 2]


def test_rounds_by_hand():
    """Ranks of one text of 6 tokens: row 0 has (1, 0), row 3 (0, 2)."""
    one = synthetic.iid(0.0, 1, 6, 2)
    rank = np.array([[1, 0], [9, 9], [9, 9], [0, 2], [9, 9], [9, 9]], np.uint8)
    trace = replace(one, rank=rank, run=np.array([0, 0, 0, 1, 0, 0], np.uint8))
    rounds = replay_tree(trace, TreePolicy("tree", "static", tree=tree_of_widths((2, 1))))
    assert rounds.row.tolist() == [0, 3, 5]
    assert rounds.accepted.tolist() == [2, 1, 0]
    assert rounds.computed.tolist() == [2, 2, 0]
    assert rounds.drafted.tolist() == [4, 4, 0]
    cost = CostModel([0, 1, 3], [10, 11, 12, 13, 14], [0, 0.5, 0.75], 100, 9, node=0.25)
    policy = TreePolicy("tree", "static", tree=tree_of_widths((2, 1)))
    assert tree_seconds(rounds, trace, policy, cost).tolist() == [117.25, 118.0, 110.0]
    assert summary(
        rounds, trace, cost, seconds=tree_seconds(rounds, trace, policy, cost), K=0
    ).accept_by_depth == (1.0, 0.5)


@settings(max_examples=60)
@given(recordings(optional=False), shapes(), costs(nodes=MAX_NODES))
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
