"""Rules that engines propose: each against its slow twin on long streams, and by hand."""

from functools import partial

import field_rules
import numpy as np
import proposed_rules as twins
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rule_exam import LONG, SCOPE, drafts, same, text
from strategies import costs

from simspec import CostModel, PolicyError, replay, synthetic
from simspec.policies import BUILTIN, ema_tiers, kill_switch, make

acceptance_adaptive_k, block_prefix, probe_and_hold, censored_ema = (
    BUILTIN[name]
    for name in ("acceptance_adaptive_k", "block_prefix", "probe_and_hold", "censored_ema")
)
mtp_adaptive, rolling_window, staircase, two_thresholds = (
    BUILTIN[name] for name in ("mtp_adaptive", "rolling_window", "staircase", "two_thresholds")
)
K = 12
STREAMS = {kind: twins.stream(kind, K=K) for kind in twins.KINDS}
COST = CostModel(np.arange(K + 1) / 16, 1 + np.arange(K + 1) / 64, [0.0], 0.0, 1.0)
THRESHOLD = st.integers(0, 1009).map(lambda n: (n + 0.123) / 1011)


def rules(K):
    """(policy, its twin) with the settings of a proposal, and some in which it moves often."""
    yield from (
        (mtp_adaptive(variant, lo, hi), partial(twins.MtpAdaptive, variant, lo, min(hi, K)))
        for variant in ("streak", "single", "bucket", "carry")
        for lo, hi in ((3, 255), (1, 8), (2, 2))
    )
    for lo, hi in ((3, 255), (1, 255), (2, 7)):
        yield staircase(lo, hi), partial(twins.Staircase, lo, min(hi, K))
        yield censored_ema(lo, hi), partial(twins.CensoredEma, lo, min(hi, K))
    for threshold, window, bias, cooldown, lo, hi in (
        (11, (24, 20, 30), 0, 0, 1, 255), (1, (3, 2, 4), 0, 9, 2, 255), (2, (2, 2, 3), 1, 0, 1, 4),
    ):  # fmt: skip
        policy = rolling_window(threshold, text(window), bias, cooldown, lo, hi)
        made = partial(twins.RollingWindow, threshold, window, bias, cooldown, lo, min(hi, K))
        yield policy, made
    for settings_ in ((0.4, 256, 64, 0.05, 0, 16), (0.5, 8, 16, 0.2, 1, 6), (0.7, 4, 0, 0.1, 0, 5)):
        *front, hi = settings_
        policy = acceptance_adaptive_k(*settings_)
        yield policy, partial(twins.AcceptanceAdaptiveK, *front, min(hi, K))
    for low, high, attempts, start, lo, hi in ((0.4, 0.8, 128, 3, 1, 255), (0.3, 0.6, 5, 2, 2, 4)):
        policy = two_thresholds(low, high, attempts, start, lo, hi)
        yield policy, partial(twins.TwoThresholds, low, high, attempts, start, lo, hi, K)
    for lengths, weight in (((2, 4, 7), 0.2), ((1, 3, 12), 0.875)):
        policy = block_prefix(text(lengths), weight)
        yield policy, partial(twins.BlockPrefix, lengths, weight, 1.0)
    for pause in (64, 3):
        policy = kill_switch(4, 32, 0.6, pause=pause)
        yield policy, partial(twins.PausingKillSwitch, 4, 32, 0.6, pause)
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
        *((mtp_adaptive(a, 1), mtp_adaptive(b, 1)) for a, b in (
            ("streak", "single"), ("single", "bucket"), ("bucket", "carry"),
        )),
        (staircase(1), mtp_adaptive("streak", 1)),
        (rolling_window(1, "3/2/4"), rolling_window(1, "3/2/5")),
        (acceptance_adaptive_k(0.4, 16, 8), acceptance_adaptive_k(0.4, 16, 8, 0.0)),
        (censored_ema(), censored_ema(2)),
        (two_thresholds(attempts=5), two_thresholds(attempts=5, high=0.9)),
        (block_prefix(), block_prefix(headroom=0.5)),
        (ema_tiers(), ema_tiers(lag=True)),
        (ema_tiers(), ema_tiers(ceiling=1.0)),
        (kill_switch(4, 32, 0.6), kill_switch(4, 32, 0.6, pause=64)),
    ]  # fmt: skip
    for one, other in pairs:
        assert any(replay(trace, one) != replay(trace, other) for trace in STREAMS.values()), one


