"""A sweep goes on from what it kept, and keeps nothing that it should not take."""

import json
import resource
import threading
from pathlib import Path

import pandas
import pytest
from strategies import nosy

from simspec import sweep, synthetic
from simspec.output.files import locked
from simspec.policies import beta_ts, cost_ts, fixed, oracle
from simspec.replay.kept_results import KeptResults
from simspec.replay.sweep import sweep_rows

TRACES = {
    name: synthetic.iid(0.7, 3, 40, 5, seed=i, confidence=True) for i, name in enumerate("ab")
}
POLICIES = [fixed(2), beta_ts(), cost_ts(), oracle, nosy()]
SWEEP = dict(replicates=2, progress=False, by="prompt")


def test_interrupted_sweep_goes_on_and_gives_the_same_table(tmp_path, monkeypatch):
    path = tmp_path / "kept.jsonl"
    expected = sweep(TRACES, POLICIES, 0.1, **SWEEP)
    rows = sweep_rows(TRACES, POLICIES, 0.1, 2, by="prompt", keep=path)
    for _ in range(20):
        next(rows)
    rows.close()
    kept = path.read_text().count("\n")
    assert 0 < kept < 16
    with path.open("a") as file:
        file.write('{"format": 1, "ke')  # torn by a kill
    replayed = _counted(monkeypatch)
    pandas.testing.assert_frame_equal(sweep(TRACES, POLICIES, 0.1, **SWEEP, keep=path), expected)
    assert len(replayed) == path.read_text().count("\n") - kept
    replayed.clear()
    pandas.testing.assert_frame_equal(sweep(TRACES, POLICIES, 0.1, **SWEEP, keep=path), expected)
    assert replayed == []


def _counted(monkeypatch):
    from simspec.replay import replay as replay_job

    replayed, metrics = [], replay_job._metrics
    monkeypatch.setattr(
        replay_job, "_metrics", lambda *arguments: (replayed.append(1), metrics(*arguments))[1]
    )
    return replayed


def _other_observe(params, state, computed, drafted, accepted, features, cost):
    state[0] += 1.0


@pytest.mark.parametrize(
    "change",
    [
        dict(costs=0.2),
        dict(seed=9),
        dict(by="task"),
        dict(traces={"a": TRACES["b"]}),
        dict(policies=[beta_ts("censored")]),
        dict(policies=[type(beta_ts())(**vars(beta_ts()) | {"observe": _other_observe})]),
    ],
    ids=["cost", "seed", "groups", "recording", "argument", "code"],
)
def test_whatever_a_result_depends_on_makes_it_run_again(tmp_path, monkeypatch, change):
    base = dict(traces={"a": TRACES["a"]}, policies=[beta_ts()], costs=0.1, replicates=1)
    base |= dict(progress=False, keep=tmp_path / "kept.jsonl")
    sweep(**base)
    replayed = _counted(monkeypatch)
    sweep(**base)
    assert replayed == []
    sweep(**base | change)
    assert len(replayed) == 1


def test_files_of_others_are_refused(tmp_path):
    path = tmp_path / "kept.jsonl"
    for line in ("no JSON", "{}", json.dumps({"format": 1, "key": "k", "groups": [["a", {}]]})):
        path.write_text(line + "\n")
        with pytest.raises(ValueError, match="line 1: no result of this version"):
            sweep(TRACES, [fixed(1)], 0.1, progress=False, keep=path)
        assert path.read_text() == line + "\n"


def lines_of(path):
    return path.read_bytes().split(b"\n")


@pytest.fixture
def kept(tmp_path):
    """A file with the results of one sweep."""
    path = tmp_path / "kept.jsonl"
    sweep({"a": TRACES["a"]}, [fixed(1), fixed(2)], 0.1, progress=False, keep=path)
    return path


def add(path, key):
    """Adds one more result, as a sweep does."""
    with KeptResults(path) as results:
        (groups,) = list(results._known.values())[:1]
        list(results.completed([key], [groups]))


