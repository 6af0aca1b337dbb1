"""The GPU campaign's toy twin: every stage on the CPU in seconds, resumed, packed."""

import json
import subprocess
import sys
import tarfile

import pytest
from typer.testing import CliRunner

import typer
from real.campaign import CHOSEN, DRAFTERS, GROWN, OFFERS, TREES, campaign, pack
from real.drafters import BUILTIN
from real.jobs import RULES
from simspec import load_trace

APP = typer.Typer(pretty_exceptions_enable=False)
APP.command()(campaign)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("campaign")
    words = "the drafter proposes and the target disposes of every token it is shown ".split()
    (folder / "text.txt").write_text(" ".join(words[i * i % len(words)] for i in range(4000)))
    rows = [{"id": f"p{i}", "task": "ab"[i % 2], "text": f"the target {words[i]}"} for i in range(6)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def _call(inputs, *more):
    arguments = ["--toy", "--device", "cpu", "--text", inputs / "text.txt", "--prompts", inputs / "prompts.jsonl", "--out", inputs / "out", *more]
    return CliRunner().invoke(APP, list(map(str, arguments)))


def test_all_stages_in_steps_equal_and_packed(inputs):
    for stages in ("train", "record,measure", "run,pack"):
        result = _call(inputs, "--stages", stages)
        assert result.exit_code == 0, result.output
    assert set(DRAFTERS) == set(BUILTIN)
    for drafter in DRAFTERS:
        for rule in RULES:
            report = json.loads((inputs / "out" / "runs" / f"toy-{drafter}-{rule}.json").read_text())
            known = load_trace(inputs / "out" / "traces" / f"toy-{drafter}-{rule}.parquet")
            assert known.K == min(4, OFFERS.get(drafter, 4)) and bool(known.meta.tree) == (drafter in GROWN)
            asked = (*CHOSEN, *(TREES if drafter in GROWN else ()))
            assert set(report) == {c for c in asked if drafter != "prompt_lookup" or "confidence" not in c}
            for outcome in report.values():
                assert outcome["replay_equal"] and outcome["lossless"] and outcome["rounds_compared"] > 0
                assert outcome["device"].startswith("cpu")
    names = []
    for folder in ("models", "traces", "runs"):
        with tarfile.open(inputs / "out" / f"{folder}.tar") as tar:
            assert all(name.split("/")[0] == folder for name in tar.getnames())
            names += tar.getnames()
    assert "models/target/model.safetensors" in names and "traces/toy-model-greedy.parquet" in names and "models/eagle/card.json" in names
    before = (inputs / "out" / "models" / "target" / "model.safetensors").read_bytes()
    again = _call(inputs)
    assert again.exit_code == 0 and "recording" not in again.output  # what is there is kept
    assert (inputs / "out" / "models" / "target" / "model.safetensors").read_bytes() == before


def test_a_file_too_large_to_travel_is_named_and_stays(tmp_path, monkeypatch):
    monkeypatch.setattr("real.campaign.LARGEST", 20_000)
    for folder, size in (("models", 9), ("traces", 30_000), ("runs", 9), ("work", 9)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "held").write_bytes(bytes(size))
    with pytest.raises(ValueError, match="traces.tar is larger than"):
        pack(tmp_path)
    assert sorted(p.name for p in tmp_path.glob("*.tar")) == ["models.tar", "runs.tar", "traces.tar"]


def test_an_unknown_stage_is_refused(inputs):
    result = _call(inputs, "--stages", "train,fly")
    assert result.exit_code == 2 and "fly" in result.output


def test_the_module_runs_as_make_runs_it():
    result = subprocess.run([sys.executable, "-m", "real.campaign", "--help"], capture_output=True, text=True, check=True)
    assert "--minutes" in result.stdout
