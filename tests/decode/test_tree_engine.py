"""Tree decoding makes exactly the rounds of its replay, in float64 without exception."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from toy_lm import RULES, run_all, toy_cost
from tree_runs import PAIRS, SLOW, examined, recording
from tree_strategies import shapes

from real.rerun import compare, prompts_of, rounds_of
from simspec import policies, replay
from simspec.tree.replay import replay_tree
from simspec.tree.tree import MAX_NODES, TreePolicy, chain_tree, tree_of_widths


@pytest.mark.parametrize("drafter, rule", PAIRS)
@settings(deadline=None, max_examples=20 if SLOW else 5)
@given(shapes(most=14, widest=4), st.integers(0, 3))
def test_static_tree_runs_equal_their_replays(drafter, rule, tree, which):
    trace, target, model = recording(drafter, rule)
    assume(tree.levels <= 4)  # the heads there are
    examined(trace.select([which]), target, model, TreePolicy("t", "static", tree=tree))


@pytest.mark.parametrize("drafter, rule", PAIRS)
def test_cape_and_set_runs_equal_their_replays(drafter, rule):
    trace, target, model = recording(drafter, rule)
    saved = 0
    for i, text in enumerate(
        [
            "cape:section", "cape:appendix", "cape:section,k=3", "cape:0", "cape:2", "cape:7,k=5",
            "cape:20,k=4",
        ]
    ):  # fmt: skip
        rounds, _ = examined(
            trace.select([i % 4, (i + 1) % 4]), target, model, policies.parse(text)
        )
        assert rounds.drafted.max() <= 32
        saved += (rounds.accepted > 0).sum()
    assert saved > 20


@pytest.mark.parametrize("drafter, rule", PAIRS)
def test_dynamic_tree_runs_equal_their_replays(drafter, rule):
    trace, target, model = recording(drafter, rule)
    assert (trace.order[:, 0] < 255).any()
    assert (trace.order == 255).any()
    budgets = [
        *(range(MAX_NODES + 1) if SLOW else range(0, 31, 4)), 1, 3, 29, 30, 31, MAX_NODES,
    ]  # 3 + 3 * 9 = 30 are offered  # fmt: skip
    for i, nodes in enumerate(budgets):
        part = trace if SLOW else trace.select([i % 4])
        rounds, _ = examined(part, target, model, policies.parse(f"dynamic_tree:{nodes}"))
        assert rounds.drafted.max() <= min(nodes, 30)


@pytest.mark.parametrize("rule", RULES)
def test_chain_as_tree_equals_the_chain(rule):
    """Where no drafted token ends a text, a chain stops nowhere but at its length."""
    trace, target, model = recording("model", rule)
    for k in (1, 3, 5):
        tree, _ = examined(trace, target, model, TreePolicy("t", "static", tree=chain_tree(k)))
        chain = replay(trace, policies.BUILTIN["fixed"](k))
        same = rounds_of(
            trace, run_all(target, model, trace, policies.BUILTIN["fixed"](k), toy_cost())
        )
        assert same == chain
        assert tree.accepted.tolist() == chain.accepted.tolist()


def spoilt(trace, row):
    """The recording with the text's token at `row` ranked where no tree has it."""
    rank, order, run = trace.rank.copy(), trace.order.copy(), trace.run.copy()
    rank[row, 0], order[row], run[row] = 200, 255, 0
    return replace(
        trace, rank=rank, order=order, run=run, meta=replace(trace.meta, prefix_only=False)
    )


@pytest.mark.parametrize(
    "drafter, rule", [("eagle", "greedy"), ("hydra", "coupled"), ("model", "coupled")]
)
def test_control_wrong_rank_or_order_is_detected(drafter, rule):
    trace, target, model = recording(drafter, rule)
    static, dynamic = (
        TreePolicy("t", "static", tree=tree_of_widths((3, 2, 1))),
        policies.parse("dynamic_tree:10"),
    )
    for policy in (static, dynamic):
        rounds, results = examined(trace, target, model, policy)
        row = int(rounds.row[rounds.accepted > 0][0])
        wrong = spoilt(trace, row)
        comparison = compare(
            wrong, policy, replay_tree(wrong, policy), [replace(r, gap=r.gap + 1) for r in results]
        )
        assert not comparison.equal
        assert len(comparison.failures) + len(comparison.exceptions) == 1
        assert (comparison.failures or comparison.exceptions)[0].row == row


def test_small_gaps_of_the_run_excuse_differences():
    trace, target, model = recording("eagle", "greedy")
    policy = TreePolicy("t", "static", tree=tree_of_widths((3, 2, 1)))
    rounds, results = examined(trace, target, model, policy)
    thick = replace(
        trace,
        margin=np.full_like(trace.margin, 255),
        draft_margin=np.zeros_like(trace.draft_margin),
    )
    index = int(np.flatnonzero(rounds.accepted > 0)[0])
    wrong = spoilt(thick, int(rounds.row[index]))
    for gap, excused in ((9e-5, True), (2e-4, False)):
        thin = [replace(r, gap=np.full_like(r.gap, gap)) for r in results]
        comparison = compare(wrong, policy, replay_tree(wrong, policy), thin)
        assert (len(comparison.exceptions), len(comparison.failures)) == (
            (1, 0) if excused else (0, 1)
        )


def test_round_gap_is_the_smallest_on_its_path():
    """A static tree by hand: the scores after each row of the path, best children and the next."""
    trace, target, model = recording("model", "coupled")
    widths = (3, 2)
    _, results = examined(
        trace.select([1]), target, model, TreePolicy("t", "static", tree=tree_of_widths(widths))
    )
    (prompt,), result, rule = prompts_of(trace.select([1])), results[0], RULES["coupled"]
    cut = np.cumsum(np.append(0, np.diff(np.append(result.position, len(result.token)))))
    for i, start in enumerate(cut[:-1].tolist()):
        near = [np.inf]
        for depth in range(min(2, int(result.accepted[i]) + 1, 20 - start - 1)):
            text = [*prompt, *result.token[: start + depth].tolist()]
            with torch.inference_mode():
                logits = model.lm(torch.tensor([text]))[0, -1:]
            scores = (
                rule.scores(logits, int(trace.sequence[1]), [start + depth])[0]
                .sort(descending=True)
                .values[: widths[depth] + 1]
            )
            near.append(float((scores[:-1] - scores[1:]).min()))
        assert result.gap[i] == pytest.approx(min(near), abs=1e-9)
