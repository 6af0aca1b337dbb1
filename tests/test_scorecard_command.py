"""The scorecard's file and command: resumption, damaged files, help and refusals."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from doctored_scorecard import doctored, slower
from shell import command, refused, run

from real.bench.saved import load_rows, save_rows
from real.jobs import policy_cost_of
from simspec import CostModel


def test_saved_rows_round_trip_for_their_settings_only(tmp_path):
    path, settings = tmp_path / "s.json", {"device": "cpu", "seed": 3, "recordings": {"a": "0f"}}
    held = {"a": (doctored(slower(2))[0],), "b": (replace(doctored(slower(1))[0], noise=None),)}
    assert load_rows(path, settings) == {}
    save_rows(path, settings, held)
    assert load_rows(path, settings) == held
    for other in (
        settings | {"seed": 4},
        settings | {"fast": True},
        settings | {"recordings": {"a": "10"}},
        {"device": "cpu", "seed": 3},
    ):
        with pytest.raises(
            ValueError,
            match="s.json was made with (seed 3|fast None|recordings {'a': '0f'}), this is",
        ):
            load_rows(path, other)


@pytest.mark.parametrize("settings", [{"seed": "9" * 40_000}, {"9" * 40_000: 1}, {"seed": "9\n"}])
def test_settings_of_a_damaged_file_are_cut_in_the_message(tmp_path, settings):
    save_rows(tmp_path / "s.json", settings, {})
    with pytest.raises(ValueError, match="was made with") as caught:
        load_rows(tmp_path / "s.json", {"seed": 3} if "seed" in settings else {})
    assert len(str(caught.value)) < 500
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda saved: saved.pop("rows"),
        lambda saved: saved["rows"]["a"][0].pop("tau"),
        lambda saved: saved["rows"]["a"][0].update(surplus=1),
        lambda saved: saved["rows"]["a"][0].update(error=float("nan")),
        lambda saved: saved["rows"]["a"][0].update(policy=5),
        lambda saved: saved["rows"]["a"][0].update(phases=[1, 2, 3]),
        lambda saved: saved["rows"]["a"][0].update(tokens=True),
        lambda saved: saved["rows"]["a"][0].update(tokens=10**400),
        lambda saved: saved["rows"]["a"][0].update(speedup=None),
        lambda saved: saved.update(settings=[5]),
        lambda saved: saved.update(rows=5),
    ],
)
def test_damaged_file_is_refused_in_one_line(tmp_path, spoil):
    path = tmp_path / "s.json"
    save_rows(path, {}, {"a": [doctored(slower(2))[0]]})
    saved = json.loads(path.read_text())
    spoil(saved)
    path.write_text(json.dumps(saved))
    with pytest.raises(ValueError, match="s.json holds no rows of a scorecard: ") as caught:
        load_rows(path, {})
    assert "\n" not in str(caught.value)


class Killed(BaseException):
    pass


def test_interrupted_scorecard_continues(tmp_path, monkeypatch, capsys):
    done, stop = [], ["tiny-medusa-greedy"]

    def scored(name, *rest):
        if name in stop:
            raise Killed
        done.append(name)
        return [replace(doctored(slower(1))[0], recording=name)]

    monkeypatch.setattr("real.jobs.scorecard.score", scored)
    monkeypatch.setattr("real.pair.check_pair", lambda *arguments: None)
    bare = SimpleNamespace(target=SimpleNamespace(decoder=None), drafter=None)
    monkeypatch.setattr("real.pair.load_pair", lambda *arguments: bare)
    monkeypatch.setattr("real.jobs.scorecard.tune_for_timing", lambda *arguments: None)

    def command(*options):
        fixed_options = "--policy", "fixed:1", "--save", tmp_path / "s.json", "--json"
        return run(
            capsys, "scorecard", "tiny-eagle-greedy", "tiny-medusa-greedy", *fixed_options, *options
        )

    with pytest.raises(Killed):
        command()
    assert done == ["tiny-eagle-greedy"]
    stop.clear()
    report = json.loads(command()[1])
    assert (
        done
        == ["tiny-eagle-greedy", "tiny-medusa-greedy"]
        == [row["recording"] for row in report["rows"]]
    )
    assert json.loads(command()[1]) == report
    assert len(done) == 2
    code, out, error = command("--seed", 1)
    assert (code, out, len(done)) == (2, "", 2)
    assert "was made with seed 0, this is 1" in error


@pytest.mark.parametrize("name", ["teacher-force", "emulate", "scorecard"])
def test_help_has_an_example(name, tmp_path):
    code, out, _ = command(tmp_path, name, "--help")
    assert code == 0
    assert f"simspec {name}" in " ".join(out.split())
    assert "Example:" in out
    assert "--json" in out


def test_scorecard_command_on_a_bundled_recording(tmp_path):
    arguments = "scorecard", "tiny-model-greedy", "--policy", "fixed:1", "--prompts", 1, "--repeats"
    code, out, _ = command(tmp_path, *arguments, 1, "--json", "--plot", "p.png")
    report = json.loads(out)
    assert code == (0 if report["good"] else 1)
    assert report["noise_floor"] is None
    assert report["device"].startswith("cpu")
    assert not report["measurement"]
    plain, row = report["rows"]
    assert (plain["policy"], plain["error"], plain["speedup"]) == ("plain", None, 1)
    assert (row["policy"], row["drafter"], row["prompts"]) == ("fixed:1", "model", 1)
    assert row["predicted"] > 0 < row["measured"]
    assert (tmp_path / "p.png").exists()
    refused(tmp_path, *arguments, 0, words="--repeats is 0")
    refused(
        tmp_path,
        "scorecard",
        "tiny-model-greedy",
        "--prompts",
        500,
        words="500 prompts to score of 120",
    )
    refused(tmp_path, *arguments, 1, "--plot", "no/p.png", words="there is no folder no")
    refused(
        tmp_path,
        "scorecard",
        "tiny-prompt_lookup-greedy",
        "--policy",
        "confidence:0.5",
        words="'confidence' is not in this trace",
    )
    refused(
        tmp_path,
        "scorecard",
        "tiny-model-greedy",
        "--policy",
        "fixd:1",
        words="did you mean fixed?",
    )


def test_a_ratio_that_nobody_measured_is_said_where_a_policy_plans_with_it(tmp_path, capsys):
    path = tmp_path / "r.parquet"
    assert policy_cost_of(path, None, 4, ["fixed:2", "beta_ts"]).draft[1] == pytest.approx(0.1)
    assert capsys.readouterr().err == ""
    policy_cost_of(path, None, 4, ["fixed:2", "cost_ts"])
    assert "has no costs next to it: cost_ts plans with 0.1 plain steps" in capsys.readouterr().err
    CostModel.from_ratio(0.3, 4).to_json(tmp_path / "r.cost.json")
    assert policy_cost_of(path, None, 4, ["cost_ts"]).draft[1] == pytest.approx(0.3)
    assert capsys.readouterr().err == ""
