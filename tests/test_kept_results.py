"""A sweep goes on from what it kept, and keeps nothing that it should not take."""

import json

import pandas
import pytest
from strategies import nosy

from simspec import sweep, synthetic
from simspec.policies import beta_ts, cost_ts, fixed, oracle
from simspec.sweep import sweep_rows

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
    from simspec import replay_job

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
