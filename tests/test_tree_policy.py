"""Tree policies against their slow twin, which builds every tree and walks it."""

from dataclasses import replace

import naive
import naive_tree
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import traces
from test_tree import shapes

from simspec import (  # fmt: skip
    CostModel,
    PolicyError,
    Rounds,
    TraceError,
    committed,
    load_trace,
    policies,
    replay,
    summary,
    sweep,
    synthetic,
)
from simspec.device import DEVICES
from simspec.model_shape import SHAPES
from simspec.policies import TREES, fixed, make, parse
from simspec.policies.fitted_trees import full_tree, medusa_tree, optimal_tree
from simspec.policies.tree_oracle import tree_oracle
from simspec.policies.trees import cape, dynamic_tree, sets, static
from simspec.quantization import LOG_ODDS
from simspec.rank_acceptance import rank_acceptance
from simspec.reports import oracle_gap as score
from simspec.roofline import roofline_cost
from simspec.sweep import sweep_rows
from simspec.sweep_inputs import supported_policies
from simspec.tree import MAX_NODES, TreeError, from_paths
from simspec.tree_outcomes import outcomes, sibling_counts
from simspec.tree_policy import TreePolicy
from simspec.tree_replay import prepare_tree, replay_tree, tree_seconds
from simspec.tree_search import sequoia_trees
from simspec.tree_shapes import chain_tree, tree_of_widths

NODES = CostModel.from_ratio(0.1, 6, MAX_NODES)


def ranked(trace, seed=0, widest=5, **changes):
    """The trace with ranks of which many are small, as a recording of a drafter with a
    distribution has them.
    """
    rng = np.random.default_rng(seed)
    rank = np.minimum(rng.geometric(0.5, (trace.rows, trace.K)) - 1, widest)
    rank[rng.random(rank.shape) < 0.1] = 255
    rank[np.arange(trace.K) < trace.run[:, None]] = 0
    reach = np.minimum(
        trace.depth, np.repeat(trace.offset[1:], np.diff(trace.offset)) - np.arange(trace.rows)
    )
    missed = np.flatnonzero(trace.run < reach)
    rank[missed, trace.run[missed]] = np.maximum(rank[missed, trace.run[missed]], 1)
    return replace(trace, rank=rank.astype(np.uint8), **changes)


def scores(seed, s, row):
    """log q of a node at that row, from its path: an addressed draw."""
    return lambda path: (
        -np.random.default_rng([seed, s, row, len(path), *path]).exponential() - 0.3 * path[-1]
    )


def ordered(trace, width, depth, seed=0):
    """The trace with the order of dynamic trees whose confidences are `scores`."""
    order = [
        naive_tree.order_of(trace, s, t, scores(seed, s, t), width, depth)
        for s in range(trace.sequences)
        for t in range(trace.offset[s], trace.offset[s + 1])
    ]
    return replace(
        trace, order=np.array(order, np.uint8), meta=replace(trace.meta, tree=(width, depth))
    )


@st.composite
def recordings(draw, **options):
    return ranked(draw(traces(**options)), draw(st.integers(0, 2**32)))


@st.composite
def prices(draw, K=6):
    times = st.integers(0, 64).map(lambda n: n / 64)  # exact in binary
    steps = draw(st.lists(times, min_size=K, max_size=K))
    verify = draw(st.lists(times, min_size=MAX_NODES + 1, max_size=MAX_NODES + 1))
    backlog = draw(st.lists(times, min_size=0, max_size=3))
    draft = np.cumsum([0.0, *steps])
    return CostModel(
        draft,
        np.array(verify) + 0.25,
        [0.0, *backlog],
        overhead=draw(times),
        baseline=1.0,
        node=draw(times),
    )


def equal(trace, policy, cost, at):
    """Replay and prices equal the twin's; at(s, row, backlog): its figures of a round."""
    slow = naive_tree.replay(trace, at)
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
@given(recordings(optional=False), shapes(), prices())
def test_a_static_tree_is_its_set_of_paths(trace, tree, cost):
    tree = tree.cut(trace.K)
    policy = TreePolicy("tree", "static", tree=tree)
    equal(
        trace,
        policy,
        cost,
        lambda s, row, backlog: naive_tree.given(trace, s, row, tree.parent, tree.rank),
    )