@pytest.mark.parametrize("kind", twins.KINDS)
@pytest.mark.parametrize("lengths, start, test, hold", [("1/2/3/4", 3, 4, 16), ("2/6", 2, 1, 3)])
def test_cascade_equals_its_twin_on_long_streams(kind, lengths, start, test, hold):
    policy = probe_and_hold(lengths, start, test, hold)(STREAMS[kind], COST)
    order = tuple(map(int, lengths.split("/")))
    same(STREAMS[kind], policy, partial(twins.Cascade, order, start, test, hold, COST), COST)


@settings(max_examples=25)
@given(LONG, st.integers(1, 3), st.integers(1, 5), SCOPE, costs())
def test_cascade_equals_its_twin_at_any_costs(trace, test, hold, scope, cost):
    lengths = [k for k in (1, 2, 4) if k <= trace.K]
    policy = probe_and_hold("1/2/4", 1, test, hold, scope)(trace, cost)
    same(trace, policy, partial(twins.Cascade, lengths, 1, test, hold, cost), cost)


@settings(max_examples=25)
@given(LONG, st.sampled_from(["streak", "single", "bucket", "carry"]), st.integers(1, 4), SCOPE)
def test_mtp_adaptive_equals_its_twin_on_recordings(trace, variant, lo, scope):
    lo = min(lo, trace.K)
    policy = mtp_adaptive(variant, lo, 5, scope)
    same(trace, policy, partial(twins.MtpAdaptive, variant, lo, min(5, trace.K)), COST)


@settings(max_examples=25)
@given(LONG, st.integers(1, 4), THRESHOLD, st.integers(1, 4), SCOPE)
def test_a_pausing_kill_switch_equals_its_twin(trace, window, threshold, pause, scope):
    k = min(2, trace.K)
    policy = kill_switch(k, window, threshold, scope, pause)
    same(trace, policy, partial(twins.PausingKillSwitch, k, window, threshold, pause), COST)


def test_a_long_pause_is_the_kill_switch():
    """Control: a short one drafts again."""
    ends = [replay(STREAMS["jumps"], kill_switch(4, 32, 0.6, pause=p)) for p in (0, 10**6, 9)]
    assert ends[0] == ends[1] != ends[2]
    assert ends[0].drafted[-1] == 0 < ends[2].drafted[1000:].max()


def test_mtp_adaptive_by_hand():
    """From n = 1, level 20, top 40: each full accept adds 1, so the 20th lengthens. At n = 2, D =
    20: a full accept of 2 adds 1, none accepted takes 2.
    """
    assert drafts(mtp_adaptive("bucket", 1), [1] * 20) == [1] * 20 + [2]
    down = drafts(mtp_adaptive("bucket", 1), [1] * 20 + [0] * 10)
    assert down == [1] * 20 + [2] * 10 + [1]
    assert drafts(mtp_adaptive("streak", 1), [1, 1, 2, 2, 2, 2]) == [1, 1, 2, 2, 2, 2, 3]
    # 20 rejected tokens shorten: 7 rounds of 3 at n = 3; a full accept in between starts anew.
    streak = partial(drafts, mtp_adaptive("streak", 1))
    up = [1, 1, 2, 2, 2, 2]
    assert streak([*up, *[0] * 7])[-2:] == [3, 2]
    assert streak([*up, *[0] * 6, 3, *[0] * 6])[-1] == 3


