"""Draft lengths by outcomes and costs: each rule against its slow twin, and by hand."""

from functools import partial

import field_rules as twins
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from rule_exam import LENGTHS, LONG, SCOPE, THRESHOLD, drafts, learn, same, text
from strategies import costs

from simspec import CostModel, replay, synthetic
from simspec.policies import ema_tiers, goodput, in_a_row, kill_switch, throughput_aware


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
@given(LONG, LENGTHS, st.booleans(), st.integers(1, 4), st.integers(1, 5), SCOPE, costs())
def test_throughput_aware_equals_its_twin(trace, lengths, geometric, window, interval, scope, cost):
    kept = [k for k in lengths if 0 < k <= trace.K]
    if not kept:
        return
    start = kept[len(kept) // 2]
    variant = "geometric" if geometric else "released"
    policy = throughput_aware(variant, text(kept), start, window, interval, scope)(trace, cost)
    twin = partial(twins.ThroughputAware, geometric, kept, start, window, interval, cost)
    same(trace, policy, twin, cost)


def test_throughput_aware_by_hand():
    """Windows of 2 at length 1, tokens 1 of 2 accepted. Released: 1.5, 2, 2.5 tokens expected of 1,
    2, 3 drafted, over 1.2, 1.4, 1.6: most of 3. Geometric: 1.5, 1.75, 1.875: 1.25 is the same for 1
    and 2, and the shorter one is taken.
    """
    trace, cost = synthetic.iid(0.5, 1, 8, 3), CostModel.from_ratio(0.25, 3)
    cost = CostModel([0, 0.2, 0.4, 0.6], np.ones(4), [0.0], 0.0, 1.0)
    for variant, expected in (("released", 3), ("geometric", 1)):
        policy = throughput_aware(variant, "1/2/3", 1, window=2, interval=2)(trace, cost)
        assert drafts(policy, [1, 0], 3) == [1, 1, expected]


def test_throughput_aware_extrapolates_geometrically():
    """Shares 1 and 0.5: the third is 0.5 * 0.5, the fourth 0.25 * 0.25^(1/2). 2.5 / 1 against
    2.875 / 1.2, then 2.875 / 1.1.
    """
    trace = synthetic.iid(0.5, 1, 8, 4)
    for longest, expected in ((1.2, 2), (1.1, 4)):
        cost = CostModel(np.zeros(5), [1, 1, 1, 1, longest], [0.0], 0.0, 1.0)
        policy = throughput_aware(lengths="2/4", start=2, window=2, interval=2)(trace, cost)
        assert drafts(policy, [2, 1], 4) == [2, 2, expected]


def test_throughput_aware_as_released_leaps_from_one_token_to_the_longest():
    """At acceptance 0.6 and c = 0.2 the best length is 2, its modelled gain at 7 negative; as
    released, length 1 expects 1 + 7 * 0.6 tokens of 7.
    """
    trace, cost = synthetic.iid(0.6, 20, 200, 8, seed=1), CostModel.from_ratio(0.2, 8)
    seconds = {}
    for variant in ("released", "geometric"):
        rounds = replay(trace, throughput_aware(variant)(trace, cost), 0, cost)
        seconds[variant] = cost.seconds(rounds).sum()
        changes = list(zip(rounds.drafted, rounds.drafted[1:]))
        assert ((1, 7) in changes) == (variant == "released")
    assert seconds["geometric"] < 0.95 * seconds["released"]


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


def test_goodput_by_hand():
    """The longest until a draft is verified: 1 of 3 accepted, so a = 0.999, 0.001, 0.5. At c = 0.25
    1.999 / 1.25 is best: one token, from 3 more than 1 away, for three rounds at least. None is
    accepted: 1.001 / 1.25 is less than 1, so no draft.
    """
    trace, cost = synthetic.iid(0.5, 1, 8, 3), CostModel.from_ratio(0.25, 3)
    policy = goodput(weight=1.0, prior=0.5, window=1, cooldown=2)(trace, cost)
    assert drafts(policy, [1, 0, 0, 0, 0], 3) == [3, 1, 1, 1, 0, 0]


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


@settings(max_examples=60)
@given(LONG, st.integers(0, 6), st.integers(1, 6), THRESHOLD, SCOPE, costs())
def test_kill_switch_equals_its_twin(trace, k, window, threshold, scope, cost):
    k = min(k, trace.K)
    policy = kill_switch(k, window, threshold, scope)
    same(trace, policy, partial(twins.KillSwitch, k, window, threshold), cost)


def test_kill_switch_by_hand():
    """Shares 1, 0.5, 0.5, 0: means of three 0.667, then 0.333 < 0.4. No share comes after it."""
    assert drafts(kill_switch(2, 3, 0.4), [2, 1, 1, 0, 2, 2]) == [2, 2, 2, 2, 0, 0, 0]
    assert drafts(kill_switch(2, 2, 0.5), [1, 1, 1]) == [2, 2, 2, 2]  # at the threshold, not below
    state = learn(kill_switch(2, 1, 0.4), (0.0, 0.0, 0.0, 0.0), 0, 0)
    assert state.tolist() == [0, 0, 0, 0]  # a round that could not draft says nothing


@settings(max_examples=60)
@given(
    LONG, st.integers(1, 4), st.integers(0, 3), st.integers(0, 6), st.integers(0, 2), SCOPE, costs()
)
def test_in_a_row_equals_its_twin(trace, n, shortest, longest, bias, scope, cost):
    shortest, longest = min(shortest, longest, trace.K), longest
    policy = in_a_row(n, shortest, longest, bias, scope=scope)
    same(trace, policy, partial(twins.InARow, n, shortest, min(longest, trace.K), bias), cost)


def test_in_a_row_by_hand():
    policy = in_a_row(2, longest=3)
    assert drafts(policy, [1, 1, 2, 2, 3, 3, 3, 0, 3, 0, 0]) == [1, 1, 2, 2, 3, 3, 3, 3, 3, 3, 3, 2]
    assert drafts(in_a_row(1, bias=1), [0, 1, 2]) == [1, 2, 3, 4]
    assert drafts(in_a_row(2, 0, 1), [0, 0]) == [0, 0, 1]
    assert drafts(in_a_row(1), [4] * 6 + [0], K=4) == [1, 2, 3, 4, 4, 4, 4, 3]


@settings(max_examples=40)
@given(LONG, st.integers(1, 3), SCOPE)
def test_wasteful_computes_one_more_and_submits_the_same(trace, n, scope):
    plain, wasteful = (
        replay(trace, in_a_row(n, longest=3, wasteful=flag, scope=scope)) for flag in (False, True)
    )
    assert (plain.row == wasteful.row).all()
    assert (plain.drafted == wasteful.drafted).all()
    assert (plain.computed == plain.drafted).all()
    extra = wasteful.computed - wasteful.drafted
    assert (extra[wasteful.drafted == min(3, trace.K)] == 0).all()
    assert extra.max() <= 1


def test_wasteful_by_hand():
    trace = synthetic.iid(0.0, 1, 12, 4)
    rounds = replay(trace, in_a_row(3, wasteful=True))
    assert rounds.computed.tolist()[:10] == [2] * 10
    assert rounds.drafted.tolist()[:10] == [1] * 10
