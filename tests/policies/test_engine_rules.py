"""Rules of serving engines: each against its slow twin, and by hand."""

import os
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import rule_twins as twins
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rule_twins import LENGTHS, LONG, SCOPE, drafts, goes_on, learn, same, text
from strategies import costs
from transformers.generation.candidate_generator import AssistedCandidateGenerator
from transformers.generation.stopping_criteria import ConfidenceCriteria

from simspec import CostModel, PolicyError, replay, synthetic
from simspec.policies import (  # fmt: skip
    confidence,
    ema_tiers,
    goodput,
    hf_heuristic,
    two_thresholds,
)

K = 12
STREAMS = {kind: twins.stream(kind, K=K) for kind in twins.KINDS}
COST = CostModel(np.arange(K + 1) / 16, 1 + np.arange(K + 1) / 64, [0.0], 0.0, 1.0)


def rules(K):
    """(policy, its twin) with the settings of a server, and some in which it moves often."""
    for low, high, attempts, start, lo, hi in ((0.4, 0.8, 128, 3, 1, 255), (0.3, 0.6, 5, 2, 2, 4)):
        policy = two_thresholds(low, high, attempts, start, lo, hi)
        yield policy, partial(twins.TwoThresholds, low, high, attempts, start, lo, hi, K)
    for tiers, start, ceiling, lag in (
        ((1, 3, 5, 7), 5, 0, True), ((1, 3, 5, 7), 5, 1.5, False), ((0, 1, 3), 1, 1.25, True),
        ((2, 4, 8), 8, 0.5, False),
    ):  # fmt: skip
        rest = (0.2, 5, 10, -0.25, 0.0)
        policy = ema_tiers(text(tiers), start, *rest, ceiling=ceiling, lag=lag)
        yield policy, partial(twins.LaggingEmaTiers, tiers, start, ceiling, lag, *rest)


@pytest.mark.parametrize("kind", twins.KINDS)
def test_rules_equal_their_twins_on_long_streams(kind):
    for policy, make_twin in rules(K):
        same(STREAMS[kind], policy, make_twin, COST)


def test_control_neighbours_of_a_rule_part_on_the_streams():
    """A setting of each rule that differs in one constant makes other rounds somewhere."""
    pairs = [
        (two_thresholds(attempts=5), two_thresholds(attempts=5, high=0.9)),
        (ema_tiers(), ema_tiers(lag=True)),
        (ema_tiers(), ema_tiers(ceiling=1.0)),
    ]
    for one, other in pairs:
        assert any(replay(trace, one) != replay(trace, other) for trace in STREAMS.values()), one


def test_two_thresholds_by_hand():
    policy = two_thresholds(attempts=2, start=2)
    assert drafts(policy, [2, 2, 3, 2, 0, 0, 0]) == [2, 2, 3, 3, 4, 4, 3, 3]
    assert drafts(two_thresholds(0.5, 0.75, 1, 4), [2, 3, 1]) == [4, 4, 4, 3]  # the band is closed


def test_ema_tiers_with_a_ceiling_by_hand():
    """e = 2 after [2] at weight 1: 3 stays by its thresholds, ceil(2 * 0.5) = 1 cuts it to 1. A
    step up is never cut.
    """
    made = partial(ema_tiers, "1/3/5", 3, 1.0, 1, 0)
    assert drafts(made(), [2]) == [3, 3]
    assert drafts(made(ceiling=0.5), [2]) == [3, 1]
    assert drafts(made(ceiling=0.5), [3]) == [3, 5]


@settings(max_examples=60)
@given(
    LONG, LENGTHS, st.data(), st.floats(0.05, 1), st.integers(1, 4), st.integers(0, 5),
    st.sampled_from([-0.5, -0.25, 0.0, 0.25]), st.sampled_from([-0.25, 0.0, 0.5]), SCOPE, costs(),
)  # fmt: skip
def test_ema_tiers_equals_its_twin(
    trace, tiers, data, weight, interval, warmup, down, up, scope, cost
):
    start = data.draw(st.sampled_from(tiers))
    policy = ema_tiers(text(tiers), start, weight, interval, warmup, down, up, scope)
    twin = partial(twins.EmaTiers, tiers, start, weight, interval, warmup, down, up)
    same(trace, policy, twin, cost)


def test_ema_tiers_by_hand():
    """From 5: e = 4, nothing accepted. After 15 rounds e = 4 * 0.8^15 = 0.14: 0.14 <= 3 - 0.75 and
    0.14 <= 1 - 0.75, down to 1. From there all accepted: e = 1 - 0.86 * 0.8^5 = 0.72 > 0.5: up to
    3, then e tends to 3 > 2.5, up to 5, and on.
    """
    lengths = drafts(ema_tiers(), [0] * 15 + [9] * 25)
    assert lengths[:15] == [5] * 15
    assert lengths[15:20] == [1] * 5
    assert lengths[20:25] == [3] * 5
    assert lengths[-1] == 7
    assert sorted(set(lengths)) == [1, 3, 5, 7]