@pytest.mark.parametrize("torn", ['{"format": 1, "key": "ab', '{"form', "{"])
def test_torn_line_is_cut_and_whole_lines_are_never_rewritten(kept, monkeypatch, torn):
    """A kill at any moment of the repair loses nothing: the file is only ever cut at its end."""
    whole = kept.read_bytes()
    with kept.open("a") as file:
        file.write(torn)
    monkeypatch.setattr(Path, "write_text", None)
    monkeypatch.setattr(Path, "write_bytes", None)
    add(kept, "new")
    assert kept.read_bytes().startswith(whole)
    assert len(lines_of(kept)) == 4
    assert b'"key": "new"' in lines_of(kept)[2]


def test_opening_leaves_a_torn_line_to_its_writer(kept):
    """It may be the line that another process writes at this moment."""
    with kept.open("a") as file:
        file.write('{"format": 1, "key')
    before = kept.read_bytes()
    KeptResults(kept).__exit__()
    assert kept.read_bytes() == before


def test_two_writers_lose_nothing(kept):
    """One waits while the other is within a line."""
    before = kept.read_bytes()
    line = lines_of(kept)[0]
    other = threading.Thread(target=add, args=(kept, "second"))
    with kept.open("ab", buffering=0) as first, locked(first):
        first.write(line[:40])
        other.start()
        other.join(0.2)
        assert other.is_alive()
        first.write(line[40:] + b"\n")
    other.join(60)
    assert kept.read_bytes().startswith(before + line + b"\n")
    assert b'"key": "second"' in lines_of(kept)[3]


def test_writers_in_turn_keep_every_line(tmp_path, kept):
    """Two sweeps of other policies at the same time: both find all of their results."""
    with KeptResults(kept) as one, KeptResults(kept) as two:
        (groups,) = list(one._known.values())[:1]
        for i in range(5):
            list(one.completed([f"one{i}"], [groups]))
            list(two.completed([f"two{i}"], [groups]))
    with KeptResults(kept) as both:
        assert all(f"{name}{i}" in both for name in ("one", "two") for i in range(5))


def test_full_disk_names_the_file_and_keeps_what_was_written(kept, monkeypatch):
    expected = sweep(TRACES, POLICIES, 0.1, **SWEEP)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (kept.stat().st_size + 900, limits[1]))
    try:
        with pytest.raises(OSError, match=r"File too large: '.*kept.jsonl'"):
            sweep(TRACES, POLICIES, 0.1, **SWEEP, keep=kept)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert lines_of(kept)[-1] != b""  # control: the last line is torn
    written = len(lines_of(kept)) - 1
    replayed = _counted(monkeypatch)
    pandas.testing.assert_frame_equal(sweep(TRACES, POLICIES, 0.1, **SWEEP, keep=kept), expected)
    assert len(replayed) == len(lines_of(kept)) - 1 - written


@pytest.mark.parametrize(
    "content",
    ["my notes", '{"format"; ', "[" * 100_000 + "\n", "\xff\n", '{"format": 2}\n',
     '{"format": 1, "key": "k", "groups": [["all", {"rounds": 1}]]}\n'],
    ids=["no line end", "another beginning", "deep", "no UTF-8", "another format", "few fields"],
)  # fmt: skip
def test_files_of_others_stay_as_they_are(tmp_path, content):
    path = tmp_path / "notes.txt"
    path.write_bytes(content.encode("latin1"))
    with pytest.raises(ValueError, match="line 1: no result of this version"):
        KeptResults(path)
    assert path.read_bytes() == content.encode("latin1")


@pytest.mark.parametrize("value", ["fast", True, 10**400])
def test_metrics_that_are_no_numbers_are_refused(kept, value):
    row = json.loads(lines_of(kept)[0])
    row["groups"][0][1]["speedup"] = value
    kept.write_text(json.dumps(row) + "\n")
    with pytest.raises(ValueError, match="line 1: no result of this version"):
        KeptResults(kept)
