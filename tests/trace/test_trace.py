import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import traces

from simspec import Trace, TraceError, TraceMeta, load_trace, replay
from simspec.policies import fixed
from simspec.trace.quantization import (
    ENTROPY,
    LOG_ODDS,
    TABLES,
    coarse_ratio,
    decode,
    decode_margin,
    encode,
    encode_margin,
)

RELAXED = settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture
def example():
    """Two sequences of 3 and 2 rows, K = 2; the second ends with its end token before its
    budget.
    """
    named = {"end_tokens": (9,), "tasks": ("a", "b"), "ids": ("p", "q")}
    meta = TraceMeta("greedy", "t", "d", K=2, features=(("confidence", "confidence"),), **named)
    return Trace(
        offset=np.array([0, 3, 5]), budget=np.array([3, 4]),
        token=np.array([1, 2, 3, 4, 9], np.int32), depth=np.array([2, 2, 2, 2, 1], np.uint8),
        run=np.array([2, 1, 0, 1, 1], np.uint8),
        rank=np.array([[0, 0], [0, 1], [3, 0], [0, 2], [0, 0]], np.uint8),
        feature=np.zeros((5, 2, 1), np.uint8), meta=meta
    )  # fmt: skip


def poke(array, index, value):
    array = array.copy()
    array[index] = value
    return array


def broken(t):
    """Every invariant broken once: (the change, words of the one-line error)."""
    drawn = replace(t.meta, rule="rejection", temperature=1.0)
    rejection = dict(
        meta=drawn, ratio=np.ones((5, 2), np.float32), rank=None, run=np.zeros(5, np.uint8)
    )
    return [
        (dict(offset=poke(t.offset, 0, 1)), "offset runs 1..5"),
        (dict(offset=np.array([0, 3, 3]), budget=t.budget), "offset runs 0..3"),
        (dict(offset=np.array([0, 0, 5])), "offset"),
        (dict(offset=t.offset.astype(np.int32)), r"offset is int32\[3\], expected int64\[3\]"),
        (dict(token=t.token.astype(np.int64)), "token is int64"),
        (dict(depth=t.depth[:4]), r"depth is uint8\[4\], expected uint8\[5\]"),
        (dict(feature=np.zeros((5, 2, 2), np.uint8)), r"feature is uint8\[5, 2, 2\]"),
        (dict(rank=t.rank.tolist()), "rank is list"),
        (dict(margin=np.zeros(5)), "margin is float64"),
        (dict(budget=np.array([2, 4])), "budget, sequence 0: 2, expected at least"),
        (dict(budget=np.array([4, 4])), "budget, sequence 0: 4, expected the sequence's length"),
        (dict(token=poke(t.token, 1, 9)), "token, row 1: 9, expected no end token"),
        (dict(depth=poke(t.depth, 0, 3)), "depth, row 0: 3, expected at most K = 2"),
        (
            dict(run=poke(t.run, 1, 2), depth=poke(t.depth, 1, 1)),
            "run, row 1: 2, expected at most depth",
        ),
        (dict(run=poke(t.run, 2, 2)), "run, row 2: 2, expected at most depth and the rows left"),
        (dict(rank=poke(t.rank, (0, 1), 5)), "rank, row 0"),
        (dict(rank=poke(t.rank, (1, 1), 0)), "rank, row 1"),
        (dict(sequence=np.array([0, 2**32])), "sequence, sequence 1"),
        (dict(sequence=np.array([-1, 2])), "sequence, sequence 0"),
        (dict(prompt=np.zeros(2, np.int32)), "prompt_offset runs 0..0"),
        (dict(ratio=np.ones((5, 2), np.float32)), "ratio is there under rule 'greedy'"),
        (rejection | dict(ratio=None), "ratio is missing under rule 'rejection'"),
        (rejection | dict(ratio=np.full((5, 2), np.nan, np.float32)), "ratio, row 0"),
        (rejection | dict(ratio=np.full((5, 2), 1.5, np.float32)), "ratio, row 0"),
        (rejection | dict(run=t.run), "run, row 0: 2, expected 0"),
        (rejection | dict(rank=t.rank), "rank is there under the rejection rule"),
        (dict(meta=replace(t.meta, tasks=("a",))), "meta.tasks has 1 entries"),
        (dict(meta=replace(t.meta, ids=())), "meta.ids has 0 entries"),
        (dict(meta=replace(t.meta, features=(("confidence", "linear"),))), "grid 'linear'"),
        (
            dict(meta=replace(t.meta, prefix_only=True), run=poke(t.run, 1, 0), rank=None),
            "prefix_only",
        ),
    ]


def test_every_invariant_is_checked(example):
    example.validate()
    for change, words in broken(example):
        with pytest.raises(TraceError, match=words) as caught:
            replace(example, **change)
        assert "\n" not in str(caught.value)


