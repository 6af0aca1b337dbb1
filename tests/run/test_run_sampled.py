"""Runs of rejection recordings: rounds equal replays in distribution, and planted faults do not."""

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
import torch
from toy_lm import END, recorded, toy_cost, toy_decoder, toy_pair, toy_prompts

from real.decode.loop import decode
from real.decode.plans import chain_plan
from real.drafters.model import ModelDrafter
from real.pair import Pair
from real.record import RecordError, Settings
from real.record.rows import record_emitted
from real.record.sequences import SequenceCache, target_sequences
from real.record.settings import describe
from real.rerun import chain_policy, prompts_of, recorded_rule, rerun_rule, rounds_of, run_sampled
from real.sampling import AddressedDraws, Rule
from simspec import PolicyError, policies
from simspec.numerics.stats import MIN_PROMPTS
from simspec.replay.round_tests import PAIRED_TESTS, ReplaySettings, check_rounds

RULE = Rule("rejection", 0.9, 3, 0, 0.95)
COST = toy_cost(4)
RUN, FAULTY = range(30), range(24)  # prompts of a run, and of one whose fault is planted


@lru_cache
def recording(drafter: str, count: int = 40, budget: int = 24, batch: int = 32):
    target, model = toy_pair(drafter)
    settings = Settings(4, budget, RULE, END, (), batch=batch)
    texts = toy_prompts(count)
    meta = describe("toy", model, settings, [], "", "cpu", torch.float64)
    written = SequenceCache("no file", settings, meta, target)  # by the batch: a tenth of the time
    for i, sequence in enumerate(target_sequences(target, settings, texts, range(count))):
        written.add(i, texts[i], sequence)
    pair = Pair(target, model, "toy", None, "", END)
    return recorded(target, model, settings, texts, written), pair


@pytest.mark.parametrize(
    "drafter, policy, rule",
    [
        ("model", "fixed:3", "rejection"), ("eagle", "beta_ts", "rejection"),
        ("prompt_lookup", "fixed:4", "rejection"), ("model", "fixed:4", "block"),
    ],
)  # fmt: skip
def test_runs_equal_their_replays_in_distribution(drafter, policy, rule):
    """Some hundreds of rounds; a false alarm has probability 0.01 at most, four runs together."""
    trace, pair = recording(drafter)
    trace = trace.select(RUN).under(rule)
    outcome = run_sampled(trace, pair, policy, COST, seed=1, risk=0.01 / 4)
    assert outcome.equal, outcome.describe()
    assert outcome.summary()["rule"] == rule
    assert outcome.tests.rounds > 200
    assert len(outcome.tests.p_values) == 5
    assert outcome.tests.detectable < 0.6
    assert outcome.replayed > 1
    assert "no alarm" in outcome.describe()


class Doubtful(AddressedDraws):
    """Refuses a third of what should be accepted."""

    def accept(self, probability, round, slot):
        return super().accept(probability * 2 / 3, round, slot)


class Heated(ModelDrafter):
    """Drafts from q at another temperature than the rule's."""

    def begin(self, target, prompt, prefill, pick):
        super().begin(target, prompt, prefill, lambda logits, slot, *h: pick(logits / 4, slot, *h))


def checked(pair, drafting, monkeypatch=None, draws=None):
    """Tests of a run of `drafting`, on what `pair` records along its tokens."""
    trace = recording("model")[0].select(FAULTY)
    if draws is not None:
        monkeypatch.setattr("real.decode.loop.AddressedDraws", draws)
    policy, rule = policies.parse("fixed:3"), rerun_rule(trace, 1)
    plan, models = chain_plan(policy, trace.K, 1, COST), (drafting.target, drafting.drafter)
    ran = [
        decode(*models, plan, rule, prompt, int(trace.budget[s]), END, s)
        for s, prompt in enumerate(prompts_of(trace))
    ]
    own = record_emitted(pair.target, pair.drafter, rule, trace, [r.token for r in ran])
    settings = ReplaySettings(policy, COST, 77, 0.01)
    return check_rounds(rounds_of(own, ran), own, settings, trace)


def test_control_altered_acceptance_and_another_temperature_are_detected(monkeypatch):
    _, pair = recording("model")
    heated = replace(pair, drafter=Heated(pair.drafter.lm))
    assert "rounds" in checked(pair, heated).alarms
    tests = checked(pair, pair, monkeypatch, Doubtful)
    assert "rounds" in tests.alarms
    assert tests.rounds > tests.replayed


def test_control_p_and_q_swapped_are_detected(monkeypatch):
    from real.decode.verify import rejection_sample

    def swapped(rule, logits, draft, draws, round, end_tokens):
        p = rule.probs(logits)
        q = {row: p[row] for row in draft.q}
        return rejection_sample(rule, logits, replace(draft, q=q), draws, round, end_tokens)

    monkeypatch.setattr("real.decode.loop.rejection_sample", swapped)
    _, pair = recording("model")
    assert not checked(pair, pair).equal


def test_control_a_recording_of_another_drafter_is_detected():
    """The engine is right, and the recording is not of this pair."""
    trace, pair = recording("model")
    stranger = replace(pair, drafter=ModelDrafter(toy_decoder(9)))
    outcome = run_sampled(trace.select(FAULTY), stranger, "fixed:3", COST, seed=1, risk=0.01)
    assert set(outcome.tests.alarms) == set(PAIRED_TESTS)
    assert outcome.summary()["replay_equal"] is False
    assert "NOT EQUAL: recording" in outcome.describe()


def test_runs_draw_other_tokens_than_the_recording():
    trace, _ = recording("model")
    rule = rerun_rule(trace, 0)
    assert rule.seed != RULE.seed
    assert replace(rule, seed=RULE.seed) == RULE == recorded_rule(trace)
    last = (1 << 64) - 1
    seeds = {rerun_rule(trace, seed).seed for seed in (0, 1, last - 1, last)}
    assert RULE.seed not in seeds


def test_emitted_sequences_are_recorded_as_the_recorder_does():
    trace, pair = recording("eagle")
    tokens = [trace.token[a:b] for a, b in zip(trace.offset, trace.offset[1:])]
    again = record_emitted(pair.target, pair.drafter, RULE, trace, tokens)
    np.testing.assert_array_equal(again.depth, trace.depth)
    np.testing.assert_allclose(again.ratio, trace.ratio, atol=1e-6)
    np.testing.assert_array_equal(again.sequence, trace.sequence)


def test_another_drafter_is_tested_on_its_own_tokens():
    trace, _ = recording("model")
    _, pair = recording("prompt_lookup")
    outcome = run_sampled(trace.select(range(MIN_PROMPTS)), pair, "fixed:2", COST, risk=0.01)
    assert outcome.replayed is None
    assert len(outcome.tests.p_values) == 3
    assert "no replay of this drafter" in outcome.describe()
    json = outcome.summary()
    assert json["committed_per_round_replayed"] is None
    assert json["replay_equal"] is outcome.equal


def test_what_does_not_replay_is_refused():
    trace, pair = recording("model")
    for policy, error, words in (
        ("static:2x1", PolicyError, "no policy of chains"),
        ("confidence:0.5", PolicyError, "reads 'confidence'"),
        ("oracle", PolicyError, "nobody can know it"),
    ):
        with pytest.raises(error, match=words):
            chain_policy(trace, policy, COST)
    target, lookahead = toy_pair("lookahead")
    with pytest.raises(RecordError, match="depends on earlier rounds"):
        run_sampled(trace, replace(pair, target=target, drafter=lookahead), "fixed:2", COST)