@settings(max_examples=150)
@given(
    recordings(optional=False),
    st.sampled_from(["section", "appendix", 0, 1, 3, 31]),
    st.integers(0, 6),
    prices(),
)
def test_cape_is_its_chain_and_sets(trace, table, k, cost):
    k = min(k, trace.K)
    column = [name for name, _ in trace.meta.features].index("confidence")

    def width(row, slot):
        return (
            table
            if isinstance(table, int)
            else naive_tree.cape_width(LOG_ODDS[trace.feature[row, slot, column]], table)
        )

    policy = cape(table, k) if isinstance(table, str) else sets(table, k)
    equal(
        trace,
        policy,
        cost,
        lambda s, row, backlog: naive_tree.cape(trace, s, row, k, lambda slot: width(row, slot)),
    )


@settings(max_examples=80)
@given(
    recordings(optional=False, max_K=4, max_rows=6, max_sequences=2),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(0, 99),
    prices(),
)
def test_one_order_serves_every_budget(trace, width, depth, seed, cost):
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
def test_a_tree_without_branches_is_the_fixed_chain(trace, k):
    """Where no end token cuts it: rows, levels, nodes and accepted tokens; sets of no width are
    the chain whatever cuts it.
    """
    k = min(k, trace.K)
    assert replay_tree(trace, sets(0, k)) == replay(trace, fixed(k))
    whole = replace(trace, depth=np.full(trace.rows, trace.K, np.uint8), run=_runs(trace))
    assert replay_tree(whole, TreePolicy("chain", "static", tree=chain_tree(k))) == replay(
        whole, fixed(k)
    )


def _runs(trace):
    left = np.repeat(trace.offset[1:], np.diff(trace.offset)) - np.arange(trace.rows)
    ok = (trace.rank == 0) & (np.arange(trace.K) < left[:, None])
    return np.logical_and.accumulate(ok, axis=1).sum(axis=1).astype(np.uint8)


@settings(max_examples=60)
@given(recordings(optional=False), st.integers(0, 6), prices())
def test_sets_of_no_width_cost_what_the_chain_does(trace, k, cost):
    rounds = replay_tree(trace, sets(0, min(k, trace.K)))
    assert (
        tree_seconds(rounds, trace, sets(0, min(k, trace.K)), cost).tolist()
        == cost.seconds(rounds).tolist()
    )


@settings(max_examples=60)
@given(recordings(optional=False), shapes(), shapes())
def test_more_nodes_never_accept_less_at_a_row(trace, tree, other):
    paths = {*tree.paths, *other.paths}
    if len(paths) > MAX_NODES:
        return
    both = TreePolicy("both", "static", tree=from_paths(paths).cut(trace.K))
    one = TreePolicy("one", "static", tree=tree.cut(trace.K))
    assert (outcomes(trace, both).accepted >= outcomes(trace, one).accepted).all()
    rounds = replay_tree(trace, both)
    assert committed(rounds, trace).sum() == trace.rows
    assert (committed(rounds, trace) <= rounds.accepted + 1).all()


def example(K=4, prompts=12, **options):
    trace = synthetic.iid(0.6, prompts, 30, K, seed=3, confidence=True)
    return ranked(trace, 1, **options)


def test_widths_at_the_edges():
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
    found = outcomes(trace, cape("section", 6))
    assert found.levels[0] == 6
    assert found.nodes[0] == 32
    assert found.levels[-1] == 0 == found.nodes[-1]
    assert found.accepted.max() == 0

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


