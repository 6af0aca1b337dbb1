"""Policies as released, against the code itself where it can be run."""

import math
import os
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from rule_exam import learn
from transformers.generation.candidate_generator import AssistedCandidateGenerator
from transformers.generation.stopping_criteria import ConfidenceCriteria

from simspec import CostModel, PolicyError, Stepper, replay, synthetic
from simspec.policies import (
    adaptive_confidence,
    confidence,
    draft_verify,
    hf_heuristic,
    make,
    parse,
)  # fmt: skip
from simspec.trace.quantization import TABLES

ROUNDS = 100_000 if os.environ.get("SIMSPEC_SLOW") else 3_000
COST = CostModel.from_ratio(0.1, 16)


def goes_on(policy, shown):
    """Whether the policy drafts another token behind one with that feature."""
    features = np.full((16, 1), math.nan)
    features[0, 0] = shown
    go, keep = policy.compiled()[0](*policy.start(), 1, features, math.nan)
    return bool(go), bool(keep)


def sampled(count=400, vocab=6):
    """Logits and a token drawn from each."""
    torch.manual_seed(0)
    logits = 2 * torch.randn(count, vocab, dtype=torch.float64)
    return [(row, int(torch.multinomial(row.softmax(-1), 1)), row.softmax(-1)) for row in logits]


@pytest.mark.parametrize("threshold", [0.2, 0.4, 0.7])
def test_confidence_by_probability_is_transformers_criterion(threshold):
    """Its rule reads q of the drawn token. Control: max q stops elsewhere, and never earlier."""
    theirs = ConfidenceCriteria(threshold)
    ours, by_best = confidence(threshold, signal="probability"), confidence(threshold)
    apart = 0
    for logits, token, q in sampled():
        stops = bool(theirs(torch.tensor([[token]]), (logits[None],)))
        assert goes_on(ours, q[token]) == (not stops, True)
        apart += goes_on(by_best, q.max())[0] == stops
    assert apart > 20


def test_both_signals_agree_on_greedy_drafts():
    for _, _, q in sampled(50):
        best = float(q.max())
        assert goes_on(confidence(0.4), best) == goes_on(
            confidence(0.4, signal="probability"), best
        )


@pytest.mark.parametrize(
    "factory", [lambda **o: confidence(0.4, **o), adaptive_confidence, draft_verify]
)
def test_signal_is_what_the_policy_reads(factory):
    assert factory().reads == ("confidence",)
    policy = factory(signal="probability")
    assert policy.reads == ("probability",)
    assert parse(policy.name) == policy
    with pytest.raises(PolicyError, match="signal is 'theta'"):
        factory(signal="theta")


def test_dropping_by_the_token_is_refused_for_drawn_drafts():
    """It would change the output's distribution; dropping by max q does not."""
    refused = confidence(0.4, inclusive=False, signal="probability")
    assert refused.anticipates
    assert not confidence(0.4, inclusive=False).anticipates
    stepper = Stepper(refused, 4, 0, COST, (("probability", "confidence"),))
    with pytest.raises(PolicyError, match="drops a drawn token"):
        stepper.unforeseeing(True)


def test_draft_verify_as_released_drafts_eight_tokens():
    """Kmax also decides which rounds lower the threshold, so it is no mere cap."""
    deep = synthetic.iid(0.9, 20, 60, 16, confidence=True)
    released = make("draft_verify:variant=released", deep, COST)
    free = make("draft_verify", deep, COST)
    by_hand = draft_verify(K=8)
    assert replay(deep, released, 0, COST) == replay(deep, by_hand, 0, COST)
    assert replay(deep, released, 0, COST).computed.max() == 8
    assert replay(deep, free, 0, COST).computed.max() > 8
    shallow = synthetic.iid(0.9, 20, 60, 5, confidence=True)
    assert make("draft_verify:variant=released", shallow, COST).K == 5
    assert parse("draft_verify:variant=released").name == "draft_verify:variant=released"
    with pytest.raises(PolicyError, match="variant is 'other'"):
        draft_verify(variant="other")


