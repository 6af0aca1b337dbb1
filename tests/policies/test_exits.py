"""Early exits and SpecDec++ against their definitions, rule by rule; they look at q alone."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import rule_twins as twins
from hypothesis import given, settings
from hypothesis import strategies as st
from rule_twins import LONG, THRESHOLD, same
from strategies import EXAM, SCALAR, costs, traces

from simspec import CostModel, load_trace, replay, synthetic
from simspec.policies import adaedl, confidence, entropy, make, parse, product, specdec_pp
from simspec.policy.predictor import fit_predictor, split_by_task
from simspec.trace.quantization import ENTROPY, TABLES
from simspec.trace.recordings import recordings

UNIT = st.floats(0, 1)


def lengths(policy, trace, row):
    """(computed, drafted) that the policy's own functions give a fresh round on this row, its
    caps aside.
    """
    params, state = policy.start()
    go_on = policy.compiled()[0]
    columns = trace.features(policy.reads)
    grids = [TABLES[trace.meta.features[column][1]] for column in columns]
    shown = np.full((trace.K, len(columns)), np.nan)
    for slot in range(trace.K + 1):
        go, keep = go_on(params, state, slot, shown, 0.5)
        if not go or slot == trace.K:
            return slot, slot if go or keep or slot == 0 else slot - 1
        for f, column in enumerate(columns):
            shown[slot, f] = grids[f][trace.feature[row, slot, column]]


def column(trace, name):
    index = [known for known, _ in trace.meta.features].index(name)
    return TABLES[trace.meta.features[index][1]][trace.feature[:, :, index]]


def stopped(trace, row, stops, inclusive):
    """(computed, drafted) by the rule: the first slot at which `stops` holds ends the draft."""
    for slot in range(trace.K):
        if stops(slot):
            return slot + 1, slot + 1 if inclusive else slot
    return trace.K, trace.K


@settings(deadline=None, max_examples=60)
@given(traces(optional=False), st.floats(0, 9), st.booleans(), st.data())
def test_entropy_stops_at_the_first_uncertain_token(trace, threshold, inclusive, data):
    row = data.draw(st.integers(0, trace.rows - 1))
    shown = column(trace, "entropy")[row]
    policy = entropy(threshold, inclusive)
    assert lengths(policy, trace, row) == stopped(
        trace, row, lambda slot: shown[slot] > threshold, inclusive
    )


def test_entropy_default_is_the_published_bound():
    """sqrt(0.15 H) > 0.3 and H > 0.6 are one rule, on every value that a recording can hold."""
    for h in ENTROPY:
        assert (math.sqrt(0.15 * h) > 0.3) == (h > 0.6)
    assert entropy().params[0] == 0.6
    assert entropy().name == "entropy:0.6"


@settings(deadline=None, max_examples=60)
@given(
    traces(optional=False), UNIT, st.sampled_from(["confidence", "theta"]), st.integers(1, 4),
    st.booleans(), st.data()
)  # fmt: skip
def test_product_is_the_predicted_rejection_probability(
    trace, threshold, predictor, shortest, inclusive, data
):
    row = data.draw(st.integers(0, trace.rows - 1))
    draws = column(trace, predictor)[row]
    policy = product(threshold, predictor, shortest, inclusive)

    def stops(slot):
        running = 1.0
        for value in draws[: slot + 1]:
            running *= value
        return slot + 1 >= shortest and 1.0 - running > threshold

    assert lengths(policy, trace, row) == stopped(trace, row, stops, inclusive)


@settings(deadline=None, max_examples=40)
@given(traces(optional=False), UNIT)
def test_product_resets_every_round(trace, threshold):
    """Each round of a replay is the round that a fresh policy makes on that row, up to its cap:
    nothing is carried over.
    """
    policy = product(threshold)
    rounds = replay(trace, policy)
    for row, computed in zip(rounds.row.tolist(), rounds.computed.tolist()):
        s = int(np.searchsorted(trace.offset, row, side="right")) - 1
        cap = min(
            trace.K, int(trace.budget[s]) - (row - int(trace.offset[s])) - 1, int(trace.depth[row])
        )
        assert computed == min(lengths(policy, trace, row)[0], cap)


def _adapted(outcomes, threshold, target, step, K):
    """th after each round (k, a): the rule of Draft & Verify, from its definition."""
    match, thresholds = 0.0, []
    for k, a in outcomes:
        if k:
            match = 0.5 * match + 0.5 * (a / k)
            wanted = (
                threshold + step if match < target else threshold if k == K else threshold - step
            )
            threshold = 0.9 * threshold + 0.1 * wanted
        thresholds.append(threshold)
    return thresholds


@settings(deadline=None, max_examples=60)
@given(
    outcomes=st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 5)).map(lambda x: (x[0], min(x))), max_size=20
    ),
    threshold=UNIT,
    target=UNIT,
    step=st.floats(0, 0.5),
)
def test_thresholds_follow_recent_acceptance(outcomes, threshold, target, step):
    policy = adaedl(threshold, target, step)
    params, state = policy.start()
    expected = _adapted(outcomes, threshold, target, step, 5)
    for (k, a), wanted in zip(outcomes, expected):
        policy.compiled()[1](params, state, k, k, a, np.full((5, 1), np.nan), 0.0)
        assert state[0] == pytest.approx(wanted, abs=1e-12)


def test_adaptive_exits_by_hand():
    """At th 0.8 a full draft accepted leaves m at 0.5 < 0.9, so th rises by 0.1 x 0.01; from m =
    0.9 on th falls unless k = K.
    """
    params, state = adaedl().start()
    observe, shown = adaedl().compiled()[1], np.full((8, 1), np.nan)
    for expected in (0.801, 0.802, 0.803, 0.803):  # m = 0.5, 0.75, 0.875, 0.9375
        observe(params, state, 8, 8, 8, shown, 0.0)
        assert state[0] == pytest.approx(expected, abs=1e-12)
    observe(params, state, 3, 3, 3, shown, 0.0)
    assert state[0] == pytest.approx(0.802, abs=1e-12)
    assert state[1] == pytest.approx(0.96875)
    go_on = adaedl(0.4).compiled()[0]
    for h, go in ((1.7, True), (1.8, True), (1.9, False)):  # 1 - sqrt(0.2 H) < 0.4 where H > 1.8
        shown = np.array([[h]])
        assert (
            bool(
                go_on(np.array(adaedl(0.4).params), np.array([0.4 - 1e-12, 0.0]), 1, shown, 0.5)[0]
            )
            is go
        )


DROPPING = [
    confidence(0.7, inclusive=False),
    entropy(2.0, inclusive=False),
    product(0.6, "theta", shortest=1, inclusive=False),
]


@pytest.mark.parametrize("policy", DROPPING, ids=lambda policy: policy.name)
@settings(deadline=None, max_examples=40)
@given(trace=traces(optional=False), data=st.data())
def test_dropping_exits_depend_on_q_only(policy, trace, data):
    """Other tokens accepted and another text, the drafter's q unchanged: from the same row the
    same draft and the same drop.
    """
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    left = np.repeat(trace.offset[1:], np.diff(trace.offset)) - np.arange(trace.rows)
    other = replace(
        trace, run=random.integers(0, np.minimum(trace.depth, left) + 1).astype(np.uint8)
    )
    replays = [replay(recording, policy) for recording in (trace, other)]
    drafts = [
        dict(zip(r.row.tolist(), zip(r.computed.tolist(), r.drafted.tolist()))) for r in replays
    ]
    for row in drafts[0].keys() & drafts[1].keys():
        assert drafts[0][row] == drafts[1][row]


def test_control_learning_policies_depend_on_acceptance():
    """Control: the adaptive exit reads outcomes, so its drafts from the same rows do change with
    them (it drops nothing, so it may).
    """
    trace = synthetic.iid(0.9, 1, 200, 4, confidence=True)
    trace = replace(trace, meta=replace(trace.meta, features=(("entropy", "entropy"),)))
    other = replace(trace, run=np.zeros_like(trace.run))
    replays = [replay(recording, adaedl(0.9, step=1.0)) for recording in (trace, other)]
    drafts = [dict(zip(r.row.tolist(), r.computed.tolist())) for r in replays]
    assert any(drafts[0][row] != drafts[1][row] for row in drafts[0].keys() & drafts[1].keys())
    exclusive = {policy.name for policy in EXAM if policy.name.endswith("inclusive=false")}
    assert exclusive >= {"confidence:0.7,inclusive=false", "entropy:2,inclusive=false"}


COST = CostModel.from_ratio(0.1, 16)


@pytest.fixture(scope="module")
def trace():
    return load_trace(recordings()["tiny-early_exit-coupled"])


@settings(max_examples=60)
@given(
    st.tuples(
        LONG, THRESHOLD, st.booleans(), st.booleans(), st.integers(1, 3), st.integers(0, 4), costs()
    )
)
def test_specdec_pp_equals_its_twin(drawn):
    trace, threshold, released, scalar, shortest, more, cost = drawn
    variant, longest = "released" if released else "paper", shortest + more
    predictor, features = (SCALAR, ("confidence", "entropy")) if scalar else ("theta", ("theta",))
    policy = specdec_pp(threshold, variant, predictor, shortest, longest).resolve(trace, cost)
    weights = SCALAR.weights if scalar else None
    twin = partial(twins.SpecDecPP, threshold, released, weights, shortest, longest)
    same(trace, policy, twin, cost, features=features)


def test_paper_by_a_recorded_probability_is_the_product_rule(trace):
    ours = specdec_pp(0.4, "paper", "theta").resolve(trace, COST)
    assert replay(trace, ours, 0, COST) == replay(trace, product(0.4, "theta"), 0, COST)


def test_fitted_head_learns_from_half_of_the_prompts(trace):
    head = fit_predictor(trace, split_by_task(trace)[0])
    fitted, by_hand = make("specdec_pp:predictor=fitted", trace, COST), specdec_pp(predictor=head)
    assert replay(trace, fitted, 0, COST) == replay(trace, by_hand.resolve(trace, COST), 0, COST)
    assert fitted.reads == ("confidence", "entropy")
    half = trace.select(split_by_task(trace)[1])
    other = specdec_pp(predictor=fit_predictor(half)).resolve(trace, COST)
    assert replay(trace, fitted, 0, COST) != replay(trace, other, 0, COST)  # control


@pytest.mark.parametrize(
    "text, name",
    [
        ("specdec_pp", "specdec_pp"),
        ("specdec_pp:0.7,released", "specdec_pp:threshold=0.7,variant=released"),
        ("specdec_pp:predictor=fitted,longest=8", "specdec_pp:predictor=fitted,longest=8"),
    ],
)
def test_names_read_back(text, name):
    assert parse(text).name == name
    assert parse(name).name == name


def test_nothing_to_fit_is_refused(trace):
    with pytest.raises(ValueError, match="confidence"):
        make("specdec_pp:predictor=fitted", synthetic.iid(0.5, 2, 12, 4), COST)