def test_ema_tier_zero_probes_after_every_interval():
    """Tier 0 learns nothing and goes up one tier after 5 rounds; a tier of 1 that accepts nothing
    goes down after 5 more. A first tier of 0 has e = -1, which becomes 0 with tier 1.
    """
    lengths = drafts(ema_tiers("0/1/3", 0, warmup=0, down=0.0), [0] * 20)
    assert lengths == ([0] * 5 + [1] * 5) * 2 + [0]
    after = learn(ema_tiers("0/1", 0, interval=1, warmup=0), (0.0, -1.0, 0.0, 0.0), 0, 0)
    assert after.tolist() == [1.0, 0.0, 1.0, 1.0]


def test_ema_tiers_moves_down_at_its_threshold_and_up_beyond_it():
    """Both thresholds are 1 here, and so is the average."""
    policy = ema_tiers("1/3", 3, weight=1.0, interval=1, warmup=0, down=0.5, up=0.5)
    assert learn(policy, (1.0, 2.0, 0.0, 1.0), 1, 3)[0] == 0
    assert learn(policy, (0.0, 0.0, 0.0, 0.0), 1, 1)[0] == 0


@settings(max_examples=60)
@given(
    LONG, st.booleans(), st.sampled_from([0.125, 0.5, 1.0]), st.sampled_from([0.25, 0.875]),
    st.integers(1, 4), st.integers(0, 3), st.integers(0, 2), SCOPE, costs(),
)  # fmt: skip
def test_goodput_equals_its_twin(
    trace, measured, weight, prior, window, cooldown, shortest, scope, cost
):
    shortest = min(shortest, trace.K)
    price = "measured" if measured else "released"
    policy = goodput(price, weight, prior, window, cooldown, shortest, 0.37, scope)(trace, cost)
    prices = [1.0, *(k * 0.37 + 1.0 + 0.002 for k in range(1, trace.K + 1))]
    if measured:
        seconds = [twins.seconds_of(cost, k) for k in range(trace.K + 1)]
        prices = [each / seconds[0] for each in seconds]
    twin = partial(twins.Goodput, prices, weight, prior, window, cooldown, shortest)
    same(trace, policy, twin, cost)


def test_goodput_waits_only_after_a_jump():
    """From 3 to 2 is no jump: the next round chooses again. Control: from 3 to 1 it waits."""
    trace, cost = synthetic.iid(0.5, 1, 8, 3), CostModel.from_ratio(0.25, 3)
    policy = goodput(weight=1.0, prior=0.5, window=1, cooldown=5)(trace, cost)
    assert drafts(policy, [2, 0], 3) == [3, 2, 0]
    assert drafts(policy, [1, 0], 3) == [3, 1, 1]


def test_goodput_takes_the_longer_of_equal_lengths():
    """One of two first tokens accepted: 1.5 tokens at 1.5 plain steps equal plain decoding."""
    trace = synthetic.iid(0.5, 1, 8, 2)
    cost = CostModel([0.0, 0.5, 1.0], np.ones(3), [0.0], 0.0, 1.0)
    policy = goodput(weight=1.0, prior=0.5, window=2)(trace, cost)
    assert drafts(policy, [1, 0], 2) == [2, 2, 1]
    assert drafts(policy, [0, 0], 2) == [2, 2, 0]


def test_goodput_as_released_never_leaves_length_zero():
    trace, cost = synthetic.iid(0.9, 1, 8, 3), CostModel.from_ratio(0.25, 3)
    for price in ("measured", "released"):
        lengths = drafts(goodput(price)(trace, cost), [0] * 60 + [9] * 200, 3)
        assert lengths[-1] == 0
    assert drafts(goodput(shortest=1)(trace, cost), [0] * 60 + [9] * 200, 3)[-1] == 3


ROUNDS = 100_000 if os.environ.get("SIMSPEC_SLOW") else 3_000


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


def test_signal_is_what_the_policy_reads():
    policy = confidence(0.4, signal="probability")
    assert (confidence(0.4).reads, policy.reads) == (("confidence",), ("probability",))
    dropping = confidence(0.4, inclusive=False, signal="probability")
    assert (dropping.anticipates, confidence(0.4, inclusive=False).anticipates) == (True, False)
    with pytest.raises(PolicyError, match="signal is 'theta'"):
        confidence(0.4, signal="theta")


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
