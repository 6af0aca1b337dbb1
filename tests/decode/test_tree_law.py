"""Trees under the rejection rule: every draw enumerated."""

from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest
import torch
from branches import output_distribution
from enumerated_world import EXACT, Listener, Speaker, World, off, whole
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_lm import END, recorded, toy_cost, toy_pair, toy_prompts
from tree_strategies import shapes

from real.decode.loop import decode
from real.decode.plans import (
    BeamSearch,
    Cape,
    DynamicTree,
    RoundStart,
    SequenceStart,
    StaticTree,
    make_plan,
)
from real.decode.verify import rejection_sample
from real.prompts import Prompt
from real.record import Recording, RecordingFiles, Settings, record_all
from real.record.settings import describe
from real.rerun import rounds_of, rule_of
from real.sampling import Rule
from simspec import CostModel, load_trace, policies, sweep
from simspec.numerics.rng import DRAFT
from simspec.trace.trace import TraceError
from simspec.tree.replay import replay_tree
from simspec.tree.tree import tree_of_widths

QUIET = type("Clock", (), {"lap": lambda self, phase: None})()
RULES = [Rule("rejection", 0.7), Rule("rejection", 1.0, top_k=2), Rule("rejection", 1.3, top_p=0.6)]


class Grower(Speaker):
    """A world's q behind every path of a tree."""

    def begin(self, target, prompt, prefill, pick):
        super().begin(target, prompt, prefill, pick)
        self.paths = []

    def grow(self, token, parent):
        self.paths += [(*self.paths[p], t) if p >= 0 else () for t, p in zip(token, parent)]
        rows = self.paths[-len(token) :]
        return torch.stack([self.world.q((*self.text, *path)) for path in rows])

    def rollback(self, accepted):
        self.paths = []


@cache
def apart(seed):
    """The world of a target and a drafter that have nothing to do with each other."""
    return World(seed, 3, near=0.0)


def paths_of(draft):
    """The tokens that lead to each row of a draft."""
    paths = [()]
    for token, parent in zip(draft.token[1:], draft.parent[1:]):
        paths.append((*paths[parent], token))
    return paths


def tree_distribution(make, seed, rule, length, outcome=lambda text, accepted: text):
    """{outcome(text of `length` tokens, accepted ones): probability} of a round of the plan that
    make(draws) gives, completed by the target's own draws."""
    world, distribution = apart(seed), {}

    def one(draws):
        plan, drawn = make(draws)
        draft = plan.draft(RoundStart(0, 0, 0, plan.K, (), QUIET))
        logits = torch.stack([world.p(path) for path in paths_of(draft)])
        known = replace(draft, q={**drawn, **draft.q})
        verified = rejection_sample(rule, logits, known, draws, 0, ())
        assert not draws.again
        return tuple(verified.token[:length]), verified.accepted

    for (start, accepted), odds in output_distribution(one).items():
        for rest in product(range(world.vocab), repeat=length - len(start)):
            key, text = outcome((*start, *rest), accepted), (*start, *rest)
            more = odds * world.likelihood(rule, text, len(start))
            distribution[key] = distribution.get(key, 0.0) + more
    return distribution


def begun(plan, rule, seed, draws, pick=None, output=None):
    drafter = Grower(apart(seed))
    drafter.begin(None, [0], None, pick)
    plan.begin(SequenceStart(drafter, rule, 0, output, draws))
    return plan


def static(rule, seed, tree, draws):
    return begun(StaticTree(tree), rule, seed, draws), {}


def cape(rule, seed, sets, k, draws):
    drawn = {}

    def pick(logits, slot, *_):
        drawn[slot] = rule.probs(logits[None])[0]
        return draws.sample(drawn[slot], 0, slot, DRAFT)

    hidden = type("Output", (), {"hidden": torch.zeros(1, 2)})()
    return begun(Cape(sets, k), rule, seed, draws, pick, hidden), drawn


def searched(rule, seed, plan, draws):
    return begun(plan, rule, seed, draws), {}


def depth_along(draft, text):
    """Leading tokens of `text` that lie on a path of the draft."""
    row, depth = 0, 0
    for token in text:
        children = [i for i, p in enumerate(draft.parent) if p == row and draft.token[i] == token]
        if not children:
            break
        row, depth = children[0], depth + 1
    return depth


searches = st.one_of(
    st.builds(DynamicTree, st.integers(1, 3), st.integers(1, 3), st.integers(0, 9)),
    st.builds(BeamSearch, st.integers(1, 3), st.integers(1, 3)),
)


