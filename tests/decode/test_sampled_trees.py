"""Searched trees under the rejection rule: whole sequences by enumeration, and recordings whose
replay equals the engine's rounds on the text that the engine drew."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from branches import output_distribution
from enumerated_world import EXACT, Listener, Speaker, World
from test_tree_law import depth_along
from toy_lm import END, toy_cost, toy_pair, toy_prompts

from real.decode.loop import decode
from real.decode.plans import BeamSearch, DynamicTree, RoundStart, SequenceStart, make_plan
from real.prompts import Prompt
from real.record import RecordingFiles, Settings, record
from real.record.recorder import record_sequence
from real.record.rows import assemble
from real.record.settings import describe
from real.rerun import rounds_of, rule_of
from real.sampling import Rule
from simspec import CostModel, load_trace, policies, sweep
from simspec.trace.trace import TraceError
from simspec.tree.replay import replay_tree

HOT = Rule("rejection", 0.8, 3)
CUT = Rule("rejection", 1.1, 4, 6, 0.9)
GROWERS = ("model", "early_exit", "eagle", "medusa", "glide")
QUIET = type("Clock", (), {"lap": lambda self, phase: None})()


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
    for text, odds in world.true(rule, budget).items():
        cut = next((i + 1 for i, token in enumerate(text) if token in ends), budget)
        key = text[:cut], accepted_by_hand(world, rule, make, text[:cut], ends)
        expected[key] = expected.get(key, 0.0) + odds
    computed = output_distribution(one)
    assert max(abs(computed.get(k, 0) - expected.get(k, 0)) for k in computed | expected) < EXACT


def recorded_as(target, drafter, rule, prompts, texts, tree=(3, 4), **options):
    """The recording whose sequences are these texts."""
    settings = Settings(6, 20, rule, END, (), tree)
    prompts = [Prompt(str(i), "toy", "random", p) for i, p in enumerate(prompts)]

    class Known:
        def find(self, sequence, prompt):
            text = texts[sequence]
            return text, np.ones(len(text))

    rows = [
        record_sequence(target, drafter, settings, p.token, i, Known(), **options)
        for i, p in enumerate(prompts)
    ]
    meta = describe("toy", drafter, settings, prompts, "", "cpu", torch.float64)
    return assemble(rows, prompts, 0, settings, meta)


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
    trace = record(target, drafter, settings, prompts, files, meta)
    assert load_trace(tmp_path / "t.parquet") == trace
    assert rule_of_raises(trace)
    table = sweep(
        trace, ["dynamic_tree:8", "dynamic_tree:beams"], 0.1, replicates=2, progress=False
    )
    assert table.policy.tolist() == ["dynamic_tree:8"] * 2 + ["dynamic_tree:beams"] * 2
    assert (table.groupby("policy").committed_per_round.nunique() == 1).all()
    assert (table.committed_per_round > 1).all()
    with pytest.raises(TraceError, match="whose nodes are not drawn"):
        sweep(trace, ["static:2x1"], CostModel.from_ratio(0.1, 6, 63), progress=False)


def rule_of_raises(trace) -> bool:
    with pytest.raises(ValueError, match="replay in distribution"):
        rule_of(trace)
    return True
