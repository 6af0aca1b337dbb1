import json
from dataclasses import replace

import naive
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import costs

from simspec import CostModel, Rounds, Stepper, policies, sweep, synthetic
from simspec.cost.rounds import next_backlog, round_seconds

ROUND = st.tuples(st.integers(0, 6), st.booleans(), st.integers(0, 6)).map(
    lambda x: (0, x[0], d := x[0] - (x[1] and x[0] > 0), min(x[2], d))
)


@settings(deadline=None)
@given(costs(), st.lists(st.lists(ROUND, min_size=1, max_size=8), min_size=1, max_size=4))
def test_seconds_equal_the_slow_twin(cost, sequences):
    expected = [second for rounds in sequences for second in naive.seconds(rounds, cost)]
    assert cost.seconds(Rounds.join(sequences)).tolist() == expected


def test_backlog_by_hand():
    cost = CostModel([0, 1, 2], [10, 11, 12], [0, 0.5, 0.75], overhead=100, baseline=9)
    assert [
        next_backlog(0, 0, 0),
        next_backlog(3, 0, 0),
        next_backlog(3, 2, 2),
        next_backlog(3, 2, 1),
    ] == [1, 4, 1, 0]
    assert round_seconds(*cost.tables, 0, 0, 2) == 110  # not drafting leaves the debt unpaid
    assert round_seconds(*cost.tables, 2, 1, 1) == 100 + 2 + 11 + 0.5
    assert round_seconds(*cost.tables, 1, 1, 9) == 100 + 1 + 11 + 0.75  # saturates


def test_from_ratio_truncate_extend():
    cost = CostModel.from_ratio(0.25, 4)
    assert cost.K == 4
    assert cost.draft.tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert cost.verify.tolist() == [1] * 5
    assert (cost.baseline, cost.overhead, cost.catch_up.tolist()) == (1, 0, [0])
    assert cost.truncate(2).extend(4) == cost
    measured = CostModel([0, 1, 3], [5, 6, 6], [0], 0, 5)
    assert measured.extend(4).draft.tolist() == [0, 1, 3, 5, 7]
    assert measured.extend(3).verify.tolist() == [5, 6, 6, 6]
    for change, words in (
        (lambda: cost.truncate(5), "up to 4, asked for 5"),
        (lambda: cost.extend(3), "asked to extend to 3"),
        (lambda: CostModel.from_ratio(0.1, 0).extend(2), "asked to extend to 2"),
        (lambda: CostModel.from_ratio(-1, 2), "cost ratio is -1"),
        (lambda: cost.truncate(1).seconds(Rounds.join([[(0, 2, 2, 0)]])), "prices drafts up to 1"),
    ):
        with pytest.raises(ValueError, match=words):
            change()


@settings(deadline=None)
@given(costs())
def test_json_round_trip(tmp_path_factory, cost):
    path = tmp_path_factory.mktemp("cost") / "c.json"
    cost.to_json(path)
    assert CostModel.from_json(path) == cost


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda d: d.pop("verify"), r"missing keys \['verify'\]"),
        (lambda d: d.update(gpu="x"), r"unknown keys \['gpu'\]"),
        (lambda d: d.update(draft=[0, "a", 2]), "draft is"),
        (lambda d: d.update(draft=[0.5, 1, 2]), r"draft\[0\] is 0.5"),
        (lambda d: d.update(verify=[1, 1]), "draft has 3 entries and verify 2"),
        (lambda d: d.update(draft=7), "draft is 7"),
        (lambda d: d.update(verify=[1, -1, 1]), "verify is not"),
        (lambda d: d.update(catch_up=[]), "catch_up is not"),
        (lambda d: d.update(baseline=0), "baseline 0"),
        (lambda d: d.update(overhead=float("nan")), "overhead nan"),
        (lambda d: d.update(name=3), "name is 3"),
        (lambda d: d.update(baseline=True), "baseline is True"),
        (lambda d: d.update(verify=[1, 10**400, 1]), "too large"),
    ],
)
def test_bad_json_is_one_line_with_the_path(tmp_path, change, words):
    path = tmp_path / "c.json"
    data = CostModel.from_ratio(0.1, 2).to_dict()
    change(data)
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError, match=words) as caught:
        CostModel.from_json(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unreadable_files(tmp_path):
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "text.json").write_text("seconds")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    for name in ("list.json", "text.json", "deep.json", "absent.json"):
        with pytest.raises(ValueError, match="not a cost model"):
            CostModel.from_json(tmp_path / name)


def test_equality():
    a, b = CostModel.from_ratio(0.1, 3), CostModel.from_ratio(0.2, 3)
    assert a == CostModel.from_ratio(0.1, 3)
    assert a != b
    assert a != 0.1
    assert isinstance(a.draft, np.ndarray)


def test_features_are_priced_once_per_computed_token():
    plain = CostModel.from_ratio(0.2, 4)
    cost = replace(plain, feature=0.05)
    assert cost.reading(()) is cost
    assert plain.reading(("confidence",)) is plain
    paid = cost.reading(("confidence",))
    np.testing.assert_allclose(paid.draft, plain.draft + 0.05 * np.arange(5))
    assert paid.feature == 0
    assert paid.reading(("confidence",)) is paid
    assert paid.verify.tolist() == cost.verify.tolist()
    assert paid.baseline == cost.baseline


def test_only_reading_policies_pay_for_features():
    trace = synthetic.iid(0.6, 3, 40, 4, seed=1, confidence=True)
    free, dear = CostModel.from_ratio(0.1, 4), replace(CostModel.from_ratio(0.1, 4), feature=0.3)
    speed = [
        sweep(trace, ["fixed:2", "confidence:0.5"], c, 1, progress=False)
        .set_index("policy")
        .speedup
        for c in (free, dear)
    ]
    assert speed[0]["fixed:2"] == speed[1]["fixed:2"]
    assert speed[0]["confidence:0.5"] > speed[1]["confidence:0.5"]
    stepper = Stepper(policies.parse("confidence:0.5"), 4, 0, dear, (("confidence", "confidence"),))
    stepper.begin(0)
    assert stepper.end(2, 2, 1) == pytest.approx(0.2 + 1 + 2 * 0.3)


def test_negative_feature_time_is_refused():
    with pytest.raises(ValueError, match="feature"):
        replace(CostModel.from_ratio(0.1, 4), feature=-1.0)


def test_failed_write_leaves_only_the_old_file(tmp_path, monkeypatch):
    path, old = tmp_path / "c.json", CostModel.from_ratio(0.1, 2)
    old.to_json(path)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(ValueError, match="c.json cannot be written: No space left on device"):
        CostModel.from_ratio(0.2, 2).to_json(path)
    assert CostModel.from_json(path) == old
    assert [p.name for p in tmp_path.iterdir()] == ["c.json"]


def test_from_dict_is_the_inverse_of_to_dict():
    cost = CostModel([0, 1], [2, 3], [0, 0.5], 0.25, 2, "name", "device", 0.125)
    assert CostModel.from_dict(cost.to_dict()) == cost
    with pytest.raises(ValueError, match="holds a list"):
        CostModel.from_dict([])