@settings(max_examples=25)
@given(recordings(optional=False, max_K=3, max_rows=6, max_sequences=2), prices(), st.booleans())
def test_the_tree_oracle_is_the_least_time_over_its_trees(trace, cost, dynamic):
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
        tuple(tuple(each.tolist()) for each in outcomes(trace, policy)) for policy in policies
    }

    def options(s, row):
        return {(0, 0, 0, 0, 0), *(tuple(column[row] for column in each) for each in figures)}

    best = tree_oracle(trace, cost)
    rounds = replay_tree(trace, best, cost)
    seconds = tree_seconds(rounds, trace, best, cost)
    for s in range(trace.sequences):
        own = seconds[rounds.offset[s] : rounds.offset[s + 1]].sum()
        assert own == pytest.approx(naive_tree.least(trace, cost, s, options), rel=1e-12)
    for policy in policies[:9]:
        assert (
            seconds.sum()
            <= tree_seconds(replay_tree(trace, policy), trace, policy, cost).sum() + 1e-9
        )


@settings(max_examples=60)
@given(recordings(optional=False), shapes(), prices())
def test_metrics_of_trees_are_counts(trace, tree, cost):
    policy = TreePolicy("tree", "static", tree=tree.cut(trace.K))
    rounds = replay_tree(trace, policy)
    found = summary(
        rounds,
        trace,
        cost,
        K=policy.longest(trace.K),
        seconds=tree_seconds(rounds, trace, policy, cost),
    )
    assert found.drafted == rounds.drafted.sum()
    assert found.cut_share == 0
    assert (
        found.v_d == pytest.approx(rounds.accepted.sum() / rounds.drafted.sum())
        if found.drafted
        else np.isnan(found.v_d)
    )
    for j, rate in enumerate(found.accept_by_depth, 1):
        tried = [
            a for levels, a in zip(rounds.computed, rounds.accepted) if levels >= j and a >= j - 1
        ]
        assert rate == pytest.approx(np.mean([a >= j for a in tried])) if tried else np.isnan(rate)


def test_metrics_of_chains_are_what_they_were():
    trace, cost = example(), CostModel.from_ratio(0.1, 4)
    for policy in (fixed(3), policies.parse("confidence:0.6")):
        rounds = replay(trace, policy)
        found = summary(rounds, trace, cost)
        flat = [list(zip(rounds.row, rounds.computed, rounds.drafted, rounds.accepted))]
        assert naive.metrics(flat, trace, cost)["accept_by_depth"] == pytest.approx(
            list(found.accept_by_depth), nan_ok=True
        )


def test_the_sweep_takes_trees_by_task_and_prompt():
    trace = ordered(example(prompts=4), 2, 3)
    texts = [
        "fixed:2",
        "static:3x2",
        "cape:section,k=3",
        "cape:appendix",
        "sets:2,k=2",
        "full_tree:6",
        "medusa_tree:6",
        "optimal_tree:6",
        "optimal_tree",
        "dynamic_tree:5",
        "tree_oracle",
    ]
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


def test_scores_of_trees():
    trace = example()
    (found,) = score.score({"x": trace}, ["static:2x1", "sets:2,k=2"], 0.1, resamples=100)
    assert [row["policy"] for row in found["policies"]] == ["static:2x1", "sets:2,k=2"]
    assert all(row["low"] < row["share"] < row["high"] for row in found["policies"])


def test_reading_confidence_is_paid_by_cape_alone():
    trace = example()
    dear = replace(NODES, feature=0.5)
    speed = [
        sweep(trace, ["sets:1,k=2", "cape:section,k=2"], cost, 1, progress=False).speedup.tolist()
        for cost in (NODES, dear)
    ]
    assert speed[0][0] == speed[1][0]
    assert speed[0][1] > speed[1][1]


def test_names_read_back():
    trace = example()
    for text in (
        "static:2x1",
        "static:3",
        "cape:section",
        "cape:appendix,k=2",
        "sets:0,k=3",
        "sets:7",
        "dynamic_tree:8",
    ):
        policy = parse(text)
        assert policy.name == text
        assert make(policy.name, trace, NODES) == policy
        assert make(policy, trace, NODES) is policy
    for text in ("medusa_tree:6", "optimal_tree:6", "full_tree:6", "optimal_tree", "tree_oracle"):
        assert make(text, trace, NODES).name == text
    assert parse("tree_oracle") is tree_oracle
    assert {"static", "cape", "sets", "tree_oracle"} <= set(TREES)