@settings(deadline=None, max_examples=25)
@given(st.sampled_from(RULES), st.integers(0, 999), searches)
def test_searched_trees_accept_what_the_target_draws(rule, seed, plan):
    """The joint law of text and accepted length: text from the target, accepted if in the tree."""
    levels = plan.K + 1
    draft = searched(rule, seed, plan, None)[0].draft(RoundStart(0, 0, 0, plan.K, (), QUIET))
    expected = {
        (text, depth_along(draft, text[: plan.K])): odds
        for text, odds in apart(seed).true(rule, levels).items()
    }
    computed = tree_distribution(
        lambda draws: searched(rule, seed, plan, draws), seed, rule, levels, lambda *pair: pair
    )
    assert off(computed, expected) < EXACT


def test_control_chosen_children_verified_by_the_drafters_chance_are_detected():
    """The children are certain; q of the drafter in place of 1 rejects or accepts them wrongly."""
    rule, seed, plan = RULES[0], 5, DynamicTree(2, 2, 4)

    def spoilt(draws):
        made, drawn = searched(rule, seed, DynamicTree(2, 2, 4), draws)
        chosen = made.draft

        def draft(*arguments):
            drafted = chosen(*arguments)
            paths = paths_of(drafted)
            q = {row: apart(seed).drafted(rule, paths[row]) for row in set(drafted.parent[1:])}
            return replace(drafted, q=q)

        made.draft = draft
        return made, drawn

    right = apart(seed).true(rule, plan.K + 1)
    assert off(tree_distribution(spoilt, seed, rule, plan.K + 1), right) > 1e-2


@settings(deadline=None, max_examples=25)
@given(st.sampled_from(RULES), st.integers(0, 999), shapes(most=4, widest=3))
def test_static_trees_keep_the_target_distribution(rule, seed, tree):
    distribution = tree_distribution(
        lambda draws: static(rule, seed, tree, draws), seed, rule, tree.levels + 1
    )
    assert off(distribution, apart(seed).true(rule, tree.levels + 1)) < EXACT


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("sets", [0, 1, 2, "section"])
def test_cape_keeps_the_target_distribution(rule, sets):
    for seed in range(3):
        distribution = tree_distribution(
            lambda draws, seed=seed: cape(rule, seed, sets, 2, draws), seed, rule, 3
        )
        assert off(distribution, apart(seed).true(rule, 3)) < EXACT


def test_control_siblings_verified_by_a_wrong_q_are_detected():
    """Each child's own q in place of the first's: the tree is then verified by a distribution that
    it was not drawn from."""
    rule, seed, tree = RULES[0], 5, tree_of_widths((2,))

    def spoilt(draws):
        plan, drawn = static(rule, seed, tree, draws)
        draft_tree = plan.draft

        def draft(*arguments):
            drafted = draft_tree(*arguments)
            q = drafted.q[0].clone()
            q[drafted.token[1]] /= 2
            return drafted.__class__(
                drafted.token, drafted.parent, drafted.computed, drafted.line, {0: q / q.sum()}
            )

        plan.draft = draft
        return plan, drawn

    assert off(tree_distribution(spoilt, seed, rule, 2), apart(seed).true(rule, 2)) > 1e-3


HOT = Rule("rejection", 0.8, 3)
CUT = Rule("rejection", 1.1, 4, 6, 0.9)
GROWERS = ("model", "early_exit", "eagle", "medusa", "glide")


def accepted_by_hand(world, rule, make, text, ends):
    """The rounds of a sequence: in each the draft of a fresh plan, and its depth along it."""
    rounds, at = [], 0
    while at < len(text):
        drafter, plan = Grower(world), make()
        drafter.begin(None, [0], None, None)
        drafter.text = list(text[:at])
        plan.begin(SequenceStart(drafter, rule, 0, None, None))
        cap = min(plan.K, 3 - at - 1)
        draft = plan.draft(RoundStart(0, at, 0, cap, (), QUIET))
        accepted = depth_along(draft, text[at:])
        rounds.append((at, len(draft.token) - 1, accepted))
        ended = accepted and text[at + accepted - 1] in ends
        at += accepted + (not ended)
    return tuple(rounds)


