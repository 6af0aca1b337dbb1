"""Seconds agree with their prediction, or not; rounds are compared without them."""

import json
from dataclasses import replace

import numpy as np
import pytest
from cost_replicates import replicated
from shell import command
from toy_lm import toy_cost

from real.contest import doubt
from real.provenance import device_name
from simspec.cost.gate import Claim
from simspec.numerics.stats import Estimate

HERE = device_name("cpu")
COST = replace(replicated(toy_cost(), 8), device=HERE)


def test_noise_is_no_doubt():
    predicted, measured = Claim("fixed:2", 1.3, 2.0), Claim("fixed:2", 1.1, 2.0, 0.9)
    for low, settled in ((-0.05, True), (0.05, False), (np.nan, False)):
        error = Estimate(1.3 / 1.1 - 1, low, 0.4, 0.95, 20)
        assert (doubt(predicted, measured, error, COST, HERE) == "") == settled


def test_costs_of_another_device_predict_no_seconds_here():
    predicted, measured = Claim("fixed:2", 1.9, 2.0), Claim("fixed:2", 1.0, 2.0, 0.9)
    error = Estimate(0.9, 0.8, 1.0, 0.95, 20)
    assert "the seconds are not settled" in doubt(predicted, measured, error, COST, HERE)
    for cost in (replace(COST, device="another"), toy_cost()):
        assert doubt(predicted, measured, error, cost, HERE) == ""
    cheap = replace(COST, verify=COST.verify * np.array([1, 1, 0.3, 1, 1, 1, 1]))
    refused = doubt(Claim("fixed:2", 2.9, 2.0), measured, error, cheap, HERE)
    assert "fixed:2 would be 2.90 times" in refused
    assert "a round of 2 drafts at 0.7" in refused


@pytest.mark.parametrize("said", ["", "the seconds are not settled"])
def test_a_comparison_exits_with_1_where_seconds_are_not_settled(monkeypatch, tmp_path, said):
    monkeypatch.setattr("real.contest.doubt", lambda *_: said)
    toy_cost(16).to_json(tmp_path / "c.json")
    asked = "tiny-early_exit-greedy", "--policy", "fixed:1", "--prompts", 1, "--cost", "c.json"
    compare = "--compare", "--rival", "none", "--repeats", 1, "--budget", 8
    assert command(tmp_path, "run", *asked, *compare)[0] == bool(said)
    code, out, _ = command(tmp_path, "run", *asked, "--json")
    assert (code, json.loads(out)["replay_equal"]) == (0, True)


@pytest.mark.parametrize("equal", [True, False])
def test_demo_exits_with_1_where_rounds_differ(monkeypatch, tmp_path, equal):
    monkeypatch.setattr("real.commands.demo.SHOWN", ["tiny-early_exit-greedy"])
    if not equal:
        monkeypatch.setattr("real.rerun.Comparison.equal", False)
    code, out, error = command(tmp_path, "demo", "--json", "--prompts", 1)
    assert code == (not equal), error
    shown = json.loads(out)
    assert shown["replay_equal"] == equal
    (row,) = shown["rows"]
    assert (row["rounds"] > 20, row["failures"]) == (True, 0)
