"""Replicates of costs: the file, its limits, and costs that are derived from others."""

import json
import math
import pickle
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from cost_replicates import replicated
from hypothesis import given
from hypothesis import strategies as st

from simspec import CostModel
from simspec.cost.batch import with_draft_row
from simspec.cost.provenance import LISTS, CostPrecision
from simspec.cost.table import CostTable, load_cost

FILE = "traces/tiny-eagle-greedy.cost.json"


def bundled():
    """Bundled costs as if they had been measured without replicates."""
    cost = load_cost(FILE)
    return replace(cost, precision=replace(cost.precision, replicates={}, blocks=0, disturbed=0))


PARTS = ("draft", "verify", "catch_up", "overhead", "feature", "node")


@pytest.mark.parametrize("predictor", [None, 0.001])
def test_replicates_are_ratios_to_the_plain_step(predictor, tmp_path):
    cost = replicated(replace(bundled(), predictor=predictor), R=5)
    cost.to_json(tmp_path / "c.json")
    read = load_cost(tmp_path / "c.json")
    assert read == cost
    assert read.precision.blocks == cost.precision.blocks > 0
    assert len(read.replicates) == 5
    for r, replicate in enumerate(read.replicates):
        assert replicate.baseline == cost.baseline
        assert replicate.precision is None
        for part in (*PARTS, *(() if cost.predictor is None else ("predictor",))):
            ratios = np.array(cost.precision.replicates[part][r])
            np.testing.assert_array_equal(getattr(replicate, part), ratios * cost.baseline)
        same = {part: getattr(cost, part) for part in (*PARTS, "predictor")}
        assert replace(replicate, **same) == replace(cost, precision=None)


def test_files_without_replicates_are_as_before():
    cost = bundled()
    assert cost.replicates == ()
    assert not {"replicates", "blocks", "disturbed"} & set(cost.to_dict()["precision"])


CHANGES = {
    "reading": lambda cost: cost.reading(("confidence",)),
    "truncate": lambda cost: cost.truncate(3),
    "extend": lambda cost: cost.extend(cost.nodes + 3),
    "widen": lambda cost: cost.widen(cost.nodes + 9),
    "at": lambda cost: replace(cost, kv_verify=1e-9, kv_draft=1e-10, context=4).at(300),
    "with_draft_row": partial(with_draft_row, seconds=0.25),
    "two": lambda cost: cost.truncate(3).widen(9).reading(("theta",)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_derived_costs_derive_their_replicates(name):
    change, cost = CHANGES[name], replicated(bundled(), R=4)
    derived = change(cost)
    assert derived.precision is None
    expected = [change(replicate) for replicate in cost.replicates]
    assert list(derived.replicates) == expected
    assert len({json.dumps(r.to_dict()) for r in expected}) == 4
    assert change(bundled()).replicates == ()
    assert list(pickle.loads(pickle.dumps(derived)).replicates) == expected


def test_cells_between_contexts_interpolate_their_replicates():
    low, high = (replicated(bundled(), R=4, seed=s) for s in (0, 1))
    table = CostTable((1,), (10, 20), ((low, high),))
    between = table.at(1, 15)
    assert len(between.replicates) == 4
    for ours, a, b in zip(between.replicates, low.replicates, high.replicates, strict=True):
        np.testing.assert_allclose(ours.verify, (a.verify + b.verify) / 2)
        np.testing.assert_allclose(ours.draft, (a.draft + b.draft) / 2)
    bare = CostTable((1,), (10, 20), ((low, bundled()),))
    assert bare.at(1, 15).replicates == ()
    assert CostTable.from_dict(table.to_dict()).at(1, 15).replicates == between.replicates


def _damaged(change):
    data = replicated(replace(bundled(), predictor=0.001), R=3).to_dict()
    change(data["precision"])
    return data


def _set(path, value):
    def change(precision):
        *keys, last = path
        for key in keys:
            precision = precision[key]
        precision[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_set(["replicates"], []), "other parts"),
        (_set(["replicates"], {"draft": []}), "other parts"),
        (_set(["replicates", "more"], [1, 1, 1]), "other parts"),
        (_set(["replicates", "overhead"], 1), "no list of 0"),
        (_set(["replicates", "node"], [1, 1]), "of node are no list of 3"),
        (_set(["replicates", "draft", 1], [0.0]), "no lists of one length"),
        (_set(["replicates", "draft"], [[], [], []]), "no lists of one length"),
        (_set(["replicates", "draft"], [[0.0, 1.0]] * 3), "precision of draft has 2 entries"),
        (_set(["replicates", "draft", 2, 0], 0.5), "draft begin with work"),
        (_set(["replicates", "catch_up", 2, 0], 0.5), "catch_up begin with work"),
        (_set(["replicates", "verify", 0, 0], math.nan), "verify hold other values"),
        (_set(["replicates", "feature", 0], -1), "feature hold other values"),
        (_set(["replicates", "feature", 0], True), "feature hold other values"),
        (_set(["replicates", "feature", 0], "1"), "feature hold other values"),
        (_set(["replicates", "overhead", 1], 1e300), "expected at most 1e"),
        (_set(["blocks"], -1), "blocks are disturbed"),
        (_set(["blocks"], 2.0), "blocks are disturbed"),
        (_set(["disturbed"], 10**6), "blocks are disturbed"),
        (_set(["replicates", "predictor"], [1.0]), "of predictor are no list of 3"),
    ],
)  # fmt: skip
def test_damaged_replicates_are_one_line(change, reason, tmp_path):
    path = tmp_path / "c.json"
    path.write_text(json.dumps(_damaged(change)))
    with pytest.raises(ValueError, match=reason) as caught:
        load_cost(path)
    assert "\n" not in str(caught.value)


