"""Drafts longer than a drafter can make are refused by `measure`, before models are loaded."""

import json
import shutil

import pytest
from shell import refused
from toy_lm import toy_pair

from real.drafters import BUILTIN
from real.measure import MeasureSettings
from real.measure.price import measure
from real.pair import TINY
from real.sampling import Rule


def must_not_run(*_, **__):
    raise AssertionError("models were loaded")


@pytest.fixture
def unloadable(monkeypatch):
    monkeypatch.setattr("real.pair.load_pair", must_not_run)


MOST = {"medusa": 4, "hydra": 4, "lookahead": 4}


@pytest.mark.parametrize("drafter", MOST)
@pytest.mark.parametrize("depth", [5, 255])
def test_longer_drafts_than_declared_are_refused_unloaded(tmp_path, unloadable, drafter, depth):
    words = f"at most {MOST[drafter]} tokens a round, asked for {depth}: measure it with --depth 4"
    refused(tmp_path, "measure", "-k", depth, "--drafter", drafter, "--out", "x.json", words=words)


def test_weights_of_another_folder_declare_their_own_depth(tmp_path, unloadable):
    shutil.copytree(TINY / "hydra", tmp_path / "heads")
    stored = json.loads((tmp_path / "heads" / "hydra.json").read_text())
    stored["settings"]["heads"] = 7
    (tmp_path / "heads" / "hydra.json").write_text(json.dumps(stored))
    command = ["measure", "--drafter", "hydra", "--weights", "heads", "--out", "x.json"]
    refused(tmp_path, *command, "-k", 8, words="at most 7 tokens")


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"settings": {"heads": "4"}}', '{"settings": {"heads": -1}}']
)
def test_files_that_declare_nothing_are_left_to_the_loader(tmp_path, text):
    (tmp_path / "medusa.json").write_text(text)
    assert BUILTIN["medusa"].declared(tmp_path) is None


def test_a_loaded_drafter_is_asked_too(monkeypatch):
    target, drafter = toy_pair("medusa")
    monkeypatch.setattr(type(drafter), "begin", must_not_run)
    with pytest.raises(ValueError, match="drafts at most . tokens a round, asked for 255"):
        measure(target, drafter, Rule(), 255, MeasureSettings())


@pytest.mark.parametrize("drafter", ["model", "eagle", "prompt_lookup", "early_exit"])
def test_control_drafters_without_a_limit_declare_none(drafter):
    assert BUILTIN[drafter].declared(TINY / drafter) is None