def test_staircase_by_hand():
    """2 full accepts at 1, 4 at 2, 10 at 3, 6 at 4, then 6: two more to 8, 12, 16."""
    climb = drafts(staircase(1), [9] * 22 + [99] * 9, K=64)
    assert climb[:22] == [1] * 2 + [2] * 4 + [3] * 10 + [4] * 6
    assert climb[22:] == [6] * 3 + [8] * 2 + [12] * 2 + [16] * 2 + [24]
    assert drafts(staircase(16), [0] * 7, K=64)[-1] == 16
    assert drafts(staircase(1), [99] * 36 + [0] * 7, K=64)[-8:] == [64, 48, 32, 24, 16, 12, 8, 6]


def test_censored_ema_by_hand():
    """2 -> all accepted 3 -> all 4; none accepted 3; again 2.25; again 1.6875, rounded 2. Halves
    go up: 1.5 after 2 with none accepted.
    """
    assert drafts(censored_ema(), [2, 3, 0, 0, 0]) == [2, 3, 4, 3, 2, 2]
    assert drafts(censored_ema(), [0, 0]) == [2, 2, 1]


def test_acceptance_adaptive_k_by_hand():
    """Four drafts of the longest; then depth 1 alone clears 0.5, and each third round probes."""
    policy = acceptance_adaptive_k(0.5, 4, 3, 0.0, longest=3)
    assert drafts(policy, [1, 1, 1, 1, 1, 1], 3) == [3, 3, 3, 3, 1, 3, 1]
    assert drafts(acceptance_adaptive_k(0.5, 2, 0, longest=3), [0, 0, 0], 3) == [3, 3, 0, 0]
    assert drafts(acceptance_adaptive_k(0.5, 2, 0, shortest=1, longest=3), [0, 0], 3) == [3, 3, 1]


def test_cascade_by_hand():
    """A draft of 2 costs 1.5 plain rounds. Nothing accepted: off for 3 rounds, then tested again.
    All accepted: 3 / 1.5 = 2; 1 gives 2 / 1.25 = 1.6 and 4 gives 5 / 2, so 4 is held.
    """
    trace = synthetic.iid(0.5, 1, 8, 4)
    cost = CostModel(np.arange(5) / 4, np.ones(5), [0.0], 0.0, 1.0)
    policy = probe_and_hold("1/2/4", 2, 1, 3)(trace, cost)
    rounds = replay(synthetic.iid(0.0, 1, 9, 4), policy, 0, cost)
    assert rounds.drafted.tolist()[:8] == [2, 0, 0, 0, 2, 0, 0, 0]
    rounds = replay(synthetic.iid(1.0, 1, 60, 4), policy, 0, cost)
    assert rounds.drafted.tolist()[:8] == [2, 1, 4, 4, 4, 4, 2, 1]


def test_a_draft_that_earns_its_cost_exactly_is_drafted():
    """1 of 2 drafts of one token accepted: 3 tokens in rounds of 1.5. Control: a little dearer."""
    from simspec.policies.probe_and_hold import _observe  # noqa: PLC0415

    for seconds, kept in ((1.5, 1.0), (1.5 + 2**-20, 0.0)):
        state, params = np.array([1.0, 0, 2, 0, 0, 0, 0, 0]), np.array([2.0, 5, 1, 1])
        for accepted in (1, 0):
            _observe(params, state, 1, 1, accepted, np.zeros((4, 0)), seconds)
        assert state[0] == kept
        assert state[2] == 5


def test_two_thresholds_by_hand():
    policy = two_thresholds(attempts=2, start=2)
    assert drafts(policy, [2, 2, 3, 2, 0, 0, 0]) == [2, 2, 3, 3, 4, 4, 3, 3]
    assert drafts(two_thresholds(0.5, 0.75, 1, 4), [2, 3, 1]) == [4, 4, 4, 3]  # the band is closed


def test_block_prefix_by_hand():
    """e = 6, then 3, 1.5, 0.75 at weight 0.5: 4 >= 3 + 1, 4 >= 2.5, 2 >= 1.75."""
    assert drafts(block_prefix(weight=0.5), [0, 0, 0, 2]) == [7, 4, 4, 2, 4]