def test_draft_verify_by_probability_reads_the_drawn_token():
    """As released where drafts are drawn. Control: by max q more drafts go on."""
    ours, by_best = draft_verify(0.5, signal="probability"), draft_verify(0.5)
    apart = 0
    for _, token, q in sampled():
        drawn = float(q[token])
        assert goes_on(ours, drawn) == (drawn >= 0.5, True)
        apart += goes_on(by_best, float(q.max())) != goes_on(ours, drawn)
    assert apart > 20
    released = draft_verify(variant="released", signal="probability")
    assert released.reads == ("probability",)
    assert released.name == "draft_verify:variant=released,signal=probability"


def test_specdec_pp_as_released_stops_one_token_later():
    """The head reads the state behind a token, so that token i is judged before i + 2.

    Under the same shown probabilities; control: `paper` stops one token earlier.
    """
    trace = SimpleNamespace(K=8)
    shown = np.array([0.9, 0.5, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9])
    stops = {}
    for variant in ("paper", "released"):
        policy = parse(f"specdec_pp:0.3,variant={variant},shortest=1").resolve(trace, COST)
        params, state = policy.start()
        features, slot = np.full((8, 1), math.nan), 0
        while policy.compiled()[0](params, state, slot, features, math.nan)[0]:
            features[slot, 0] = shown[slot]
            slot += 1
        stops[variant] = slot
    assert stops == {"paper": 2, "released": 3}


def assistant(schedule, threshold, tokens):
    """Transformers' generator with its state and without its model."""
    generator = AssistedCandidateGenerator.__new__(AssistedCandidateGenerator)
    generator.assistant_generation_config = SimpleNamespace(
        num_assistant_tokens_schedule=schedule, assistant_confidence_threshold=threshold
    )
    generator.generation_config = SimpleNamespace()
    generator.num_assistant_tokens, generator.matches, generator.probs = tokens, [], []
    return generator


def verified(generator, accepted, drafted):
    """Tells it of a round."""
    generator.update_candidate_strategy(None, torch.empty(1, drafted + 1, 1), accepted)


@pytest.mark.parametrize("tokens", [1, 5, 20])
def test_hf_heuristic_is_transformers_schedule(tokens):
    """Draft lengths equal, round by round, with full, partial and no acceptance."""
    rng = np.random.default_rng(tokens)
    policy, generator = hf_heuristic(tokens), assistant("heuristic", 0, tokens)
    state = np.array(policy.state0)
    for _ in range(ROUNDS):
        drafted = generator.num_assistant_tokens
        assert state[0] == drafted
        accepted = int(rng.choice([0, drafted, rng.integers(0, drafted + 1)], p=[0.3, 0.3, 0.4]))
        verified(generator, accepted, drafted)
        state = learn(policy, state, accepted, drafted, K=max(drafted, 1))


def test_adaptive_confidence_is_transformers_fit():
    """Thresholds equal, in sequences of 200 rounds: scikit-learn's floats decide equal losses."""
    pytest.importorskip("sklearn")
    rng, policy, values = np.random.default_rng(0), adaptive_confidence(), TABLES["confidence"]
    moved = 0
    for done in range(ROUNDS):
        if done % 200 == 0:
            generator, state = assistant("constant", 0.4, 8), np.array(policy.state0)
            accuracy, levels = rng.beta(2, 1), rng.choice(values, rng.integers(3, 60))
        drafted = int(rng.integers(1, 9))
        shown = rng.choice(levels, drafted)
        accepted = int(np.argmin(np.append(rng.random(drafted) < accuracy, False)))
        before = float(state[0])
        generator.probs.extend(map(float, shown))
        verified(generator, accepted, drafted)
        state = learn(policy, state, accepted, drafted, tuple((value,) for value in shown))
        moved += before != state[0]
        assert generator.assistant_generation_config.assistant_confidence_threshold == state[0]
    assert moved > ROUNDS / 100
