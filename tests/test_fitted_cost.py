"""Costs fitted to a table: recovered where they are affine, and one-line refusals of files."""

import hashlib
import json

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from shell import refused, run

from simspec import CostModel, policies, replay, synthetic
from simspec.cost.fit import CONVENTION, PredictionErrors, fit_cost, fit_line, leave_one_length_out
from simspec.cost.speed_table import SpeedRow, SpeedTable, read_speed_table, speed_table
from simspec.published import published_table
from simspec.replay import metrics

CSV = "task,K,accepted_length,speedup,note\n" + "".join(
    f"{task},{K},{1 + 0.5 * K},{(1 + 0.5 * K) / (1.2 + 0.1 * K)},x\n"
    for task in "ab"
    for K in (2, 4, 7)
)


def table_of(costs, length=2.0):
    """A table with these {K: round cost} in plain steps."""
    rows = (SpeedRow("", K, length, length / cost, 0.0) for K, cost in costs.items())
    return SpeedTable("t", tuple(rows))


@given(
    st.floats(0.3, 3),
    st.floats(0, 1),
    st.lists(st.integers(1, 16), min_size=2, max_size=6, unique=True),
)
def test_affine_costs_are_recovered(intercept, step, lengths):
    fitted = fit_cost(table_of({K: intercept + step * K for K in lengths}), 16)
    for K in range(1, 17):
        seconds = fitted.cost.overhead + fitted.cost.draft[K] + fitted.cost.verify[K]
        assert seconds == pytest.approx(intercept + step * K)
    assert fitted.cost.verify[0] == fitted.cost.baseline == 1
    assert fitted.residuals.worst == pytest.approx(0, abs=1e-9)
    assert (fitted.left_out is None) == (len(lengths) < 3)


@given(st.lists(st.floats(1, 3), min_size=3, max_size=6))
def test_no_line_has_smaller_squared_errors(costs):
    rows = table_of(dict(enumerate(costs, 1))).rows
    line = fit_line(rows)

    def loss(intercept, step):
        return sum(((intercept + step * row.K) / row.round_cost - 1) ** 2 for row in rows)

    best = loss(line.intercept, line.step)
    for intercept, step in ((1e-4, 0), (-1e-4, 0), (0, 1e-4), (0, -1e-4), (1e-4, -1e-4)):
        assert loss(line.intercept + intercept, line.step + step) >= best - 1e-12


def test_replayed_speedup_is_that_of_the_table():
    """Fixed K on a recording costs what the table says a round of K costs."""
    cost = fit_cost(table_of({2: 1.4, 4: 1.6, 7: 1.9})).cost
    trace = synthetic.iid(0.7, 20, 50, 7, seed=2)
    rounds = replay(trace, policies.fixed(4))
    figures = metrics.summary(rounds, trace, cost)
    whole = int((rounds.drafted == 4).sum())
    seconds = cost.seconds(rounds)[rounds.drafted == 4].sum()
    assert seconds == pytest.approx(1.6 * whole)
    assert figures.speedup == pytest.approx(figures.committed_per_round / 1.6, rel=0.05)
    plain = metrics.summary(replay(trace, policies.fixed(0)), trace, cost)
    assert plain.speedup == pytest.approx(1)


# The published table: most that a speedup at a draft length left out is off, and the median.
LEFT_OUT = {
    "vllm-20780-eagle1": (0.0112, 0.0053),
    "vllm-20780-eagle3": (0.0379, 0.0164),
    "draft-length-audit": (0.0195, 0.0091),
    "specbundle/LLaMA3.1-Instruct-8B": (0.0143, 0.0044),
    "specbundle/Llama-3.1-8B-Instruct-SpecForge": (0.0543, 0.0064),
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_fitted_costs_predict_a_length_that_was_left_out(name):
    """By the written costs alone: a table without K, its cost at K, the table's own length."""
    table, errors = published_table(name), []
    for K in table.lengths:
        others = SpeedTable("others", tuple(row for row in table.rows if row.K != K))
        cost = fit_cost(others, 8).cost
        step = (cost.draft[K] + cost.verify[K]) / cost.baseline
        errors += [r.accepted_length / step / r.speedup - 1 for r in table.rows if r.K == K]
    found = PredictionErrors.of(errors)
    assert (found.worst, found.median) == pytest.approx(LEFT_OUT[name], abs=6e-5)
    assert sorted(errors) == pytest.approx(sorted(leave_one_length_out(table)))


def test_control_a_quadratic_cost_is_not_predicted():
    errors = leave_one_length_out(table_of({K: 1 + 0.05 * K * K for K in (1, 3, 5, 7)}))
    assert PredictionErrors.of(errors).median > 0.1


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=9))
def test_summary_of_errors(errors):
    found = PredictionErrors.of(errors)
    sizes = sorted(map(abs, errors))
    assert found.count == len(errors)
    assert found.worst == sizes[-1]
    assert found.median == pytest.approx(float(np.median(sizes)))
    assert found.median <= found.p90 <= found.worst


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "t.csv").write_text(CSV)
    return tmp_path