def test_frames_and_one_line_of_what_a_recording_holds(example):
    hostile = replace(example, meta=replace(example.meta, drafter="e\x1b[1m"))
    assert repr(hostile).startswith("Trace('e\\x1b[1m' for 't', greedy, K = 2: 2 sequences, 5 ")
    table = example.to_frame()
    names = ["sequence", "id", "task", "position", "token", "depth", "run"]
    assert table.columns.tolist() == names
    assert table.position.tolist() == [0, 1, 2, 0, 1]
    assert table.groupby("task").token.sum().tolist() == [
        int(example.select([s]).token.sum()) for s in (0, 1)
    ]
    rounds = replay(example, fixed(2))
    found = rounds.to_frame()
    assert found.columns.tolist() == ["sequence", "row", "computed", "drafted", "accepted"]
    assert found.sequence.value_counts().tolist() == sorted(np.diff(rounds.offset))[::-1]
    assert repr(rounds).startswith(f"Rounds({len(rounds)} of 2 sequences: ")


def test_properties_and_select(example):
    assert (example.sequences, example.rows, example.K, example.task) == (2, 5, 2, ("a", "b"))
    assert example.features(("confidence",)).tolist() == [0]
    with pytest.raises(TraceError, match="'entropy' is not in this trace"):
        example.features(("entropy",))
    second = example.select([1])
    assert second.token.tolist() == [4, 9]
    assert second.sequence.tolist() == [1]
    assert second.meta.ids == ("q",)
    assert example.select([0, 1]) == example
    for wrong in ([], [2], [-1], [[0]], [0.5]):
        with pytest.raises(TraceError, match="select"):
            example.select(wrong)


@RELAXED
@given(traces(), st.data())
def test_select_of_select_is_select(trace, data):
    index = st.integers(0, trace.sequences - 1)
    first = data.draw(st.lists(index, min_size=1, max_size=4))
    second = data.draw(st.lists(st.integers(0, len(first) - 1), min_size=1, max_size=4))
    assert trace.select(first).select(second) == trace.select([first[i] for i in second])


@RELAXED
@given(traces(), st.integers(1, 9))
def test_a_shorter_budget_keeps_the_first_tokens_of_each_sequence(trace, budget):
    short = trace.shorten(budget).validate()
    for s in range(trace.sequences):
        start, end = short.offset[s : s + 2]
        whole = trace.token[trace.offset[s] : trace.offset[s + 1]]
        assert short.token[start:end].tolist() == whole[:budget].tolist()
        assert short.budget[s] == min(trace.budget[s], budget)
    assert trace.shorten(int(trace.budget.max())) == trace
    with pytest.raises(TraceError, match="budget is 0"):
        trace.shorten(0)


def test_a_shorter_budget_cuts_the_paths_of_recorded_trees():
    trace = load_trace(Path(__file__).parents[2] / "traces" / "tiny-eagle-greedy.parquet")
    short = trace.shorten(5).validate()
    for s in range(0, trace.sequences, 16):
        own = slice(*short.offset[s : s + 2])
        whole = trace.beam[trace.offset[s] :][: own.stop - own.start]
        cut = np.minimum(whole[:, 0], np.arange(len(whole), 0, -1))
        assert short.beam[own].tolist() == np.column_stack((cut, whole[:, 1])).tolist()


@RELAXED
@given(traces())
def test_round_trip(tmp_path, trace):
    path = tmp_path / "t.parquet"
    trace.save(path)
    assert load_trace(path) == trace
    assert os.listdir(tmp_path) == ["t.parquet"]
    first = path.read_bytes()
    trace.save(path)
    assert path.read_bytes() == first


def test_equality_sees_every_field(example):
    assert example == replace(example)
    assert example != replace(example, rank=None)
    assert example != "trace"
    assert example != replace(example, token=poke(example.token, 0, 5))
    assert example != replace(example, meta=replace(example.meta, notes="x"))