def test_a_prefix_of_a_block_costs_a_block():
    """Accepted tokens of a prefix are those of the whole block, cut: the rule needs no other pass.

    Control: a drafter that computes token by token is cheaper for a shorter prefix.
    """
    trace, policy = STREAMS["jumps"], block_prefix()
    rounds = replay(trace, policy)
    assert (rounds.accepted == np.minimum(trace.run[rounds.row], rounds.drafted)).all()
    flat = CostModel(np.where(np.arange(K + 1), 0.25, 0.0), np.ones(K + 1), [0.0], 0.0, 1.0)
    seconds = flat.seconds(rounds)
    assert seconds[rounds.drafted > 0].tolist() == [1.25] * (rounds.drafted > 0).sum()
    assert len(set(COST.seconds(rounds))) > 2


def test_ema_tiers_with_a_ceiling_by_hand():
    """e = 2 after [2] at weight 1: 3 stays by its thresholds, ceil(2 * 0.5) = 1 cuts it to 1. A
    step up is never cut.
    """
    made = partial(ema_tiers, "1/3/5", 3, 1.0, 1, 0)
    assert drafts(made(), [2]) == [3, 3]
    assert drafts(made(ceiling=0.5), [2]) == [3, 1]
    assert drafts(made(ceiling=0.5), [3]) == [3, 5]


def test_ema_tiers_with_lag_decides_one_round_later():
    """Every decision comes a round later, since here none depends on the length."""
    now, late = (
        drafts(ema_tiers("1/3/5", 3, 1.0, 1, 0, lag=lag), [0] * 3) for lag in (False, True)
    )
    assert now == [3, 1, 1, 1]
    assert late == [3, 3, 1, 1]


@pytest.mark.parametrize(
    "wrong",
    [
        *(f"mtp_adaptive:{bad}" for bad in ("state5", "shortest=0", "longest=256", "scope=x")),
        *(f"staircase:{bad}" for bad in ("0", "longest=x", "scope=x")),
        *(f"censored_ema:{bad}" for bad in ("0", "longest=0", "scope=x")),
        *(f"rolling_window:{bad}" for bad in (
            "0", "window=3", "window=a/b/c", "window=1/1/0", "bias=-1", "cooldown=-1", "shortest=0",
            "longest=0", "scope=x",
        )),
        *(f"acceptance_adaptive_k:{bad}" for bad in (
            "2", "window=0", "probe=-1", "hysteresis=2", "shortest=9,longest=8", "longest=0",
            "shortest=-1", "scope=x",
        )),
        *(f"probe_and_hold:{bad}" for bad in (
            "0/1", "start=9", "start=1.0", "test=0", "hold=0", "scope=x", "5/6",
        )),
        *(f"two_thresholds:{bad}" for bad in (
            "2", "high=-1", "low=0.9", "attempts=0", "start=0", "start=3,longest=2", "scope=x",
        )),
        *(f"block_prefix:{bad}" for bad in ("0/2", "weight=2", "headroom=-1", "scope=x")),
        *(f"kill_switch:{bad}" for bad in ("pause=-1", "pause=x")),
        *(f"ema_tiers:{bad}" for bad in ("ceiling=-1", "lag=2")),
    ],
)  # fmt: skip
def test_invalid_proposals_are_refused_in_one_line(wrong):
    with pytest.raises(PolicyError) as caught:
        make(wrong, synthetic.iid(0.5, 1, 8, 4), CostModel.from_ratio(0.1, 4))
    assert "\n" not in str(caught.value)


def test_twins_of_old_rules_are_those_of_the_field():
    """The lagging twin without lag or ceiling is SGLang's slot."""
    rest = (0.2, 5, 10, -0.25, 0.0)
    plain = partial(field_rules.EmaTiers, (1, 3, 5, 7), 5, *rest)
    same(STREAMS["jumps"], ema_tiers("1/3/5/7", 5, *rest), plain, COST)
