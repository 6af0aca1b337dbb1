import os
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import costs

from simspec import CostModel
from simspec.cost.table import CostTable, load_cost

FIELDS = "draft", "verify", "catch_up", "overhead", "baseline", "feature"
UNIT = CostModel.from_ratio(0.1, 2)


@st.composite
def tables(draw, K=3):
    batch, context = (
        tuple(sorted(draw(st.sets(st.integers(least, 40), min_size=1, max_size=4))))
        for least in (1, 0)
    )
    backlog = draw(st.integers(0, 2))
    cell = (
        costs(K)
        .filter(lambda c: len(c.catch_up) > backlog)
        .map(lambda c: replace(c, catch_up=c.catch_up[: backlog + 1]))
    )
    one = draw(st.lists(cell, min_size=2, max_size=4))
    # every row and every column keeps a cell: row i at a random context, the rest at random
    kept = {(i, draw(st.integers(0, len(context) - 1))) for i in range(len(batch))}
    kept |= {(draw(st.integers(0, len(batch) - 1)), j) for j in range(len(context))}
    whole = [
        [(i, j) in kept or draw(st.booleans()) for j in range(len(context))]
        for i in range(len(batch))
    ]
    cells = [
        [
            replace(one[(i + 3 * j) % len(one)], name=f"{b} {c}") if whole[i][j] else None
            for j, c in enumerate(context)
        ]
        for i, b in enumerate(batch)
    ]
    return CostTable(batch, context, cells, "random")


def line(c, contexts, values):
    """Between its two neighbours, by hand."""
    for (c0, t0), (c1, t1) in zip(zip(contexts, values), zip(contexts[1:], values[1:])):
        if c0 <= c <= c1:
            return t0 + (t1 - t0) * (c - c0) / (c1 - c0)


@given(tables())
def test_measured_cells_are_returned_unchanged(table):
    for b, row in zip(table.batch, table.cells):
        for c, cell in zip(table.context, row):
            if cell is not None:
                assert table.at(b, c) is cell


@given(tables(), st.data())
def test_contexts_are_interpolated_linearly(table, data):
    i = data.draw(st.integers(0, len(table.batch) - 1))
    known = [(c, cell) for c, cell in zip(table.context, table.cells[i]) if cell is not None]
    contexts = [c for c, _ in known]
    c = data.draw(st.integers(contexts[0], contexts[-1]))
    cost = table.at(table.batch[i], c)
    near = [cell for x, cell in known if x <= c][-1], [cell for x, cell in known if x >= c][0]
    for field in FIELDS:
        values = [np.asarray(getattr(cell, field)) for _, cell in known]
        expected = values[0] if len(known) == 1 else line(c, contexts, values)
        np.testing.assert_allclose(getattr(cost, field), expected, rtol=1e-12, atol=1e-12)
        two = [getattr(cell, field) for cell in near]
        assert (np.minimum(*two) <= getattr(cost, field)).all()
        assert (getattr(cost, field) <= np.maximum(*two)).all()


@given(tables(), st.integers(-2, 50), st.integers(-2, 50))
def test_batch_is_rounded_up_and_never_extrapolated(table, batch, context):
    wider = [i for i, b in enumerate(table.batch) if b >= batch]
    if batch < 1 or not wider:
        words = f"batch sizes 1 to {table.batch[-1]}, asked for {batch}"
        with pytest.raises(ValueError, match=words):
            table.at(batch, table.context[0])
        return
    size = table.batch[wider[0]]
    known = [c for c, cell in zip(table.context, table.cells[wider[0]]) if cell is not None]
    if known[0] <= context <= known[-1]:
        assert table.at(batch, context) == table.at(size, context)
    else:
        words = rf"contexts {known[0]} to .* at batch {size}, asked for {context}"
        with pytest.raises(ValueError, match=words):
            table.at(batch, context)


def test_batch_is_optional_in_a_table_of_one():
    cheap, dear = CostModel.from_ratio(0.1, 2), CostModel.from_ratio(0.5, 2)
    table = CostTable((1, 8), (64,), ((cheap,), (dear,)))
    assert table.at(8) is dear
    assert table.at(np.int64(2), np.int64(64)) is dear
    assert CostTable((1,), (64,), ((cheap,),)).at() is cheap
    with pytest.raises(ValueError, match=r"several sizes of batch, \[1, 8\]: say which"):
        table.at()
    with pytest.raises(ValueError, match="batch is 1.5, expected int"):
        table.at(1.5)


def test_single_cell_simplifies_to_its_cost_model():
    assert CostTable((1,), (64,), ((UNIT,),)).simplest() is UNIT
    for table in (CostTable((4,), (64,), ((UNIT,),)), CostTable((1,), (64, 65), ((UNIT, UNIT),))):
        assert table.simplest() is table


@given(tables())
def test_json_round_trip(tmp_path_factory, table):
    path = tmp_path_factory.mktemp("table") / "t.json"
    table.to_json(path)
    assert CostTable.from_json(path) == table == load_cost(path)
    assert os.listdir(path.parent) == ["t.json"]
