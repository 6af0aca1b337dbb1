"""Tree decoding makes exactly the rounds of its replay, in float64 without exception."""

import os
from dataclasses import replace
from functools import cache

import naive_tree
import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from toy_lm import END, RULES, VOCAB, run_all, toy_cost, toy_pair, toy_prompts
from tree_strategies import shapes

from real.decode.beam_search import BeamSearch, parse_beam
from real.decode.dynamic_tree import DynamicTree
from real.decode.features import drafter_features
from real.decode.loop import decode
from real.decode.plan import make_plan
from real.decode.static_tree import StaticTree
from real.decode.tree_search import search_tree, top_tokens
from real.equality import compare, rounds_of
from real.prompts import Prompt
from real.record import RecordError, RecordingFiles, Settings, record
from real.record.assembly import assemble
from real.record.metadata import describe
from real.record.recorder import record_sequence
from real.record.target_sequence import target_sequence
from real.record.tree_order import tree_order_stepwise
from real.rerun import prompts_of, rule_of
from real.sampling import Rule
from simspec import load_trace, policies, replay
from simspec.tree import MAX_NODES, Tree, TreeError
from simspec.tree_policy import TreePolicy
from simspec.tree_replay import replay_tree
from simspec.tree_shapes import chain_tree, tree_of_widths

SLOW = os.environ.get("SIMSPEC_SLOW")
DRAFTERS = ("model", "early_exit", "eagle", "medusa", "hydra")
WIDTH, LEVELS = 3, 4
PAIRS = [(drafter, rule) for drafter in DRAFTERS for rule in RULES]


@cache
def recording(drafter_name, rule, count=4, K=6, budget=20):
    """(trace, target, drafter): the toy pair's texts with ranks and the order of dynamic trees."""
    target, drafter = toy_pair(drafter_name)
    asked = Settings(K, budget, RULES[rule], END, drafter_features(drafter), (WIDTH, LEVELS))
    prompts = [Prompt(str(i), "toy", "random", p) for i, p in enumerate(toy_prompts(count, 2))]
    rows = [record_sequence(target, drafter, asked, p.token, i) for i, p in enumerate(prompts)]
    return (
        assemble(
            rows,
            prompts,
            0,
            asked,
            describe("toy", drafter, asked, prompts, "", "cpu", torch.float64),
        ),
        target,
        drafter,
    )


def ran(target, drafter, trace, plan):
    cut = zip(prompts_of(trace), trace.budget.tolist(), trace.sequence.tolist())
    return [
        decode(target, drafter, plan, rule_of(trace), p, budget, trace.meta.end_tokens, s)
        for p, budget, s in cut
    ]


def examined(trace, target, drafter, policy):
    """Runs the policy's plan and holds it against the replay; returns both."""
    results = ran(
        target, drafter, trace, make_plan(policy, trace.K, 0, toy_cost(), trace.meta.tree)
    )
    replayed = replay_tree(trace, policy)
    assert rounds_of(trace, results) == replayed, policy
    assert compare(trace, policy, replayed, results).exact
    assert np.concatenate([r.token for r in results]).tolist() == trace.token.tolist()
    return replayed, results


@pytest.mark.parametrize("drafter, rule", PAIRS)
@settings(deadline=None, max_examples=20 if SLOW else 5)
@given(shapes(most=14, widest=4), st.integers(0, 3))
def test_any_static_tree_runs_as_it_replays(drafter, rule, tree, which):
    trace, target, model = recording(drafter, rule)
    assume(tree.levels <= 4)  # the heads there are
    examined(trace.select([which]), target, model, TreePolicy("t", "static", tree=tree))


@pytest.mark.parametrize("drafter, rule", PAIRS)
def test_capes_tables_and_sets_of_one_width_run_as_they_replay(drafter, rule):
    trace, target, model = recording(drafter, rule)
    saved = 0
    for i, text in enumerate(
        [
            "cape:section",
            "cape:appendix",
            "cape:section,k=3",
            "sets:0",
            "sets:2",
            "sets:7,k=5",
            "sets:20,k=4",
        ]
    ):
        rounds, _ = examined(
            trace.select([i % 4, (i + 1) % 4]), target, model, policies.parse(text)
        )
        assert rounds.drafted.max() <= 32
        saved += (rounds.accepted > 0).sum()
    assert saved > 20


@pytest.mark.parametrize("drafter, rule", PAIRS)
def test_dynamic_trees_of_every_budget_run_as_they_replay(drafter, rule):
    trace, target, model = recording(drafter, rule)
    assert (trace.order[:, 0] < 255).any()
    assert (trace.order == 255).any()
    budgets = [
        *range(0, MAX_NODES + 1, 1 if SLOW else 4),
        1,
        3,
        29,
        30,
        31,
    ]  # 3 + 3 * 9 = 30 are offered
    for i, nodes in enumerate(budgets):
        part = trace if SLOW else trace.select([i % 4])
        rounds, _ = examined(part, target, model, policies.parse(f"dynamic_tree:{nodes}"))
        assert rounds.drafted.max() <= min(nodes, 30)


