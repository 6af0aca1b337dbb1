"""Policies as released, against the code itself where it can be run."""

import math
import os
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from rule_twins import learn
from transformers.generation.candidate_generator import AssistedCandidateGenerator
from transformers.generation.stopping_criteria import ConfidenceCriteria

from simspec import CostModel, PolicyError, Stepper
from simspec.policies import confidence, hf_heuristic, parse  # fmt: skip

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


def test_signal_is_what_the_policy_reads():
    policy = confidence(0.4, signal="probability")
    assert (confidence(0.4).reads, policy.reads) == (("confidence",), ("probability",))
    with pytest.raises(PolicyError, match="signal is 'theta'"):
        confidence(0.4, signal="theta")


def test_dropping_by_the_token_is_refused_for_drawn_drafts():
    """It would change the output's distribution; dropping by max q does not."""
    refused = confidence(0.4, inclusive=False, signal="probability")
    assert refused.anticipates
    assert not confidence(0.4, inclusive=False).anticipates
    stepper = Stepper(refused, 4, 0, COST, (("probability", "confidence"),))
    with pytest.raises(PolicyError, match="drops a drawn token"):
        stepper.unforeseeing(True)


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
