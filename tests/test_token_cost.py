"""Terms of costs: cached tokens, the kernel step, costs by tokens, and their fit by batch."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
from documents import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from shell import refused, simspec
from strategies import costs

from simspec import CostModel
from simspec.cost.batch import TokenCost, parse_terms
from simspec.cost.fit import fit_tokens
from simspec.cost.speed_table import SpeedRow, SpeedTable, read_speed_tables
from simspec.published import batch_tables
from simspec.trace.recordings import whole_cost

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


def table_of(tokens, batches, lengths, contexts=(0,), unit=True):
    """Speeds of these costs; without `unit` speedups alone."""
    tables = []
    for batch in batches:
        rows = []
        for K in lengths:
            for context in contexts:
                plain = tokens.plain(batch, context)
                speedup = 2.0 * plain / tokens.round(K, batch, context)
                rows.append(SpeedRow("", K, 2.0, speedup, plain if unit else 0.0, context))
        tables.append(SpeedTable("t", tuple(rows), batch))
    return tables


@pytest.mark.parametrize("unit", (True, False))
@settings(deadline=None, max_examples=30)
@given(*(st.floats(0.1, 4) for _ in range(4)), st.floats(1e-4, 1e-2))
def test_costs_by_tokens_are_recovered(unit, fixed, token, step, draft, kv):
    tokens = TokenCost(fixed, token, kv, step, draft)
    fit = fit_tokens(table_of(tokens, (1, 4, 16), (1, 3, 5), (100, 900), unit))
    scale = 1.0 if unit else tokens.plain(1, 100)
    found = {name: value * scale for name, value in asdict(fit.tokens).items()}
    for name, value in asdict(tokens).items():
        assert found[name] == pytest.approx(value, rel=1e-5, abs=1e-9)
    assert fit.residuals.worst < 1e-8
    assert fit.left_out.worst < 1e-5
    assert fit.cost.baseline * scale == pytest.approx(tokens.plain(1, 100))
    assert fit.cost.context == 100


def test_control_a_cost_that_is_not_linear_leaves_errors():
    tables = table_of(TokenCost(4.0, 0.5, step=1.0, draft=1.0), (1, 4, 16), (1, 3))
    bent = [replace(t, rows=tuple(replace(r, speedup=r.speedup * (1 + 0.1 * (t.batch == 4)))
                                  for r in t.rows)) for t in tables]  # fmt: skip
    fit = fit_tokens(bent)
    assert fit.residuals.worst > 0.01
    assert fit.left_out.worst > 0.05


def test_fit_says_what_it_cannot_separate():
    fit = fit_tokens(batch_tables()["beriltatli-smollm2-batches"])
    notes = " ".join(fit.cost.precision.warnings)
    assert "one draft length: step and draft are not separable" in notes
    assert "one context" in notes
    assert "caution: one K" in notes
    with pytest.raises(ValueError, match="expected at least two"):
        fit_tokens(batch_tables()["heterospec-c32"])
    with pytest.raises(ValueError, match="--depth is 0"):
        fit_tokens(batch_tables()["beriltatli-smollm2-batches"], 0)


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


def test_command_states_and_fits_terms(tmp_path):
    text = "pass=6,token=0.02,kv=4e-5,step=1,draft=0.5,overhead=1"
    out, _ = simspec(
        "cost", "--from-terms", text, "--context", 1000, "--out", "t.json", cwd=tmp_path
    )
    assert "0.04 us in a pass of the target" in out
    cost = CostModel.from_json(tmp_path / "t.json")
    assert cost.baseline == pytest.approx(7.06e-3)
    assert (cost.K, cost.context) == (8, 1000)
    out, _ = simspec(
        "cost", "--from-cost", "t.json", "--context", 500, "--kv-draft", 1e-9, "--step", 5e-4,
        "--depth", 4, "--out", "u.json", "--json", cwd=tmp_path,
    )  # fmt: skip
    stated = json.loads(out)["cost"]
    assert (stated["step"], stated["kv_draft"], stated["context"]) == (5e-4, 1e-9, 500)
    assert CostModel.from_json(tmp_path / "u.json").to_dict() == stated
    assert whole_cost(tmp_path / "x.parquet", str(tmp_path / "u.json")).K == 4
    lines = ["K,batch,context,accepted_length,tpot_ms,plain_tpot_ms"]
    for table in table_of(replace(TOKENS, draft_kv=0.0), (1, 4, 8), (1, 4), (50, 400)):
        for row in table.rows:
            times = (1e3 * row.plain_step / row.speedup, 1e3 * row.plain_step)
            lines.append(",".join(map(str, (row.K, table.batch, row.context, 2, *times))))
    (tmp_path / "speeds.csv").write_text("\n".join(lines))
    options = ("--from-table", "speeds.csv", "--by-batch", "--out", "v.json")
    out, _ = simspec("cost", *options, "--json", cwd=tmp_path)
    report = json.loads(out)
    assert report["terms"]["kv"] == pytest.approx(0.01, rel=1e-4)
    assert report["residuals"]["worst"] < 1e-6
    out, _ = simspec("cost", *options, cwd=tmp_path)
    assert "at batch sizes 1, 4, 8" in out
    assert [t.batch for t in read_speed_tables(tmp_path / "speeds.csv")] == [1, 4, 8]


@pytest.mark.parametrize(
    "options, words",
    [
        ((), "no source is given"),
        (("--from-terms", "pass=1", "--from-cost", "a.json"), "expected one of --from-table"),
        (("--from-terms", "pass=1", "--step", "1"), "--step says nothing with --from-terms"),
        (("--from-cost", "a.json", "--plain", "1"), "--plain says nothing with --from-cost"),
        (("--from-cost", "a.json"), "without terms"),
        (("--from-cost", "a.json", "--step", "9"), "the kernel step, cost more"),
        (("--from-table", "heterospec-c32", "--kv-draft", "1"), "--kv-draft says nothing"),
        (("--from-table", "nothing", "--by-batch"), "expected a CSV or JSON file, or one of"),
        (("--from-table", "heterospec-c32", "--by-batch"), "expected at least two"),
        (("--from-table", "x.csv", "--by-batch", "--batch", "2"), "drop one of them"),
    ],
)
def test_wrong_options_are_refused(tmp_path, options, words):
    CostModel.from_ratio(0.1, 4).to_json(tmp_path / "a.json")
    refused(tmp_path, "cost", *options, "--out", "b.json", words=words)