@pytest.mark.parametrize("mode", ["before", "during"])
def test_killed_writer_leaves_the_old_file(tmp_path, example, mode):
    path = tmp_path / "t.parquet"
    example.save(path)
    before = path.read_bytes()
    code = f"""
import os, signal, pyarrow.parquet
from simspec import load_trace, synthetic
def die(*a, **k): os.kill(os.getpid(), signal.SIGKILL)
{"os.replace = die" if mode == "before" else "pyarrow.parquet.ParquetWriter.close = die"}
synthetic.iid(0.5, 2, 50, 4).save({str(path)!r})
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == -signal.SIGKILL
    assert path.read_bytes() == before
    assert load_trace(path) == example


def test_meta_round_trip_and_strictness(example):
    text = example.meta.to_json()
    assert TraceMeta.from_json(text) == example.meta
    omitted = {"tree", "top_k", "top_p", "drafter_sha256", "largest_ratio"}
    assert not omitted & set(json.loads(text))
    drawn = replace(example.meta, rule="rejection", temperature=0.7, top_k=4, top_p=0.9)
    assert TraceMeta.from_json(drawn.to_json()) == drawn
    data = json.loads(text)
    wrong = [
        ("[]", "is a list"),
        ("{", "not JSON"),
        (json.dumps({k: v for k, v in data.items() if k != "git"}), r"lacks \['git'\]"),
    ]
    for key, value, words in (
        ("extra", 1, r"unknown \['extra'\]"),
        ("schema", 1, "meta.schema is 1, this version reads 2"),
        ("predictors", {"theta": "ab"}, "meta.predictors is"),
        ("predictors", ["theta"], "meta.predictors is"),
        ("predictors", {"theta": "ab" * 32}, "meta.predictors is"),
        ("schema", None, "meta.schema is None"),
        ("K", 0, "meta.K is 0"),
        ("K", 256, "meta.K is 256"),
        ("K", True, "meta.K is True"),
        ("rule", "sampled", "meta.rule"),
        ("rule", "rejection", "meta.temperature is 0.0"),
        ("largest_ratio", 0.5, "meta.largest_ratio is 0.5, expected a number from 1"),
        ("largest_ratio", 1e99, "meta.largest_ratio is 1e"),
        ("top_p", 0.9, "meta.top_p is 0.9"),
        ("top_p", 1.5, "meta.top_p is 1.5"),
        ("features", [["a", "entropy"], ["a", "entropy"]], "different names"),
        ("features", [["a"]], "meta.features"),
        ("end_tokens", ["x"], "meta.end_tokens"),
        ("temperature", "hot", "meta.temperature"),
        ("prefix_only", 1, "meta.prefix_only"),
        ("versions", {"a": 1}, "meta.versions"),
        ("seed", -1, "meta.seed"),
    ):
        wrong.append((json.dumps(data | {key: value}), words))
    for given_text, words in wrong:
        with pytest.raises(TraceError, match=words) as caught:
            TraceMeta.from_json(given_text)
        assert "\n" not in str(caught.value)


@settings(deadline=None)
@given(st.lists(st.floats(0, 2.0**22), min_size=1, max_size=20))
def test_ratios_are_exact_up_to_1_coarse_above_and_capped(values):
    values = np.array(values)
    held, capped, above = coarse_ratio(values), np.minimum(values, 2.0**20), values > 1
    assert (held[~above] == values[~above].astype(np.float32)).all()
    assert (np.abs(held - capped) <= 2.0**-11 * capped)[above].all()
    assert (held[above] >= 1).all()
    assert not (held[above].view(np.uint32) & 0x1FFF).any()  # 13 bits that pack well


@settings(deadline=None)
@given(st.lists(st.floats(0, 100), min_size=1, max_size=20))
def test_margins_round_up(values):
    values = np.array(values)
    codes = encode_margin(values)
    decoded = decode_margin(codes)
    inside = (codes > 0) & (codes < 255)
    assert (decoded[codes < 255] >= values[codes < 255]).all()
    assert (decode_margin(codes[inside] - 1) < values[inside]).all()
    log = np.log10(np.maximum(values, 1e-300))
    expected = np.clip(np.ceil(32 * (log + 7)), 0, 255)
    # the formula in floats may be one off at an exact grid value
    assert (np.abs(codes - expected) <= 1).all()


def test_margin_codes_round_conservatively():
    assert decode_margin(np.uint8(96)) == 1e-4
    below, above = np.nextafter(1e-4, 0), np.nextafter(1e-4, 1)
    values = np.array([0.0, 1e-7, 9e-5, below, 1e-4, above, 50.0])
    assert encode_margin(values).tolist() == [0, 0, 95, 96, 96, 97, 255]
    for wrong in (-1e-9, np.nan):
        with pytest.raises(ValueError, match="a margin is negative or NaN"):
            encode_margin(np.array([wrong]))


@pytest.mark.parametrize("name", list(TABLES))
@settings(deadline=None)
@given(values=st.lists(st.floats(-1, 10), min_size=1, max_size=20))
def test_encode_picks_the_nearest_entry_and_its_edge_distance(name, values):
    table, values = TABLES[name], np.array(values)
    codes, distance = encode(values, table)
    gaps = np.abs(values[:, None] - table)
    np.testing.assert_allclose(
        gaps[np.arange(len(values)), codes], gaps.min(axis=1), rtol=0, atol=1e-12
    )
    for value, code, room in zip(values, codes, distance):
        edges = [(table[c] + table[c + 1]) / 2 for c in (int(code) - 1, int(code)) if 0 <= c < 255]
        assert room == pytest.approx(min(abs(value - edge) for edge in edges), abs=1e-15)
        assert room >= 0


def test_grids():
    for table in TABLES.values():
        assert table.shape == (256,)
        assert (np.diff(table) > 0).all()
        codes, _ = encode(table, table)
        assert codes.tolist() == list(range(256))
        assert codes.dtype == np.uint8
        np.testing.assert_array_equal(decode(codes, table), table)
        codes, distance = encode((table[1:] + table[:-1]) / 2, table)
        assert codes.tolist() == list(range(1, 256))  # an edge belongs to the entry above
        assert not distance.any()
    assert LOG_ODDS[0] == pytest.approx(1 / (1 + np.exp(8)))
    assert LOG_ODDS[-1] == pytest.approx(1 / (1 + np.exp(-12)))
    assert ENTROPY[0] == 0
    assert ENTROPY[-1] == 9
    with pytest.raises(ValueError, match="NaN"):
        encode(np.array([np.nan]), LOG_ODDS)
