"""The field's draft-length rules: each against its slow twin, and by hand."""

import math
from functools import partial

import field_rules as twins
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import costs, traces

from simspec import CostModel, DeferredPolicy, PolicyError, replay, synthetic
from simspec.policies import (
    adaptive_confidence,
    confidence,
    ema_tiers,
    exp3,
    fixed,
    goodput,
    in_a_row,
    kill_switch,
    make,
    product,
    tapout,
    throughput_aware,
    ucb,
)
from simspec.policies.exp3 import drawn_arm
from simspec.quantization import TABLES

SEED = st.integers(0, 2**64 - 1)
SCOPE = st.sampled_from(["sequence", "stream"])
LONG = traces(max_rows=60, max_sequences=3, optional=False)
LENGTHS = st.lists(st.integers(0, 6), min_size=1, max_size=4, unique=True).map(sorted)
# No sum of a few shares meets one of these: a tie would hang on rounding.
THRESHOLD = st.integers(0, 1009).map(lambda n: (n + 0.123) / 1011)


def text(lengths):
    return "/".join(map(str, lengths))


def resolved(policy, trace, cost):
    return policy(trace, cost) if isinstance(policy, DeferredPolicy) else policy


def same(trace, policy, make_twin, cost, seed=0, features=()):
    """Asserts that a replay makes the rounds of the twin."""
    names = [name for name, _ in trace.meta.features]
    grids = dict(trace.meta.features)
    columns = [(names.index(name), TABLES[grids[name]]) for name in features]
    rounds = replay(trace, policy, seed, cost)
    flat = list(zip(rounds.row.tolist(), rounds.drafted.tolist(), rounds.accepted.tolist()))
    walked = [flat[a:b] for a, b in zip(rounds.offset[:-1], rounds.offset[1:])]
    assert walked == twins.play(trace, policy, make_twin, cost, seed, columns)


def learn(policy, state, accepted, drafted, features=(), cost=1.0, K=16):
    """The state after a round, by the policy's own function."""
    shown = np.full((K, len(policy.reads)), np.nan)
    for slot, values in enumerate(features):
        shown[slot] = values
    state = np.array(state, dtype=float)
    policy.compiled()[1](np.array(policy.params), state, drafted, drafted, accepted, shown, cost)
    return state


def drafts(policy, outcomes, K=16):
    """Draft lengths before each round of `outcomes` (accepted tokens) and after the last."""
    more, _ = policy.compiled()
    params, state = policy.start()
    lengths = []
    for accepted in [*outcomes, None]:
        slot = 0
        while slot < K and more(params, state, slot, np.full((K, 0), np.nan), 0.5)[0]:
            slot += 1
        lengths.append(slot)
        if accepted is not None:
            state = learn(policy, state, min(accepted, slot), slot, K=K)
    return lengths