def test_file_says_that_it_was_fitted_and_from_what(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    options = ("--from-table", "t.csv", "--out", "c.json", "--depth", 9)
    code, out, err = run(capsys, "cost", *options)
    assert (code, err) == (0, "")
    cost = CostModel.from_json("c.json")
    digest = hashlib.sha256(CSV.encode()).hexdigest()
    notes = "\n".join(cost.precision.warnings)
    for words in ("fitted, not measured: 6 rows of t.csv", digest, CONVENTION, "others extrap"):
        assert words in notes
        assert words in out
    assert "median 0.00%, 90th percentile 0.00%, worst 0.00% of 6" in notes
    assert cost.device == "fitted to t.csv"
    assert cost.origin.sitting == f"table sha256 {digest}"
    assert set(cost.precision.samples["draft"]) == {0}
    assert cost.K == 9
    assert cost.draft[9] + cost.verify[9] == pytest.approx(1.2 + 0.9)


def test_json_report_and_sweep_with_the_fitted_cost(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    synthetic.iid(0.7, 9, 30, 5).save("r.parquet")
    options = ("--from-table", "vllm-20780-eagle3", "--out", "c.json", "--json")
    code, out, _ = run(capsys, "cost", *options)
    data = json.loads(out)
    assert code == 0
    assert data["cost"] == json.loads((folder / "c.json").read_text())
    assert data["cost"]["baseline"] == pytest.approx(0.00707)
    assert data["step"] == pytest.approx(0.1466, abs=1e-4)
    assert data["left_out"]["worst"] == pytest.approx(0.0379, abs=1e-4)
    options = ("--policy", "fixed:3", "--policy", "beta_ts", "--cost", "c.json", "--json")
    code, out, err = run(capsys, "sweep", "r.parquet", *options)
    assert code == 0
    assert "fitted, not measured" in err  # what a cost file warns of is said with every table
    rows = json.loads(out)["rows"]
    assert {row["cost"] for row in rows} == {"vllm-20780-eagle3"}
    assert all(row["speedup"] > 0.5 for row in rows)


UNITS = {
    "speedup": (["speedup"], lambda s: [s], 1.0),
    "throughput": (
        ["tokens_per_second", "plain_tokens_per_second"],
        lambda s: [s * 800, 800],
        8 / 800,
    ),
    "latency": (["tpot_ms", "plain_tpot_ms"], lambda s: [10 / s, 10], 0.010),
}


@pytest.mark.parametrize("unit", UNITS)
def test_units_give_the_same_line(unit, tmp_path):
    columns, cells, plain = UNITS[unit]
    speeds = {1: 1.3, 3: 1.6, 7: 1.4}
    data = {
        "columns": ["K", "accepted_length", *columns],
        "rows": [[K, 1.5, *cells(speed)] for K, speed in speeds.items()],
        "batch": 8,
    }
    table = speed_table(data)
    assert [row.speedup for row in table.rows] == pytest.approx(list(speeds.values()))
    assert table.plain_step == pytest.approx(plain)
    (tmp_path / "t.json").write_text(json.dumps(data))
    lines = [data["columns"], *data["rows"]]
    (tmp_path / "t.csv").write_text("\n".join(",".join(map(str, line)) for line in lines))
    read = [read_speed_table(tmp_path / name) for name in ("t.json", "t.csv")]
    assert read[0].rows == table.rows
    assert [row.speedup for row in read[1].rows] == [row.speedup for row in table.rows]


@pytest.mark.parametrize("unit", ("throughput", "latency"))
def test_plain_decoding_is_given_beside_the_table(unit, tmp_path):
    (column, plain), cells, _ = UNITS[unit]
    path = tmp_path / "t.csv"
    path.write_text(f"K,accepted_length,{column}\n1,1.5,{cells(1.3)[0]}\n3,2,{cells(1.6)[0]}\n")
    table = read_speed_table(path, plain=cells(1.3)[1])
    assert [row.speedup for row in table.rows] == pytest.approx([1.3, 1.6])
    options = ("--from-table", "t.csv", "--out", "c.json")
    refused(tmp_path, "cost", *options, words=f"column {plain} is missing")
    refused(tmp_path, "cost", *options, "--plain", 0, words=f"{plain} is 0")
    refused(tmp_path, "cost", *options, "--plain", "nan", words=f"{plain} is nan")


def test_a_batch_size_is_selected(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("K,accepted_length,speedup,batch\n1,1.5,1.2,1\n3,2,1.1,1\n1,1.5,1,8\n3,2,1,8\n")
    assert [row.speedup for row in read_speed_table(path, 8).rows] == [1, 1]
    for batch, words in ((None, "--batch"), (4, "asked for 4")):
        with pytest.raises(ValueError, match=words):
            read_speed_table(path, batch)


HEAD = "K,accepted_length,speedup\n"


@pytest.mark.parametrize(
    "content, words",
    [
        ("", "it is empty"),
        (HEAD, "1 to 20000 rows"),
        (HEAD + "1,1.5\n", "row 1 has not 3 cells"),
        (HEAD + "1,1.5,1.2\n2,x,1.2\n", "row 2: accepted_length is 'x'"),
        (HEAD + "1,1.5,nan\n", "speedup is nan"),
        (HEAD + "1,1.5,inf\n", "speedup is inf"),
        (HEAD + "1,1.5,-1\n", "speedup is -1"),
        (HEAD + "0,1,1\n", "K is 0, expected 1 to 255 drafted tokens: plain decoding has"),
        (HEAD + "-1,1,1\n", "K is -1"),
        (HEAD + "nan,1,1\n", "K is nan"),
        (HEAD + "1.5,1,1\n", "K is 1.5"),
        (HEAD + "300,1,1\n", "K is 300"),
        (HEAD + "1,2.2,1\n", "accepted_length is 2.2 at K = 1"),
        (HEAD + "1,0.8,1\n", "count the target's own token too"),
        (HEAD + "1,1.5,1.2\n", "expected at least two"),
        (HEAD + "1,1.5,1.2\n3,1.5,1.4\n", "plain steps, expected both terms >= 0"),
        ("K,speedup\n1,1\n", "accepted_length is missing"),
        ("K,accepted_length\n1,1\n", "no speed"),
        ("K,accepted_length,tpot_ms\n1,1,1\n", "plain_tpot_ms is missing"),
        ("K,K,accepted_length,speedup\n1,1,1,1\n", "given twice"),
        ("K,accepted_length,speedup,tpot_ms\n1,1,1,1\n", "expected one of"),
        ("K,accepted_length,speedup,batch\n1,1,1,0\n", "batch is 0"),
        (HEAD + "1,1.5,1.2\n" * 20001, "1 to 20000 rows"),
        (HEAD + '"1,1.5,1.2\n', "not a table"),
        (b"\xff\xfe", "not a table"),
        (b"K" * 4_000_001, "over 4000000 bytes"),
    ],
)
def test_invalid_tables_are_refused(tmp_path, content, words):
    (tmp_path / "t.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    refused(tmp_path, "cost", "--from-table", "t.csv", "--out", "c.json", words=words)


@pytest.mark.parametrize(
    "data, words",
    [
        ([], "no columns and rows"),
        ({"columns": "K", "rows": []}, "columns is not a list"),
        ({"columns": ["K"], "rows": {}}, "rows is not a list"),
        ({"columns": ["K", "accepted_length"], "rows": [[1, True]], "speedup": 1}, "no number"),
        ({"columns": ["K", "accepted_length"], "rows": [[1, [2]]], "speedup": 1}, "no number"),
        ({"columns": ["K", "accepted_length"], "rows": [[1, 1]], "speedup": 1, "name": 3}, "text"),
        (
            {"columns": ["K", "accepted_length"], "rows": [[10**400, 1]], "speedup": 1},
            "not a table",
        ),
    ],
)
def test_invalid_json_tables_are_refused(tmp_path, data, words):
    (tmp_path / "t.json").write_text(json.dumps(data))
    refused(tmp_path, "cost", "--from-table", "t.json", "--out", "c.json", words=words)


@pytest.mark.parametrize(
    "options, words",
    [
        (("--from-table", "vllm-20780", "--out", "c.json"), "did you mean vllm-20780"),
        (("--from-table", "gone.csv", "--out", "c.json"), "gone.csv: not a table"),
        (("--from-table", "t.csv", "--out", "t.csv"), "would overwrite"),
        (("--from-table", "t.csv", "--out", "gone/c.json"), "no folder"),
        (("--from-table", "t.csv", "--out", "c.json", "--depth", 0), "--depth is 0"),
        (("--from-table", "t.csv", "--out", "c.json", "--depth", 256), "--depth is 256"),
        (("--from-table", "t.csv", "--out", "c.json", "--batch", 3), "asked for 3"),
        (("--from-table", "t.csv", "--out", "c.json", "--plain", 3), "no speed of the table needs"),
        (("--from-table", "vllm-20780-eagle1", "--out", "c", "--plain", 3), "--plain is given"),
        (("--from-table", "vllm-20780-eagle1", "--out", "c", "--batch", 3), "of batch size 1"),
        (("--from-table", "beriltatli-smollm2", "--out", "c.json"), "expected at least two"),
    ],
)
def test_invalid_options_are_refused(folder, options, words):
    refused(folder, "cost", *options, words=words)


@given(st.one_of(st.binary(max_size=60), st.text(max_size=40).map(lambda t: (HEAD + t).encode())))
@example(b'{"columns": ["K"], "rows": ' + b"[" * 5000)
@example(b'{"columns": ["K"], "rows": [[1e999999]]}')
def test_any_bytes_are_a_table_or_one_line(tmp_path_factory, content):
    folder = tmp_path_factory.getbasetemp()
    for name in ("any.csv", "any.json"):
        (folder / name).write_bytes(content)
        try:
            assert read_speed_table(folder / name, plain=2.0 if len(content) % 2 else None).rows
        except ValueError as error:
            assert len(str(error).splitlines()) == 1


def test_a_table_whose_lines_fall_below_zero_has_no_error_of_a_length_left_out():
    fitted = fit_cost(table_of({1: 1.0, 4: 1.2, 7: 9.0}))
    assert fitted.left_out is None
    assert fitted.cost.K == 7
