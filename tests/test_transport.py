"""Accepted length by draft length and its stand-ins: hand counts, a slow twin, known laws."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numba.core import config
from shell import refused, run
from strategies import traces

from simspec import formulas, synthetic
from simspec.published import LengthCurve
from simspec.reports.transport import (
    counts,
    curve_errors,
    iid_length,
    iid_rate,
    published_errors,
    summarized,
    transport,
)
from simspec.trace.acceptance import drawn_trace
from simspec.trace.trace import Trace, TraceMeta

RUN = (1, 0, 2, 1, 0, 2, 0, 1, 0)
STRICT = 1 - 1e-4


def one_sequence():
    """Nine rows whose accepted lengths are RUN, K = 2."""
    meta = TraceMeta(rule="synthetic", target="t", drafter="d", K=2, tasks=("a",), ids=("x",))
    n = len(RUN)
    return Trace(
        offset=np.array([0, n]),
        budget=np.array([n]),
        token=np.zeros(n, np.int32),
        depth=np.full(n, 2, np.uint8),
        run=np.array(RUN, np.uint8),
        meta=meta,
    )


def test_small_recording_equals_hand_counts():
    # Rows 0 .. 6 count. K = 1: rounds at 0, 2, 4, 5 accept 1, 1, 0, 1; K = 2: at 0, 2, 5, 1, 2, 2.
    first, second = transport({"x": one_sequence()})
    assert (first.rounds, second.rounds) == (4, 3)
    assert first.length.value == pytest.approx(1 + 3 / 4)
    assert second.length.value == pytest.approx(1 + 5 / 3)
    assert first.errors["table@2"].value == pytest.approx(2 / 1.75 - 1)
    assert second.errors["table@2"].value == 0
    assert first.errors["iid@1"].value == pytest.approx(0, abs=1e-9)
    assert second.errors["iid@1"].value == pytest.approx((1 + 0.75 + 0.75**2) / (8 / 3) - 1)
    assert first.errors["teacher-forced"].value == pytest.approx((1 + 4 / 7) / 1.75 - 1)
    assert second.errors["teacher-forced"].value == pytest.approx((1 + 6 / 7) / (8 / 3) - 1)
    assert np.isnan(first.length.low)
    assert set(first.errors) == {"table@2", "iid@1", "teacher-forced"}


def twin(trace, longest):
    """(rounds, reached, rows, run) as in Counts, by walking every prompt."""
    prompts = []
    for s in range(len(trace.budget)):
        start, end = int(trace.offset[s]), int(trace.offset[s + 1])
        limit = start + int(trace.budget[s]) - 1 - longest  # the last row that counts
        if limit < start:
            continue
        rounds = [0] * longest
        reached = [[0] * longest for _ in range(longest)]
        for K in range(1, longest + 1):
            row = start
            while row < end:
                room = int(trace.budget[s]) - (row - start) - 1
                accepted = min(int(trace.run[row]), K, room)
                if row <= limit:
                    rounds[K - 1] += 1
                    for j in range(accepted):
                        reached[K - 1][j] += 1
                row += accepted + 1
        counted = [int(trace.run[row]) for row in range(start, min(limit + 1, end))]
        run = [sum(r > j for r in counted) for j in range(longest)]
        prompts.append((rounds, reached, len(counted), run))
    return prompts


@settings(max_examples=40)
@given(traces(optional=False), st.data())
def test_counts_equal_the_slow_twin(trace, data):
    longest = data.draw(st.integers(1, trace.K))
    expected = twin(trace, longest)
    if not expected:
        with pytest.raises(ValueError, match="no row"):
            counts(trace, longest)
        return
    found = counts(trace, longest)
    assert found.rounds.tolist() == [prompt[0] for prompt in expected]
    assert found.reached.tolist() == [prompt[1] for prompt in expected]
    assert found.rows.tolist() == [prompt[2] for prompt in expected]
    assert found.run.tolist() == [prompt[3] for prompt in expected]


@settings(max_examples=25)
@given(traces(optional=False))
def test_stand_ins_agree_where_they_were_measured(trace):
    assume(any(twin(trace, trace.K)))
    rows = transport({"x": trace}, trace.K, measured_at=range(1, trace.K + 1), resamples=100)
    for row in rows:
        assert row.errors[f"table@{row.K}"].value == 0
        if row.K in (1, 3):
            assert row.errors[f"iid@{row.K}"].value == 0


@given(st.floats(0, 1), st.integers(1, 16))
def test_rate_solves_the_sum(rate, K):
    length = sum(rate**j for j in range(K + 1))
    assert sum(float(iid_rate(length, K)) ** j for j in range(K + 1)) == pytest.approx(length)
    assert iid_rate(1.0, K) == 0
    assert iid_rate(K + 1.0, K) == 1
    assert iid_rate(K + 1.5, K) == 1


def sizes(rows, sequences):
    """Fewer tokens where the kernel is interpreted."""
    return (rows // 10, sequences) if config.DISABLE_JIT else (rows, sequences)


def test_stand_ins_agree_at_independent_acceptance():
    """24 intervals of 1 - 1e-4: a correct report fails with probability under 0.3%."""
    rows, sequences = sizes(400, 100)
    trace = synthetic.iid(0.7, sequences, rows, 6, seed=4)
    table = transport({"x": trace}, level=STRICT, seed=1)
    for row in table:
        assert formulas.expected_committed(0.7, row.K) in row.length
        for name, error in row.errors.items():
            assert error.low - 1e-9 <= 0 <= error.high + 1e-9, (name, row.K)


ALPHAS, SWITCH = np.array([0.3, 0.95]), np.array([0.15, 0.1])


def exact_lengths(K, starts_of):
    """Accepted length of drafts of K from rounds of `starts_of`, or from all rows (0)."""
    A, move = np.diag(ALPHAS), np.array([[0.85, 0.15], [0.1, 0.9]])
    ends, alive = np.zeros((2, 2)), np.eye(2)
    for _ in range(starts_of):
        ends += alive @ (np.eye(2) - A) @ move
        alive = alive @ A @ move
    values, vectors = np.linalg.eig((ends + alive @ move).T)
    start = np.real(vectors[:, np.argmax(np.real(values))])
    start = start / start.sum()
    length, alive = 1.0, np.eye(2)
    for _ in range(K):
        length += float(start @ alive @ ALPHAS)
        alive = alive @ A @ move
    return length


def test_stand_ins_differ_as_known_where_acceptance_depends_on_the_start():
    """24 intervals of 1 - 1e-4, around exact values with known signs."""
    rows, sequences = sizes(2000, 60)
    trace = synthetic.switching(ALPHAS, SWITCH, sequences, rows, 6, seed=3)
    for row in transport({"x": trace}, level=STRICT, seed=1):
        exact = exact_lengths(row.K, row.K)
        assert exact == pytest.approx(formulas.switching_committed(ALPHAS, SWITCH, row.K))
        expected = {
            "table@6": exact_lengths(row.K, 6) / exact - 1,
            "teacher-forced": exact_lengths(row.K, 0) / exact - 1,
            "iid@1": float(iid_length(exact_lengths(1, 1), 1, row.K)) / exact - 1,
            "iid@3": float(iid_length(exact_lengths(3, 3), 3, row.K)) / exact - 1,
        }
        assert exact in row.length
        for name, value in expected.items():
            assert row.errors[name].low - 1e-9 <= value <= row.errors[name].high + 1e-9, name
        assert row.errors["teacher-forced"].low > 0
        assert row.errors["table@6"].high < 0 or row.K == 6


def test_control_a_table_of_all_rows_is_not_that_of_rounds():
    rows, sequences = sizes(2000, 60)
    trace = synthetic.switching(ALPHAS, SWITCH, sequences, rows, 6, seed=3)
    row = transport({"x": trace}, level=STRICT)[2]
    assert exact_lengths(3, 0) / exact_lengths(3, 3) - 1 not in row.errors["table@6"]


def test_rejection_recordings_are_drawn_once():
    trace = synthetic.iid(0.6, 9, 40, 4, seed=1)
    ratio = np.random.default_rng(0).random((trace.rows, 4)).astype(np.float32)
    meta = replace(trace.meta, rule="rejection", temperature=0.7)
    trace = replace(trace, run=np.zeros_like(trace.run), ratio=ratio, meta=meta)
    found, drawn = counts(trace, 4, seed=5), counts(drawn_trace(trace, 5), 4)
    assert (found.reached == drawn.reached).all()
    assert (found.run == drawn.run).all()


# (group, stand-in): {K: median}, least and greatest at any K.
PRINTED = {
    ("vllm#48892", "table@8"): ({1: -0.039}, -0.039, -0.039),
    ("HeteroSpec", "table@7"): ({1: -0.054, 3: -0.025, 5: 0.003}, -0.054, 0.003),
    ("SpecBundle", "iid@3"): ({5: 0.029, 7: 0.053}, -0.037, 0.145),
    ("vllm-20780-eagle1", "iid@2"): ({7: 0.153}, 0.044, 0.153),
    ("vllm-20780-eagle3", "iid@2"): ({7: 0.073}, 0.009, 0.073),
    ("vllm-20780-eagle1", "iid@3"): ({7: 0.077}, 0.026, 0.077),
    ("vllm-20780-eagle3", "iid@3"): ({7: 0.055}, 0.016, 0.055),
    ("InferenceX", "iid@1"): ({3: 0.062, 8: 0.269}, 0.004, 0.624),
    ("InferenceX", "iid@3"): ({8: 0.096}, -0.024, 0.301),
    ("speculators#563", "iid@1"): ({7: 0.241}, 0.008, 0.303),
    ("speculators#563", "iid@3"): ({7: 0.129}, 0.024, 0.142),
    ("SpecDecode-Bench, EAGLE-3", "teacher-forced"): ({7: 0.164}, 0.086, 0.280),
    ("SpecDecode-Bench, EAGLE-3", "iid@1"): ({7: 0.095}, 0.022, 0.165),
    ("SpecDecode-Bench, n-gram", "table@7"): ({1: -0.086}, -0.163, -0.031),
}


@pytest.mark.parametrize("group, stand_in", PRINTED)
def test_published_errors_are_as_computed_before(group, stand_in):
    (row,) = (
        row
        for row in summarized(published_errors())
        if (row["group"], row["stand_in"]) == (group, stand_in)
    )
    medians, least, most = PRINTED[group, stand_in]
    assert {K: row["medians"][K] for K in medians} == pytest.approx(medians, abs=6e-4)
    assert row["least"] == pytest.approx(least, abs=6e-4)
    assert row["greatest"] == pytest.approx(most, abs=6e-4)


def test_every_published_error_has_a_source():
    errors = published_errors()
    assert len(errors) > 200
    assert all(error.source for error in errors)
    assert sum(error.group == "SpecBundle" for error in errors) == 2 * 87


def test_control_another_table_has_another_error():
    curve = LengthCurve("g", {}, {1: 1.5, 2: 1.75}, {2: (0.5, 0.25)})
    (table,) = (error for error in curve_errors(curve) if error.stand_in == "table")
    assert table.error == 0
    curve = LengthCurve("g", {}, {1: 1.5, 2: 1.75}, {2: (0.4, 0.25)})
    (table,) = (error for error in curve_errors(curve) if error.stand_in == "table")
    assert table.error == pytest.approx(1.4 / 1.5 - 1)


@pytest.fixture
def folder(tmp_path):
    synthetic.iid(0.7, 9, 40, 5).save(tmp_path / "a[red].parquet")
    synthetic.iid(0.4, 3, 40, 2).save(tmp_path / "few.parquet")
    return tmp_path


@pytest.mark.parametrize("width", (60, 120, None))
def test_command_shows_every_length_and_stand_in(capsys, monkeypatch, folder, width):
    monkeypatch.chdir(folder)
    monkeypatch.setattr("simspec.output.terminal.terminal_width", lambda: width)
    code, out, err = run(capsys, "transport", "a[red].parquet", "few.parquet")
    assert (code, err) == (0, "")
    for words in ("a[red].parquet", "table@5", "table@2", "iid@1", "teacher-forced", "HeteroSpec"):
        assert words in out
    assert width is None or max(map(len, out.splitlines())) <= width


def test_command_prints_json_and_a_picture(capsys, monkeypatch, folder):
    monkeypatch.chdir(folder)
    options = ("--table", 1, "--table", 2, "--json", "--plot", "x.png", "--longest", 2)
    code, out, _ = run(capsys, "transport", "a[red].parquet", "few.parquet", *options)
    data = json.loads(out)
    assert code == 0
    assert [(row["recording"], row["K"]) for row in data["rows"]] == [
        (name, K) for name in ("a[red].parquet", "few.parquet") for K in (1, 2)
    ]
    assert set(data["rows"][0]["errors"]) == {"table@1", "table@2", "iid@1", "teacher-forced"}
    assert set(data["rows"][1]["errors"]) == {"table@2", "iid@1", "teacher-forced"}
    assert data["rows"][0]["length"]["low"] < data["rows"][0]["length"]["value"]
    assert data["rows"][3]["length"]["low"] is None
    assert len(data["published"]) == len(published_errors())
    assert (folder / "x.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "options, words",
    [
        (("--longest", 0), "K is 0"),
        (("--longest", 6), "expected 1 to 5"),
        (("--table", 6), "a table at K = 6"),
        (("--table", 0), "a table at K = 0"),
        (("--level", 1), "level is 1"),
        (("--plot", "few.parquet", "few.parquet"), "would overwrite"),
        (("--plot", "gone/x.png"), "no folder"),
    ],
)
def test_invalid_options_are_refused(folder, options, words):
    refused(folder, "transport", "a[red].parquet", *options, words=words)