@pytest.mark.parametrize("rule", RULES)
def test_a_chain_as_a_tree_makes_the_chains_rounds(rule):
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
def test_control_a_wrong_rank_or_place_in_the_recording_is_noticed(drafter, rule):
    trace, target, model = recording(drafter, rule)
    static, dynamic = (
        TreePolicy("t", "static", tree=tree_of_widths((3, 2, 1))),
        policies.parse("dynamic_tree:10"),
    )
    for policy in (static, dynamic):
        rounds, results = examined(trace, target, model, policy)
        row = int(rounds.row[rounds.accepted > 0][0])
        wrong = spoilt(trace, row)
        found = compare(
            wrong, policy, replay_tree(wrong, policy), [replace(r, gap=r.gap + 1) for r in results]
        )
        assert not found.equal
        assert len(found.failures) + len(found.exceptions) == 1
        assert (found.failures or found.exceptions)[0].row == row


def test_a_difference_is_excused_by_a_thin_gap_of_the_run_alone():
    trace, target, model = recording("eagle", "greedy")
    policy = TreePolicy("t", "static", tree=tree_of_widths((3, 2, 1)))
    rounds, results = examined(trace, target, model, policy)
    thick = replace(
        trace,
        margin=np.full_like(trace.margin, 255),
        draft_margin=np.zeros_like(trace.draft_margin),
    )
    at = int(np.flatnonzero(rounds.accepted > 0)[0])
    wrong = spoilt(thick, int(rounds.row[at]))
    for gap, excused in ((9e-5, True), (2e-4, False)):
        thin = [replace(r, gap=np.full_like(r.gap, gap)) for r in results]
        found = compare(wrong, policy, replay_tree(wrong, policy), thin)
        assert (len(found.exceptions), len(found.failures)) == ((1, 0) if excused else (0, 1))


def test_the_gap_of_a_round_is_the_smallest_on_its_path():
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


def _logprob(name, text, path, rule):
    """log q after `text` and `path`, and the scores that rank children, from fresh models."""
    target, drafter = toy_pair(name)
    drafter.begin(
        target, text, target.prefill(text[:-1]), lambda logits, slot, *_: [*path, 0][slot]
    )
    for _ in path:
        drafter.next()
    logits = drafter.next().logits[None]
    return (logits / rule.temperature).log_softmax(-1)[0], lambda sequence, place: rule.scores(
        logits, sequence, [place]
    )[0]


@pytest.mark.parametrize("name, rule", [("eagle", "coupled"), ("model", "greedy")])
def test_recorded_order_is_that_of_the_twin_with_nothing_kept(name, rule):
    trace, *_ = recording(name, rule)
    part, sequence = trace.select([1]), 1
    (prompt,), text = prompts_of(part), part.token.tolist()
    for row in (0, 3, 7):
        known = {}

        def behind(ranks, row=row, known=known):
            """(tokens of this path of ranks, log q behind it, tokens by rank behind it)."""
            if ranks not in known:
                tokens = []
                if ranks:
                    before, _, ranked = behind(ranks[:-1])
                    tokens = [*before, ranked[ranks[-1]]]
                logprob, scores = _logprob(name, [*prompt, *text[:row]], tokens, RULES[rule])
                ranked = (
                    scores(sequence, row + len(ranks))
                    .sort(descending=True, stable=True)
                    .indices.tolist()
                )
                known[ranks] = tokens, logprob, ranked
            return known[ranks]

        def score(ranks):
            _, logprob, ranked = behind(ranks[:-1])
            return float(logprob[ranked[ranks[-1]]])

        assert naive_tree.order_of(part, 0, row, score, WIDTH, LEVELS) == part.order[row].tolist()


def test_order_is_recorded_and_saved_and_joined_and_only_where_asked(tmp_path):
    trace, target, drafter = recording("eagle", "greedy")
    asked = Settings(6, 20, RULES["greedy"], END, drafter_features(drafter), (WIDTH, LEVELS))
    prompts = [Prompt(str(i), "toy", "random", p) for i, p in enumerate(toy_prompts(4, 2))]
    meta = describe("toy", drafter, asked, prompts, "", "cpu", torch.float64)
    files = RecordingFiles(tmp_path / "t.parquet", shard_size=3)
    made = record(target, drafter, asked, prompts, files, meta)
    assert made == load_trace(tmp_path / "t.parquet")
    assert made.meta.tree == (WIDTH, LEVELS)
    assert made.order.tolist() == trace.order.tolist()
    plain = record_sequence(target, drafter, replace(asked, tree=()), prompts[0].token, 0)
    assert plain.order is None
    assert plain.rank.tolist() == trace.rank[: len(plain.token)].tolist()


@pytest.mark.parametrize("tree", [(0, 3), (33, 3), (3, 0), (3, 7), (3,), [3, 3], (3.0, 3)])
def test_settings_refuse_trees_that_cannot_be_recorded(tree):
    with pytest.raises(RecordError, match="tree is .* expected a width from 1 to 32"):
        Settings(6, 8, Rule(), (), tree=tree)


