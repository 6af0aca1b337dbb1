"""Terms of costs: cached tokens, the kernel step, costs by tokens and by rows."""

import json
from dataclasses import replace

import numpy as np
import pytest
from documents import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import costs

from simspec import CostModel
from simspec.cost.batch import BatchCost, StepLoad, TokenCost, parse_terms
from simspec.cost.table import CostTable

TERMS = ("kv_verify", "kv_draft", "step", "context")
TOKENS = TokenCost(8.0, 0.5, 0.01, 2.0, 1.0, draft_kv=0.002, overhead=0.25)


@settings(deadline=None)
@given(costs())
def test_costs_without_terms_are_as_before(cost):
    data = cost.to_dict()
    assert not set(TERMS) & set(data)
    assert cost.at(500) is cost
    assert CostModel.from_dict(data) == cost


@pytest.mark.parametrize(
    "path", sorted((ROOT / "traces").glob("*.cost.json")), ids=lambda p: p.name
)
def test_bundled_files_are_written_as_they_were_read(path, tmp_path):
    CostModel.from_json(path).to_json(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()


@given(st.floats(0, 1e5), st.floats(0, 1e5))
def test_context_moves_what_reads_the_cache(here, there):
    moved, stated = TOKENS.cost(4, here).at(there), TOKENS.cost(4, there)
    for name in ("draft", "verify", "baseline"):
        np.testing.assert_allclose(getattr(moved, name), getattr(stated, name), rtol=1e-6)
    assert moved.context == there
    assert moved.catch_up.tolist() == [0]
    assert CostModel.from_dict(json.loads(json.dumps(moved.to_dict()))) == moved


def test_terms_by_hand():
    cost = TOKENS.cost(2, 100)
    assert cost.baseline == 0.25 + 8 + 0.5 + 1
    assert cost.verify[:3].tolist() == [8 + 0.5 + 1, 8 + 1 + 1 + 2, 8 + 1.5 + 1 + 2]
    assert cost.draft.tolist() == [0, 1.2, 2.4]
    assert (cost.kv_verify, cost.kv_draft, cost.step, cost.context) == (0.01, 0.002, 2, 100)
    for K in range(3):
        seconds = cost.overhead + cost.draft[K] + cost.verify[K]
        assert seconds == pytest.approx(TOKENS.round(K, 1, 100))
    assert cost.truncate(1).extend(3).verify[3] == cost.verify[3]
    two = CostModel([0, 1], [4, 7], [0], 0, 4, step=2)
    assert two.extend(3).verify.tolist() == [4, 7, 8, 9]  # the kernel step is not paid again


@pytest.mark.parametrize(
    "change, words",
    [
        ({"kv_verify": -1}, "kv_verify is -1"),
        ({"kv_draft": float("inf")}, "kv_draft is inf"),
        ({"step": float("nan")}, "step is nan"),
        ({"context": -5}, "context is -5"),
        ({"step": 1.5}, "the kernel step, cost more"),
        ({"kv_verify": 0.01, "context": 200}, "200 cached tokens"),
        ({"kv_draft": 0.01, "context": 50}, "state smaller terms"),
    ],
)
def test_terms_beyond_the_lists_are_refused(change, words):
    with pytest.raises(ValueError, match=words):
        replace(CostModel.from_ratio(0.1, 3), **change)
    data = CostModel.from_ratio(0.1, 3).to_dict() | change
    with pytest.raises(ValueError, match=words):
        CostModel.from_dict(data)
    with pytest.raises(ValueError, match="kv_verify is 'x', expected seconds"):
        CostModel.from_dict(data | {"kv_verify": "x"})
    with pytest.raises(ValueError, match="context is -2"):
        TOKENS.cost(2).at(-2)


@pytest.mark.parametrize("drafted, seconds", [(0, 1.0), (1, 1.3), (2, 1.4), (3, 1.5)])
def test_a_batch_takes_its_pass_by_rows(drafted, seconds):
    """Rows beyond `passes` follow the line of `verify`."""
    cost = CostModel([0, 0.1, 0.2], [1, 1.4, 2], [0], 0.0, 1.0, passes=[1, 1.3, 1.4])
    one = np.ones(1, np.int64)
    load = StepLoad(
        2 * one, drafted * one, 0 * one, drafted * one, (drafted > 0) * one, np.zeros(1),
        np.zeros(1), np.zeros(1),
    )  # fmt: skip
    if drafted == 3:
        seconds = np.interp(1.5, [0, 1, 2], [1, 1.4, 2])
    assert BatchCost(cost, 2).seconds(load)[0] == pytest.approx(seconds)


def test_passes_survive_a_file_and_lie_between_contexts():
    low, high = (CostModel([0, 1], [x, 2 * x], [0], 0.0, x, passes=[x, x + 1]) for x in (1.0, 3.0))
    table = CostTable((2,), (0, 10), ((low, high),))
    again = CostTable.from_dict(json.loads(json.dumps(table.to_dict())))
    assert again.at(2, 5).passes.tolist() == [2, 3]
    for bad in ([], [-1.0], "x", [float("nan")]):
        with pytest.raises(ValueError, match="passes"):
            CostModel.from_dict(low.to_dict() | {"passes": bad})


@pytest.mark.parametrize(
    "text, words",
    [
        ("token=1", "pass is missing"),
        ("pass=1,pass=2", "pass is given twice"),
        ("pass=1,fixed=2", "'fixed' is no term"),
        ("pass=one", "pass is 'one', expected milliseconds"),
        ("pass=-1", "expected a time >= 0"),
        ("pass=nan", "expected a time >= 0"),
        ("pass=0", "expected a pass to take time"),
        ("", "'' is no term"),
    ],
)
def test_terms_that_are_none(text, words):
    with pytest.raises(ValueError, match=words):
        parse_terms(text)
