"""SpecDec++ with a trained head: against its slow twin, as released, and its head."""

from functools import partial

import pytest
import rule_twins as twins
from hypothesis import given, settings
from hypothesis import strategies as st
from rule_twins import LONG, THRESHOLD, same
from strategies import SCALAR, costs

from simspec import CostModel, load_trace, replay, synthetic
from simspec.policies import make, parse, product, specdec_pp
from simspec.policy.predictor import fit_predictor, split_by_task
from simspec.trace.recordings import recordings

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
