"""Rounds equal the replay, or not; seconds agree with the prediction, or not: two statements."""

import json
from dataclasses import replace

import numpy as np
import pytest
from cost_replicates import replicated
from shell import command
from test_run_sampled import recording
from toy_lm import END, toy_cost, toy_recording

import real.rerun
from real.pair import Pair
from real.provenance import device_name
from real.rerun import rerun, run_on, run_sampled
from real.seconds import doubt
from simspec.cost.gate import Claim
from simspec.numerics.stats import Estimate

HERE = device_name("cpu")
COST = replace(replicated(toy_cost(), 8), device=HERE)


def timed(factor, cost=COST):
    """Runs whose rounds cost what the prices say, times `factor`; plain steps the baseline."""

    def run(*given):
        ran, plain = rerun(*given)
        for result in ran:
            k, computed = result.drafted, result.computed
            spent = cost.draft[computed] + cost.verify[k] + cost.overhead
            result.seconds[:] = factor * spent[:, None] / 4
        for result in plain:
            result.seconds[:] = cost.baseline / 4
        return ran, plain

    return run


@pytest.fixture
def toy():
    trace, target, drafter = toy_recording("model", "greedy")
    return trace, Pair(target, drafter, "toy", None, "", END)


WORDS = {
    1.0: "simulated at costs measured here",
    1.9: "the seconds are not settled (predicted ",
    0.2: "which no round can reach: the clock was disturbed; run again on an idle machine",
}


@pytest.mark.parametrize("factor", WORDS)
def test_equal_rounds_are_one_statement_and_their_seconds_another(monkeypatch, toy, factor):
    monkeypatch.setattr(real.rerun, "rerun", timed(factor))
    outcome = run_on(*toy, "fixed:2", COST)
    assert outcome.equal
    assert "the rounds equal the replay; " in outcome.describe()
    assert WORDS[factor] in outcome.describe()
    assert (outcome.doubt == "") == (factor == 1) == ("measured, " in outcome.describe())
    assert outcome.summary()["doubt"] == outcome.doubt


def test_a_sampled_run_says_both_too(monkeypatch):
    trace, pair = recording("model")
    part = trace.select(range(10))
    for factor in (1.0, 1.9):
        monkeypatch.setattr(real.rerun, "rerun", timed(factor))
        outcome = run_sampled(part, pair, "fixed:2", COST, seed=1, risk=0.01)
        assert (WORDS[factor] in outcome.describe(), "no alarm" in outcome.describe()) == (1, 1)


def test_a_price_that_no_round_can_have_is_refused_with_its_cell(monkeypatch, toy):
    cheap = replace(COST, verify=COST.verify * np.array([1, 1, 0.3, 1, 1, 1, 1]))
    monkeypatch.setattr(real.rerun, "rerun", timed(1.0))
    outcome = run_on(*toy, "fixed:2", cheap)
    assert "toy: fixed:2 would be " in outcome.doubt
    assert "a round of 2 drafts at 0.7" in outcome.doubt


@pytest.mark.parametrize("cost", [replace(COST, device="another"), toy_cost()])
def test_costs_of_another_device_predict_no_seconds_here(monkeypatch, toy, cost):
    monkeypatch.setattr(real.rerun, "rerun", timed(1.9))
    outcome = run_on(*toy, "fixed:2", cost)
    assert outcome.doubt == ""
    assert "at costs of another" in outcome.describe() or "at given costs" in outcome.describe()


def test_noise_is_no_doubt():
    predicted, measured = Claim("fixed:2", 1.3, 2.0), Claim("fixed:2", 1.1, 2.0, 0.9)
    for low, settled in ((-0.05, True), (0.05, False), (np.nan, False)):
        error = Estimate(1.3 / 1.1 - 1, low, 0.4, 0.95, 20)
        assert (doubt(predicted, measured, error, COST, HERE) == "") == settled


@pytest.mark.parametrize("said", ["", "the seconds are not settled"])
def test_commands_exit_with_1_where_seconds_are_not_settled(monkeypatch, tmp_path, said):
    monkeypatch.setattr(real.rerun, "doubt", lambda *_: said)
    monkeypatch.setattr("real.commands.demo.SHOWN", ["tiny-early_exit-greedy"])
    code, out, error = command(tmp_path, "demo", "--json", "--prompts", 1)
    assert code == bool(said), error
    shown = json.loads(out)
    assert shown["replay_equal"]
    (row,) = shown["rows"]
    assert (row["rounds"] > 20, row["failures"]) == (True, 0)
    assert (row["simulated"] is None) == (row["measured"] is None) == bool(said)
    assert shown["unsettled"] == [f"tiny-early_exit-greedy: {said}"] * bool(said)
    toy_cost(16).to_json(tmp_path / "c.json")
    asked = "tiny-early_exit-greedy", "--policy", "fixed:1", "--prompts", 1, "--cost", "c.json"
    assert command(tmp_path, "run", *asked)[0] == bool(said)