def test_replicates_beyond_all_floats_are_the_files_error(tmp_path):
    """Ratios that are numbers, times a plain step that makes them none; no warning (pytest)."""
    data = replicated(replace(bundled(), baseline=10.0), R=3).to_dict()
    data["precision"]["replicates"]["draft"][1][1] = 1e308
    path = tmp_path / "c.json"
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError, match="draft is not a non-empty list of finite seconds"):
        load_cost(path)


def test_replicates_are_limited_and_agree_about_a_predictor():
    cost = bundled()
    assert cost.predictor is None
    with pytest.raises(ValueError, match="1 replicates, expected 2 to 1000"):
        replicated(cost, R=1)
    with pytest.raises(ValueError, match="1001 replicates"):
        replicated(cost, R=1001)
    with_one = replicated(cost, R=2)
    with pytest.raises(ValueError, match="replicates of predictor"):
        replace(with_one, predictor=0.1)
    with pytest.raises(ValueError, match="replicates of predictor"):
        replace(replicated(replace(cost, predictor=0.1), R=2), predictor=None)


@given(st.data())
def test_any_json_in_place_of_replicates_is_one_line_or_read(data):
    """Values anywhere within them are replaced by any JSON."""
    leaf = st.none() | st.booleans() | st.integers(-9, 9) | st.floats() | st.text(max_size=3)
    json_value = st.recursive(leaf, lambda v: st.lists(v, max_size=3) | st.dictionaries(
        st.sampled_from([*PARTS, "predictor", "x"]), v, max_size=3), max_leaves=6)  # fmt: skip
    precision = replicated(bundled(), R=2).precision.to_dict()
    precision["disturbed"] = 1
    holder, key = precision, data.draw(st.sampled_from(["replicates", "blocks", "disturbed"]))
    while isinstance(holder[key], (dict, list)) and holder[key] and data.draw(st.booleans()):
        holder = holder[key]
        key = data.draw(st.sampled_from(sorted(holder) if isinstance(holder, dict)
                                        else range(len(holder))))  # fmt: skip
    holder[key] = data.draw(json_value)
    cost = bundled()
    try:
        read = replace(cost, precision=CostPrecision.from_dict(precision))
    except ValueError as error:
        assert "\n" not in str(error)
    else:
        assert len(read.replicates) in (0, 2)
        assert CostModel.from_dict(read.to_dict()).replicates == read.replicates
        assert all(
            len(getattr(r, p)) == len(getattr(cost, p)) for r in read.replicates for p in LISTS
        )
