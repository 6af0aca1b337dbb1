"""The audit command: saved runs, faults, bias tests and invalid input."""

import json
from dataclasses import replace

import pytest
from emitter import tampered
from shell import command, refused

from real.audit.runs import load_run, save_run
from simspec.trace.recordings import CHECKOUT as TRACES


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A saved run of two bundled prompts."""
    directory = tmp_path_factory.mktemp("audit")
    cost = TRACES / "tiny-model-greedy.cost.json"
    code, out, error = command(
        directory,
        "run",
        "tiny-model-greedy",
        "--prompts",
        2,
        "--policy",
        "fixed:2",
        "--cost",
        cost,
        "--save",
        "run.jsonl",
        "--json",
    )
    assert code == 0, error
    assert json.loads(out)["lossless"]
    return directory


def test_command_audits_a_saved_run(folder):
    code, out, error = command(folder, "audit", "run.jsonl", "--against", "tiny-model-greedy")
    assert code == 0
    assert out.splitlines()[-1] == "clean"
    assert "2 equal" in out
    assert "auditing: 2/2" in error
    code, out, _ = command(folder, "audit", "run.jsonl", "--json", "--dtype", "float64")
    result = json.loads(out)
    assert code == 0
    assert result["clean"]
    assert result["sequences"] == 2
    assert result["tolerance"]["dtype"] == "float32"


def test_fault_exits_with_code_1(folder):
    run = load_run(folder / "run.jsonl")
    text = tampered(run, 1, 4, 77)
    save_run(folder / "bad.jsonl", text.header, text.sequences)
    code, out, _ = command(folder, "audit", "bad.jsonl")
    assert code == 1
    assert "sequence 1 " in out
    assert "FAILED" in out
    assert "NOT CLEAN" in out.splitlines()[-1]
    code, out, _ = command(folder, "audit", "bad.jsonl", "--json")
    result = json.loads(out)
    assert code == 1
    assert not result["clean"]
    assert result["failures"][0]["position"] == 4


def test_sampled_run_is_tested_for_drafter_bias(folder):
    run = load_run(folder / "run.jsonl")
    header = replace(run.header, rule="rejection", temperature=0.8)
    sequences = [replace(t, token=t.token[:3], rounds=()) for t in run.sequences]
    save_run(folder / "sampled.jsonl", header, sequences)
    code, out, _ = command(folder, "audit", "sampled.jsonl", "--json")
    assert code == 0
    assert json.loads(out)["sampling"]["bias_z"] is not None
    assert json.loads(out)["sampling"]["detectable_bias"] is None
    save_run(folder / "unknown.jsonl", replace(header, drafter="mine"), sequences)
    code, out, _ = command(folder, "audit", "unknown.jsonl")
    assert code == 0
    assert "not tested" in out


def test_invalid_input_exits_with_code_2(folder):
    run = load_run(folder / "run.jsonl")
    (folder / "broken.jsonl").write_text(
        '{"simspec": "run", "rule": "greedy"}\n{"prompt": [1], "token": "x"}\n'
    )
    save_run(
        folder / "large.jsonl",
        run.header,
        [replace(run.sequences[0], token=(2**31 - 1,), rounds=())],
    )
    save_run(folder / "other.jsonl", replace(run.header, target="else/123"), run.sequences)
    for arguments, words in (
        (["missing.jsonl"], "missing.jsonl cannot be read"),
        (["broken.jsonl"], "broken.jsonl: line 2: token is not a list"),
        (["tiny-modl-greedy"], "did you mean tiny-model-greedy?"),
        (["large.jsonl"], "holds token 2147483647"),
        (["other.jsonl"], "was made with target else/123"),
        (["run.jsonl", "--risk", 2], "--risk is 2.0"),
        (["run.jsonl", "--dtype", "int8"], "dtype 'int8' is unknown"),
        (["run.jsonl", "--against", "tiny-model-coupled"], "expected the same rule"),
        (["run.jsonl", "--models", "nowhere"], "nowhere"),
    ):
        refused(folder, "audit", *arguments, words=words, progress=True)
    refused(
        folder, "run", "tiny-model-greedy", "--save", "no/run.jsonl", words="there is no folder no"
    )


def test_help_shows_an_example(tmp_path):
    code, out, _ = command(tmp_path, "audit", "--help")
    assert code == 0
    assert "Example: simspec run" in " ".join(out.split())
    assert "--against" in out
    assert "--json" in out