def test_what_cannot_grow_is_not_recorded():
    target, lookup = toy_pair("prompt_lookup")
    asked, text = Settings(6, 8, Rule(), END, (), (2, 2)), np.array([4, 5, 6], np.int32)
    with pytest.raises(ValueError, match="it grows no trees"):
        tree_order_stepwise(target, lookup, asked, [5, 6], text, 0)
    target, model = toy_pair("medusa")
    with pytest.raises(ValueError, match="too deep for drafter 'medusa'"):
        tree_order_stepwise(target, model, replace(asked, tree=(2, 5)), [5, 6], text, 0)
    with pytest.raises(RecordError, match="rejection rule"):
        tree_order_stepwise(target, model, replace(asked, rule=Rule("rejection")), [5, 6], text, 0)


@pytest.mark.parametrize("rule", RULES)
def test_beams_commit_the_targets_text_and_are_a_beam_search(rule):
    for name in DRAFTERS:
        target, drafter = toy_pair(name)
        for seed, prompt in enumerate(toy_prompts(3, 5)):
            own, _ = target_sequence(target, Settings(6, 14, RULES[rule], END), prompt, seed)
            result = decode(target, drafter, BeamSearch(3, 3), RULES[rule], prompt, 14, END, seed)
            assert result.token.tolist() == own.tolist()
            assert result.drafted.max() <= 9
            assert result.computed.max() == 3
    target, drafter = toy_pair("model")
    prompt, made, rule = [5, 6, 7], {}, RULES[rule]

    def draft(plan):
        drafter.begin(target, prompt, target.prefill(prompt[:-1]), None)
        plan.begin(drafter, rule, 0, None, None)
        made["draft"] = plan.draft(
            7, 0, 0, 3, END, type("Clock", (), {"lap": lambda self, phase: None})()
        )
        return made["draft"]

    beams = [((), 0.0)]
    for level in range(3):
        offers = []
        for tokens, total in beams:
            logprob, scores = _logprob("model", prompt, list(tokens), rule)
            ranked = scores(0, level).sort(descending=True, stable=True).indices.tolist()[:3]
            offers += [((*tokens, t), total + float(logprob[t])) for t in ranked]
        beams = sorted(offers, key=lambda offer: -offer[1])[:3]
    found = draft(BeamSearch(3, 3))
    paths = {0: ()}
    for row, (token, parent) in enumerate(zip(found.token, found.parent)):
        if row:
            paths[row] = (*paths[parent], token)
    assert set(paths.values()) == {tokens[:n] for tokens, _ in beams for n in range(4)}
    assert len(paths) == len(set(paths.values()))


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.lists(st.integers(-2, 2), min_size=6, max_size=6), min_size=1, max_size=4),
    st.integers(1, 6),
)
def test_best_takes_of_equals_the_smaller_index_and_tells_the_gap(rows, width):
    scores = torch.tensor(rows, dtype=torch.float64)
    scores[scores == -2] = -torch.inf
    token, gap = top_tokens(scores, width)
    for values, found, near in zip(scores.tolist(), token.tolist(), gap):
        order = sorted(range(6), key=lambda i: (-values[i], i))
        assert found == order[:width]
        gaps = [values[a] - values[b] for a, b in zip(order[:width], order[1 : width + 1])]
        assert near == min((g for g in gaps if g == g), default=np.inf)
    with pytest.raises(TreeError, match="7 children of a node are too wide for a vocabulary of 6"):
        top_tokens(scores, 7)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 50), st.integers(1, 4), st.integers(1, 4), st.sampled_from(list(RULES)))
def test_an_offer_is_ordered_with_ancestors_first(seed, width, levels, rule):
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


def test_trees_that_cannot_be_are_refused_in_one_line():
    target, drafter = toy_pair("model")
    slips = [
        (lambda: Tree((2, 1), (0, 0)), "cycle"),
        (lambda: DynamicTree(0, 3, 5), "width is 0"),
        (lambda: DynamicTree(33, 3, 5), "width is 33"),
        (lambda: DynamicTree(3, 0, 5), "levels is 0"),
        (lambda: DynamicTree(3, 3, 64), "64 nodes are over budget"),
        (lambda: BeamSearch(8, 8), "64 nodes, over budget"),
        (lambda: parse_beam("beam:4,k=7", 6), "7 levels are too deep, here drafts reach 6"),
        (lambda: parse_beam("beam:x", 6), "expected beam:width"),
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
        (
            lambda: decode(target, drafter, DynamicTree(2, 2, 3), Rule("rejection"), [5, 6], 4),
            "does not run under the rejection rule",
        ),
        (
            lambda: decode(target, drafter, BeamSearch(2, 2), Rule("rejection"), [5, 6], 4),
            "does not run under the rejection rule",
        ),
    ]
    for slip, hint in slips:
        with pytest.raises(ValueError, match=hint) as refused:
            slip()
        assert "\n" not in str(refused.value)
    assert parse_beam("beam:4", 6).K == 6
    assert parse_beam("beam:4,k=2", 6).width == 4
