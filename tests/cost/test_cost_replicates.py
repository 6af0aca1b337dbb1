"""Replicates of costs, and of costs that are derived from others."""

import json
import pickle
from dataclasses import replace

import numpy as np
import pytest
from cost_replicates import replicated

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


CHANGES = {
    "reading": lambda cost: cost.reading(("confidence",)),
    "truncate": lambda cost: cost.truncate(3),
    "extend": lambda cost: cost.extend(cost.nodes + 3),
    "widen": lambda cost: cost.widen(cost.nodes + 9),
    "at": lambda cost: replace(cost, kv_verify=1e-9, kv_draft=1e-10, context=4).at(300),
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
    assert not {"replicates", "blocks"} & set(bundled().to_dict()["precision"])
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