def test_trees_made_from_some_prompts_are_those_of_the_others_left_out():
    trace = example()
    for maker in (full_tree, medusa_tree, optimal_tree):
        assert maker(8, [0, 2, 4])(trace, NODES) == maker(8)(trace.select([0, 2, 4]), NODES)
        assert len(maker(8)(trace, NODES).tree) == 8


@pytest.mark.parametrize(
    "text, words",
    [
        ("static:4xx1", "is no shape and no file"),
        ("static:none", "is no shape and no file"),
        ("static:absent.json", "absent.json: not a draft tree"),
        ("static:8x8x8", "over budget"),
        ("static:33", "too wide"),
        ("static:0", "at least 1"),
        ("static", "missing 1 required"),
        ("dynamic_tree:64", "nodes is 64, expected an integer in 0..63"),
        ("dynamic_tree:x", "nodes is 'x'"),
        ("optimal_tree:64", "nodes is 64"),
        ("medusa_tree:-1", "nodes is -1"),
        ("full_tree:0", "nodes is 0"),
        ("cape:other", "expected section or appendix"),
        ("cape:3", "expected section or appendix"),
        ("cape:section,k=33", "k is 33, expected an integer in 0..32"),
        ("sets:32", "width is 32"),
        ("sets:2.5", "width is 2.5"),
        ("tree_oracle:3", "takes no arguments"),
        ("optimal_tre:8", "did you mean optimal_tree?"),
    ],
)
def test_texts_of_no_policy_are_refused_in_one_line(text, words):
    with pytest.raises(ValueError) as caught:
        parse(text)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_a_recording_lacks_is_said():
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
        (silent, "sets:2", TraceError, "ranks only the one token"),
        (rejection, "static:2", TraceError, "rejection rule"),
        (trace, "static:1x1x1x1x1", TreeError, "5 levels are too deep, here drafts reach 4"),
        (trace, "sets:2,k=5", PolicyError, "drafts chains of 5, here drafts reach 4"),
    ):
        with pytest.raises(error, match=words):
            replay_tree(given_trace, make(text, given_trace, NODES))
        with pytest.raises(error, match=words):
            sweep(given_trace, [text], 0.1, progress=False)
    assert len(replay_tree(bare, sets(2))) > 0
    with pytest.raises(PolicyError, match="planned for 360 rows, the trace has 27"):
        outcomes(silent, tree_oracle(trace, NODES))
    kept, notes = supported_policies(
        {"a": trace, "b": plain}, ["fixed:1", "static:2x1"], {"a": NODES, "b": NODES}
    )
    assert kept == {"a": ["fixed:1", "static:2x1"], "b": ["fixed:1"]}
    assert "records no rank" in notes[0]


def test_what_is_not_priced_is_said():
    trace, short = example(), CostModel.from_ratio(0.1, 4)
    for text in ("static:4x2", "medusa_tree:9", "optimal_tree:9", "full_tree:9", "sets:7"):
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


def test_costs_of_trees_in_files(tmp_path):
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


def test_a_roofline_prices_trees_where_asked():
    big, small, card = SHAPES["llama-3-8b"], SHAPES["llama-3.2-1b"], DEVICES["h100"]
    chains, trees = (roofline_cost(big, small, card, 4, nodes=nodes) for nodes in (0, 63))
    assert (chains.nodes, trees.nodes, trees.K) == (4, 63, 4)
    assert chains.node == 0 <= trees.node < trees.draft[1]
    assert (np.diff(trees.verify) >= 0).all()
    assert trees.verify[:5].tolist() == chains.verify.tolist()
    assert "node" not in chains.to_dict()


def test_the_order_is_saved_selected_and_checked(tmp_path):
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
        (lambda: replace(trace, order=deep), "behind the 3 levels"),
        (lambda: replace(trace, order=None), "order is missing"),
        (lambda: replace(plain, order=trace.order), "order is there"),
        (lambda: replace(trace, meta=replace(trace.meta, tree=(1, 3))), "under the width 1"),
        (lambda: replace(trace.meta, tree=(0, 3)), "meta.tree is"),
        (lambda: replace(trace.meta, tree=(2,)), "meta.tree is"),
    ):
        with pytest.raises(TraceError, match=words):
            change()