@settings(max_examples=60)
@given(
    LONG, LENGTHS, st.data(), st.floats(0.05, 1), st.integers(1, 4), st.integers(0, 5),
    st.sampled_from([-0.5, -0.25, 0.0, 0.25]), st.sampled_from([-0.25, 0.0, 0.5]), SCOPE, costs(),
)  # fmt: skip
def test_ema_tiers_equals_its_twin(  # noqa: PLR0913
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
    after = learn(ema_tiers("0/1", 0, interval=1, warmup=0), (0.0, -1.0, 0.0), 0, 0)
    assert after.tolist() == [1.0, 0.0, 1.0]


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
def test_goodput_equals_its_twin(  # noqa: PLR0913
    trace, measured, weight, prior, window, cooldown, shortest, scope, cost
):
    shortest = min(shortest, trace.K)
    price = "measured" if measured else "released"
    policy = goodput(price, weight, prior, window, cooldown, shortest, 0.37, scope)(trace, cost)
    prices = [1.0, *(1.002 + 0.37 * k for k in range(1, trace.K + 1))]
    if measured:
        prices = [twins.seconds_of(cost, k) for k in range(trace.K + 1)]
    twin = partial(twins.Goodput, prices, weight, prior, window, cooldown, shortest)
    same(trace, policy, twin, cost)


def test_goodput_by_hand():
    """Prior 0.5 at c = 0.25: 1, 1.5 / 1.25, 1.75 / 1.5, 1.875 / 1.75: one token. It is accepted,
    so a_1 = 1, a_2 = a_3 = 0.5: 1, 1.6, 2.5 / 1.5, 2.75 / 1.75: two, for three rounds at least.
    """
    trace, cost = synthetic.iid(0.5, 1, 8, 3), CostModel.from_ratio(0.25, 3)
    policy = goodput(weight=1.0, prior=0.5, window=1, cooldown=2)(trace, cost)
    assert drafts(policy, [1, 0, 0, 0, 0], 3) == [1, 2, 2, 2, 0, 0]


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
    state = learn(kill_switch(2, 1, 0.4), (0.0, 0.0, 0.0, 0.0), 0, 0)
    assert state.tolist() == [0, 0, 0, 0]  # a round that could not draft says nothing


@settings(max_examples=60)
@given(
    LONG, st.integers(1, 4), st.integers(0, 3), st.integers(0, 6), st.integers(0, 2), SCOPE, costs()
)
def test_in_a_row_equals_its_twin(trace, n, shortest, longest, bias, scope, cost):  # noqa: PLR0913
    shortest, longest = min(shortest, longest, trace.K), longest
    policy = in_a_row(n, shortest, longest, bias, scope=scope)
    same(trace, policy, partial(twins.InARow, n, shortest, min(longest, trace.K), bias), cost)


def test_in_a_row_by_hand():
    policy = in_a_row(2, longest=3)
    assert drafts(policy, [1, 1, 2, 2, 3, 3, 3, 0, 3, 0, 0]) == [1, 1, 2, 2, 3, 3, 3, 3, 3, 3, 3, 2]
    assert drafts(in_a_row(1, bias=1), [0, 1, 2]) == [1, 2, 3, 4]
    assert drafts(in_a_row(2, 0, 1), [0, 0]) == [0, 0, 1]


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


@settings(max_examples=60)
@given(LONG, LENGTHS, st.booleans(), st.sampled_from([0.0, 0.1, 2.0]), SCOPE, costs())
def test_ucb_equals_its_twin(trace, lengths, released, exploration, scope, cost):
    arms = [k for k in lengths if k <= trace.K]
    if not arms:
        return
    policy = ucb("released" if released else "ucb1", text(lengths), exploration, scope)(trace, cost)
    same(trace, policy, partial(twins.Ucb, released, arms, exploration, cost), cost)


def test_ucb_by_hand():
    """Arms 1 and 2 at c = 0.5: a round takes 1.5 and 2 s, the best rate is 3 / 2. Rewards 2/1.5/1.5
    and 1/2/1.5; then 0.889 + sqrt(ln 2) against 0.333 + sqrt(ln 2): arm 1. A reward of 0.444 there:
    0.667 + sqrt(ln 3 / 2) = 1.408 against 0.333 + sqrt(ln 3) = 1.381, arm 1; again 0.444: 0.593 +
    sqrt(ln 4 / 3) = 1.273 against 0.333 + sqrt(ln 4) = 1.511: arm 2.
    """
    trace, cost = synthetic.iid(0.5, 1, 8, 2), CostModel.from_ratio(0.5, 2)
    policy = ucb(arms="1/2", exploration=1.0)(trace, cost)
    state = policy.start()[1]
    chosen = []
    for accepted in (1, 0, 0, 0, 0):
        more, _ = policy.compiled()
        chosen.append(1 + int(more(np.array(policy.params), state, 0, np.zeros((2, 0)), 0.5)[0]))
        length = int(policy.params[3 + int(state[0])])
        chosen[-1] = length
        state = learn(policy, state, accepted, length, cost=1 + 0.5 * length, K=2)
    assert chosen == [1, 2, 1, 1, 2]


def test_ucb_as_released_is_greedy_after_the_first_pulls():
    """1, 2, 3, 4, 1, 2, 3, then the arm of the best mean for good, here the one that was lucky."""
    trace, cost = synthetic.iid(0.5, 1, 8, 4), CostModel.from_ratio(0.0, 4)
    policy = ucb("released")(trace, cost)
    assert drafts(policy, [0, 2, 0, 0, 0, 2, 0] + [1] * 30) == [1, 2, 3, 4, 1, 2, 3] + [2] * 31
    assert len(set(drafts(ucb()(trace, cost), [0, 2, 0, 0, 0, 2, 0] + [1] * 30)[8:])) > 1


@settings(max_examples=60)
@given(LONG, LENGTHS, st.sampled_from([0.0, 0.5, 1.0, 20.0]), SCOPE, costs(), SEED)
def test_exp3_equals_its_twin(trace, lengths, rate, scope, cost, seed):
    arms = [k for k in lengths if k <= trace.K]
    if not arms:
        return
    policy = exp3(text(lengths), rate, scope)(trace, cost)
    same(trace, policy, partial(twins.Exp3, arms, rate, cost), cost, seed)


@settings(max_examples=40)
@given(st.lists(st.floats(0, 50), min_size=4, max_size=4), st.integers(0, 200), st.floats(0, 5))
def test_exp3_draws_its_distribution(losses, t, rate):
    """Shares of 512 even draws against the definition: within one step an arm."""
    trace, cost = synthetic.iid(0.5, 1, 8, 4), CostModel.from_ratio(0.2, 4)
    params = np.array(exp3(rate=rate)(trace, cost).params)
    state = np.array([0.0, 1.0, t, *losses])
    drawn = [drawn_arm(params, state, (i + 0.5) / 512) for i in range(512)]
    shares = np.bincount([arm for arm, _ in drawn], minlength=4) / 512
    twin = twins.Exp3((1, 2, 3, 4), rate, cost)
    twin.losses, twin.t = losses, t + 1
    expected = twin.probabilities()
    assert np.abs(shares - expected).max() <= 1 / 512 + 1e-12
    assert all(chance == pytest.approx(expected[arm], rel=1e-9) for arm, chance in drawn)
    assert {arm for arm, _ in drawn} <= {i for i in range(4) if expected[i] > 0}


def test_exp3_by_hand():
    """Two arms, t = 1: 1/2 each. A loss of 0.25 on arm 0 counts 0.5; eta = sqrt(ln 2 / 4) in round
    2: P(0) = 1 / (1 + exp(0.5 eta)) = 0.4482.
    """
    trace, cost = synthetic.iid(0.5, 1, 8, 1), CostModel([0, 1], [1, 1], [0.0], 0.0, 1.0)
    policy = exp3("0/1")(trace, cost)  # the best rate is 1, of either arm
    params, state = policy.start()
    assert drawn_arm(params, state, 0.499)[0] == 0
    assert drawn_arm(params, state, 0.501)[0] == 1
    policy.compiled()[0](params, state, 0, np.zeros((1, 0)), 0.2)
    state = learn(policy, state, 0, 0, cost=4 / 3, K=1)
    assert state.tolist()[2:] == pytest.approx([1, 0.5, 0])
    assert drawn_arm(params, state, 0.3) == (0, pytest.approx(0.44815, abs=1e-5))
    eta = math.sqrt(math.log(2) / 4)
    assert drawn_arm(params, state, 0.3)[1] == pytest.approx(1 / (1 + math.exp(0.5 * eta)))


@settings(max_examples=60)
@given(LONG, THRESHOLD, st.sampled_from([0.0, 0.5, 1.0, 3.0]), st.integers(0, 6), SCOPE, costs())
def test_adaptive_confidence_equals_its_twin(trace, threshold, weight, samples, scope, cost):
    policy = adaptive_confidence(threshold, weight, samples, scope)
    twin = partial(twins.AdaptiveConfidence, threshold, weight, samples)
    same(trace, policy, twin, cost, features=("confidence",))


def test_adaptive_confidence_by_hand():
    """Accepted 0.9 0.6 0.5, rejected 0.7 0.4. FPR + 3 FNR at 0.9: 0 + 3 * 2/3; at 0.7: 1/2 + 2; at
    0.6: 1/2 + 1; at 0.5: 1/2 + 0; at 0.4: 1 + 0. Five samples are too few, a sixth of 0.5 fits.
    """
    policy = adaptive_confidence()
    state = learn(policy, policy.state0, 2, 3, (0.9, 0.6, 0.7))
    state = learn(policy, state, 1, 2, (0.5, 0.4))
    assert state[0] == 0.4
    state = learn(policy, state, 1, 1, (0.5,))
    assert state[0] == 0.5
    assert state[1] == 5
    assert learn(policy, state, 0, 0)[0] == 0.5


def test_adaptive_confidence_keeps_the_larger_of_equal_thresholds():
    """Rejected 0.8, accepted 0.9 and 0.7, weight 2: 0.9 loses 2 * 1/2, 0.7 loses 1."""
    policy = adaptive_confidence(weight=2.0, samples=0)
    state = learn(policy, policy.state0, 1, 2, (0.9, 0.8))
    assert learn(policy, state, 1, 1, (0.7,))[0] == 0.9


def test_adaptive_confidence_counts_every_code_of_a_grid():
    policy = adaptive_confidence(samples=0)
    state = np.array(policy.state0)
    for value in np.random.default_rng(1).permutation(TABLES["confidence"]):
        state = learn(policy, state, 1, 1, (value,))
        state = learn(policy, state, 0, 1, (value,))
    assert (state[4:260] == TABLES["confidence"]).all()
    assert (state[260:] == 1).all()


def test_adaptive_confidence_is_the_fixed_one_until_it_has_samples():
    trace = synthetic.iid(0.7, 4, 40, 6, confidence=True)
    never = adaptive_confidence(0.6, samples=1000)
    assert replay(trace, never) == replay(trace, confidence(0.6))
    assert replay(trace, adaptive_confidence(0.6)) != replay(trace, confidence(0.6))


@settings(max_examples=60)
@given(LONG, st.sampled_from([0.3, 0.8]), st.sampled_from([0.0, 2.0]), SCOPE, costs())
def test_tapout_equals_its_twin(trace, threshold, exploration, scope, cost):
    policy = tapout(threshold, exploration, 0.5, scope)
    twin = partial(twins.TapOut, threshold, exploration, 0.5, trace.K)
    same(trace, policy, twin, cost, features=("confidence", "entropy"))


def test_tapout_by_hand():
    """Each rule once; then the one of the best reward, since all have one pull."""
    policy, more = tapout(), tapout().compiled()[0]
    params, state = policy.start()
    shown = np.full((4, 2), np.nan)
    shown[0] = 0.79, 0.55  # below 0.8; sqrt(0.0825) = 0.287; 1 - sqrt(0.11) = 0.668 < 0.8
    answers = []
    for accepted in (0, 1, 0, 0):
        more(params, state, 0, shown, 0.5)
        answers.append((int(state[0]), bool(more(params, state, 1, shown, 0.5)[0])))
        state = learn(policy, state, accepted, 1, ((0.79, 0.55),), K=4)
    assert answers == [(0, False), (1, True), (2, False), (1, True)]
    assert state[4:].tolist() == [1, 0, 2, 0.5 * 0.25 + 0.5, 1, 0]


@settings(max_examples=40)
@given(LONG, st.sampled_from([0.05, 0.1, 0.2]), st.booleans(), costs())
def test_tail_pruning_is_product(trace, tail, inclusive, cost):
    """Stop once the product of max q along the draft is under `tail`: product with 1 - tail."""

    class Tail:
        def begin(self, u):
            pass

        def more(self, shown):
            return not shown or 1.0 - math.prod(q for (q,) in shown) <= 1.0 - tail

        def learn(self, shown, accepted, seconds):
            pass

    same(trace, product(1.0 - tail, shortest=1), Tail, cost, features=("confidence",))
    dropping = replay(trace, product(1.0 - tail, shortest=1, inclusive=False), 0, cost)
    assert (dropping.computed - dropping.drafted).max() <= 1


@pytest.mark.parametrize(
    "text",
    [
        *(f"ema_tiers:{bad}" for bad in (
            "3/1", "a/b", "1//3", "1/1", "256", "1.5", "true", "start=2", "start=1.0", "weight=2",
            "interval=0", "warmup=-1", "down=x", "up=999", "scope=prompt",
        )),
        *(f"throughput_aware:{bad}" for bad in (
            "harmonic", "lengths=0/1", "lengths=", "start=2", "window=0", "interval=0.5", "scope=1",
        )),
        *(f"goodput:{bad}" for bad in (
            "clock", "weight=-1", "prior=2", "window=0", "cooldown=-1", "shortest=256", "c=-1",
            "scope=x",
        )),
        *(f"kill_switch:{bad}" for bad in (
            "-1", "256", "2.0", "window=0", "threshold=2", "scope=x",
        )),
        *(f"in_a_row:{bad}" for bad in (
            "0", "shortest=-1", "longest=x", "shortest=3,longest=2", "bias=-1", "wasteful=2",
            "scope=x",
        )),
        *(f"ucb:{bad}" for bad in ("ucb2", "arms=4/3", "exploration=-1", "scope=x")),
        *(f"exp3:{bad}" for bad in ("4/3", "rate=-1", "rate=x", "scope=x")),
        *(f"adaptive_confidence:{bad}" for bad in (
            "2", "x", "weight=-1", "samples=-1", "scope=x", "K=-1",
        )),
        *(f"tapout:{bad}" for bad in ("2", "exploration=-1", "blend=2", "scope=x")),
    ],
)  # fmt: skip
def test_invalid_rules_are_refused_in_one_line(text):
    with pytest.raises(PolicyError) as caught:
        make(text, synthetic.iid(0.5, 1, 8, 4), CostModel.from_ratio(0.1, 4))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["throughput_aware:lengths=5/7", "ucb:arms=5/6", "exp3:arms=5"])
def test_lengths_beyond_the_recording_are_dropped_or_refused(text):
    trace, cost = synthetic.iid(0.5, 1, 8, 4), CostModel.from_ratio(0.1, 6)
    with pytest.raises(PolicyError, match="here drafts reach 4: take shorter lengths"):
        make(text, trace, cost)
    assert replay(trace, make("ucb:arms=1/5/6", trace, cost), 0, cost) == replay(trace, fixed(1))


@pytest.mark.parametrize("text", ["throughput_aware", "ucb", "exp3", "goodput"])
def test_planned_rules_refuse_costs_that_they_cannot_divide_by(text):
    trace = synthetic.iid(0.5, 1, 8, 4)
    with pytest.raises(PolicyError, match="prices drafts up to 2, .* plans up to .: measure"):
        make(text, trace, CostModel.from_ratio(0.1, 2))
    with pytest.raises(PolicyError, match="a round of 0 drafted tokens is free"):
        make(text, trace, CostModel(np.arange(5.0), np.zeros(5), [0.0], 0.0, 1.0))
