"""CostModel: seconds of rounds, derived costs, and costs stated by their terms."""

from dataclasses import replace

import naive
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import costs
from token_cost import TokenCost

from simspec import CostModel, Rounds, Stepper, policies, sweep, synthetic
from simspec.cost.rounds import next_backlog, round_seconds

ROUND = st.tuples(st.integers(0, 6), st.booleans(), st.integers(0, 6)).map(
    lambda x: (0, x[0], d := x[0] - (x[1] and x[0] > 0), min(x[2], d))
)
TERMS = ("kv_verify", "kv_draft", "context")
TOKENS = TokenCost(8.0, 0.5, 0.01, 1.0, draft_kv=0.002, overhead=0.25)


@settings(deadline=None)
@given(costs(), st.lists(st.lists(ROUND, min_size=1, max_size=8), min_size=1, max_size=4))
def test_seconds_equal_the_slow_twin(cost, sequences):
    expected = [second for rounds in sequences for second in naive.seconds(rounds, cost)]
    assert cost.seconds(Rounds.join(sequences)).tolist() == expected


def test_backlog_by_hand():
    cost = CostModel([0, 1, 2], [10, 11, 12], [0, 0.5, 0.75], overhead=100, baseline=9)
    rounds = (0, 0, 0), (3, 0, 0), (3, 2, 2), (3, 2, 1)
    assert [next_backlog(*each) for each in rounds] == [1, 4, 1, 0]
    assert round_seconds(*cost.tables, 0, 0, 2) == 110  # not drafting leaves the debt unpaid
    assert round_seconds(*cost.tables, 2, 1, 1) == 100 + 2 + 11 + 0.5
    assert round_seconds(*cost.tables, 1, 1, 9) == 100 + 1 + 11 + 0.75  # saturates


def test_from_ratio_truncate_extend():
    cost = CostModel.from_ratio(0.25, 4)
    assert cost.draft.tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert cost.verify.tolist() == [1] * 5
    assert (cost.K, cost.baseline, cost.overhead, cost.catch_up.tolist()) == (4, 1, 0, [0])
    assert cost.truncate(2).extend(4) == cost != CostModel.from_ratio(0.2, 4)
    measured = CostModel([0, 1, 3], [5, 6, 6], [0], 0, 5)
    assert measured.extend(4).draft.tolist() == [0, 1, 3, 5, 7]
    assert measured.extend(3).verify.tolist() == [5, 6, 6, 6]
    for change, words in (
        (lambda: cost.truncate(5), "up to 4, asked for 5"),
        (lambda: cost.extend(3), "asked to extend to 3"),
        (lambda: CostModel.from_ratio(0.1, 0).extend(2), "asked to extend to 2"),
        (lambda: CostModel.from_ratio(-1, 2), "cost ratio is -1"),
        (lambda: cost.truncate(1).seconds(Rounds.join([[(0, 2, 2, 0)]])), "prices drafts up to 1"),
        (lambda: cost.at(-2), "context is -2"),
    ):
        with pytest.raises(ValueError, match=words):
            change()


def test_features_are_priced_once_per_computed_token():
    plain = CostModel.from_ratio(0.2, 4)
    cost = replace(plain, feature=0.05)
    assert cost.reading(()) is cost
    assert plain.reading(("confidence",)) is plain
    paid = cost.reading(("confidence",))
    np.testing.assert_allclose(paid.draft, plain.draft + 0.05 * np.arange(5))
    assert paid.reading(("confidence",)) is paid
    assert (paid.feature, paid.baseline, paid.verify.tolist()) == (0, 1, cost.verify.tolist())


def test_only_reading_policies_pay_for_features():
    trace = synthetic.iid(0.6, 3, 40, 4, seed=1, confidence=True)
    free, dear = CostModel.from_ratio(0.1, 4), replace(CostModel.from_ratio(0.1, 4), feature=0.3)
    names = ["fixed:2", "confidence:0.5"]
    tables = [sweep(trace, names, c, 1, progress=False).set_index("policy") for c in (free, dear)]
    cheap, charged = (table.speedup for table in tables)
    assert cheap["fixed:2"] == charged["fixed:2"]
    assert cheap["confidence:0.5"] > charged["confidence:0.5"]
    stepper = Stepper(policies.parse("confidence:0.5"), 4, 0, dear, (("confidence", "confidence"),))
    stepper.begin(0)
    assert stepper.end(2, 2, 1) == pytest.approx(0.2 + 1 + 2 * 0.3)


@settings(deadline=None)
@given(costs())
def test_costs_without_terms_are_as_before(cost):
    assert not set(TERMS) & set(cost.to_dict())
    assert cost.at(500) is cost


@given(st.floats(0, 1e5), st.floats(0, 1e5))
def test_context_moves_what_reads_the_cache(here, there):
    moved, stated = TOKENS.cost(4, here).at(there), TOKENS.cost(4, there)
    for name in ("draft", "verify", "baseline"):
        np.testing.assert_allclose(getattr(moved, name), getattr(stated, name), rtol=1e-6)
    assert (moved.context, moved.catch_up.tolist()) == (there, [0])
    assert CostModel.from_dict(moved.to_dict()) == moved


def test_terms_by_hand():
    cost = TOKENS.cost(2, 100)
    assert cost.baseline == 0.25 + 8 + 0.5 + 1
    assert cost.verify[:3].tolist() == [8 + 0.5 + 1, 8 + 1 + 1, 8 + 1.5 + 1]
    assert cost.draft.tolist() == [0, 1.2, 2.4]
    assert [getattr(cost, name) for name in TERMS] == [0.01, 0.002, 100]
