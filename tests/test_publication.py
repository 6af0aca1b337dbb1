"""Figures that may not be published: too few repeats or prompts, or faster than passes allow."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from shell import run

from real.bench.race import PLAIN, Runs
from real.bench.race_rows import impossible, mean_of_ratios, race_rows, race_summary, shortcomings
from real.prompts import ALL

MEASURED = Path(__file__).parent.parent / "traces" / "smollm2" / "measured"
PROMPTS = 20
TASKS = ["code"] * PROMPTS


@pytest.mark.parametrize(
    "repeats, prompts, reasons",
    [(5, 20, 0), (7, 40, 0), (3, 20, 1), (6, 20, 1), (5, 19, 1), (2, 9, 2)],
)
def test_a_measurement_has_odd_repeats_and_enough_prompts(repeats, prompts, reasons):
    assert len(shortcomings(repeats, prompts)) == reasons


def race_of(pass_seconds, rng=None):
    """Runs of plain decoding, 10 passes of 1 s a prompt, and of a drafter with 2 tokens a pass."""
    rng = rng or np.random.default_rng(0)

    def runs(name, tokens, passes, seconds):
        noisy = passes * seconds * np.exp(rng.normal(0, 0.02, (5, PROMPTS)))
        token = [[[s] * tokens for s in range(PROMPTS)]] * 5
        columns = {"passes": [[passes] * PROMPTS] * 5, "seconds": noisy.tolist()}
        return Runs(name, name != PLAIN, token, first=[seconds] * PROMPTS, **columns)

    return [runs(PLAIN, 10, 10, 1.0), runs("model=fixed:1", 10, 5, pass_seconds)]


def test_a_speedup_above_tokens_a_pass_stops_publication():
    """A pass of several rows that costs 0.95 of a plain pass is impossible, 1.05 is not."""
    for seconds, wrong in ((0.95, 1), (1.05, 0)):
        runs = race_of(seconds)
        rows = race_rows(runs, TASKS)
        report = race_summary(runs, rows, TASKS, {})
        assert len(impossible(rows)) == len(report["impossible"]) == wrong
        assert report["measurement"] == (not wrong)
        row = next(r for r in rows if r.contestant != PLAIN and r.group == ALL)
        assert row.per_pass == 2
        assert row.pass_ratio == pytest.approx(row.own / row.per_pass)
        assert row.own == pytest.approx(2 / seconds, rel=0.02)
    assert (
        "model=fixed:1 is faster than its passes allow"
        in impossible(race_rows(race_of(0.9), TASKS))[0]
    )


def test_noise_is_reported_as_often_as_stated():
    """One in 40 races of a drafter that costs nothing. Of 250 races at that rate none is reported
    in 0.2% of seeds, and 17 or more in 0.02%; the seed is fixed."""
    rng = np.random.default_rng(3)
    found = [bool(impossible(race_rows(race_of(1.0, rng), TASKS))) for _ in range(250)]
    assert 0.0 < np.mean(found) < 0.065


def test_command_exits_with_1_after_writing_everything(tmp_path, monkeypatch, capsys):
    def handicapped(*arguments, **options):
        return race_of(0.9)

    monkeypatch.setattr("real.jobs.race.race", handicapped)
    out = tmp_path / "r.json"
    code, shown, _ = run(
        capsys, "race", "tiny-model-greedy", "--contestant", "model=fixed:1", "--rival", "none",
        "--out", out, "--plot", tmp_path / "p.png",
    )  # fmt: skip
    assert code == 1
    report = json.loads(out.read_text())
    assert not report["measurement"]
    assert report["reasons"] == report["impossible"] != []
    assert (tmp_path / "p.png").exists()
    assert "no measurement, not to be published: model=fixed:1 is faster" in shown


def test_figures_are_written_to_seven_digits():
    runs = race_of(1.05)
    rows = race_rows(runs, TASKS)
    written = race_summary(runs, rows, TASKS, {})["rows"]
    for row, given in zip(written, map(asdict, rows), strict=True):
        figures = {key: value for key, value in row.items() if isinstance(value, float)}
        assert figures == {key: pytest.approx(given[key], rel=5e-7) for key in figures}
        assert all(value == float(f"{value:.7g}") for value in figures.values())
        assert {key: given[key] for key in row.keys() - figures.keys()}.items() <= row.items()


FILES = sorted(MEASURED.glob("race*.json"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_published_speedups_are_possible_and_follow_from_their_calls(path):
    report = json.loads(path.read_text(encoding="utf-8"))
    if "measurement" not in report:
        pytest.skip(f"{path.name} was measured before blocks of one prompt")
    assert report["measurement"]
    assert report["reasons"] == []
    assert shortcomings(report["repeats"], report["prompts"]) == []
    rows = {r["contestant"]: r for r in report["rows"] if r["group"] == ALL}
    raw = {
        name: {key: np.array(each[key], float) for key in ("tokens", "seconds", "passes")}
        for name, each in report["raw"].items()
        if not rows[name]["error"]
    }
    for name, each in raw.items():
        row, plain = rows[name], raw[PLAIN]
        found = mean_of_ratios(each["tokens"], each["seconds"], plain["tokens"], plain["seconds"])
        assert (row["speedup"], row["low"], row["high"]) == pytest.approx(
            (found.value, found.low, found.high)
        )
        if "=" in name:
            a_pass = mean_of_ratios(
                each["passes"], each["seconds"], plain["passes"], plain["seconds"]
            )
            assert a_pass.low <= 1, name


def test_races_are_bundled():
    assert {path.stem for path in FILES} >= {"race"}