@pytest.mark.parametrize("rule", [HOT, replace(HOT, top_k=2)])
@pytest.mark.parametrize("make", [lambda: DynamicTree(2, 2, 3), lambda: BeamSearch(2, 2)])
@pytest.mark.parametrize("ends", [(), (1,)])
def test_whole_sequences_have_the_law_of_their_replay(rule, make, ends):
    """Text and rounds together, over all draws: text from the target, rounds as the text says."""
    world, budget = World(7, 3), 3

    def one(draws):
        target = Listener(world)
        result = decode(
            target, Grower(world), make(), rule, [0], budget, ends, 0, target.extend, draws
        )
        rounds = zip(*(a.tolist() for a in (result.position, result.drafted, result.accepted)))
        return tuple(result.token.tolist()), tuple(rounds)

    expected = {}
    for text, odds in whole(world, rule, budget, ends).items():
        expected[text, accepted_by_hand(world, rule, make, text, ends)] = odds
    assert off(output_distribution(one), expected) < EXACT


def recorded_as(target, drafter, rule, prompts, texts, tree=(3, 4), **options):
    """The recording whose sequences are these texts."""
    settings = Settings(6, 20, rule, END, (), tree)

    class Known:
        def find(self, sequence, prompt):
            text = texts[sequence]
            return text, np.ones(len(text))

    return recorded(target, drafter, settings, prompts, Known(), **options)


@pytest.mark.parametrize("name, rule", [*((name, HOT) for name in GROWERS), ("model", CUT)])
def test_engine_rounds_equal_the_replay_of_the_drawn_text(name, rule):
    target, drafter = toy_pair(name)
    prompts, accepted = toy_prompts(3, 2), 0
    for text in ("dynamic_tree:2", "dynamic_tree:14"):
        policy = policies.parse(text)
        plan = make_plan(policy, 6, 0, toy_cost(), (3, 4))
        results = [
            decode(target, drafter, plan, rule, prompt, 20, END, i)
            for i, prompt in enumerate(prompts)
        ]
        trace = recorded_as(target, drafter, rule, prompts, [r.token for r in results])
        assert replay_tree(trace, policy) == rounds_of(trace, results)
        accepted += sum(int(r.accepted.sum()) for r in results)
    assert accepted > 10


@pytest.mark.parametrize("name", ["model", "eagle", "glide"])
def test_parallel_order_equals_the_stepwise_one(name):
    target, drafter = toy_pair(name)
    prompts = toy_prompts(2, 3)
    texts = [
        decode(target, drafter, DynamicTree(1, 1, 0), HOT, p, 20, END, 0).token for p in prompts
    ]
    traces = [
        recorded_as(target, drafter, HOT, prompts, texts, stepwise=stepwise)
        for stepwise in (False, True)
    ]
    assert traces[0].order.tolist() == traces[1].order.tolist()
    assert traces[0].beam.tolist() == traces[1].beam.tolist()


def test_control_the_order_of_another_text_is_detected():
    target, drafter = toy_pair("eagle")
    prompts, policy = toy_prompts(1, 2), policies.parse("dynamic_tree:14")
    plan = make_plan(policy, 6, 0, toy_cost(), (3, 4))
    results = [decode(target, drafter, plan, HOT, prompts[0], 20, (), 0)]
    trace = recorded_as(target, drafter, HOT, prompts, [results[0].token[::-1].copy()])
    assert replay_tree(trace, policy).accepted.tolist() != results[0].accepted.tolist()


def test_recordings_of_the_rejection_rule_hold_orders(tmp_path):
    target, drafter = toy_pair("eagle")
    prompts = [Prompt(str(i), "toy", "random", p) for i, p in enumerate(toy_prompts(3, 2))]
    settings = Settings(6, 20, HOT, END, (), (3, 4))
    meta = describe("toy", drafter, settings, prompts, "", "cpu", torch.float64)
    files = RecordingFiles(tmp_path / "t.parquet", shard_size=2)
    trace = record_all([Recording(target, drafter, settings, files, meta)], prompts)[0]
    assert load_trace(tmp_path / "t.parquet") == trace
    assert rule_of_raises(trace)
    table = sweep(
        trace, ["dynamic_tree:8", "dynamic_tree:beams"], 0.1, replicates=2, progress=False
    )
    assert table.policy.tolist() == ["dynamic_tree:8", "dynamic_tree:beams"]  # which draw nothing
    assert (table.committed_per_round > 1).all()
    with pytest.raises(TraceError, match="whose nodes are not drawn"):
        sweep(trace, ["static:2x1"], CostModel.from_ratio(0.1, 6, 63), progress=False)


def rule_of_raises(trace) -> bool:
    with pytest.raises(ValueError, match="replay in distribution"):
        rule_of(trace)
    return True
