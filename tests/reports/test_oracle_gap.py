"""Shares of the gap to the oracle: definition, limits, errors, the command."""

from dataclasses import replace

import numpy as np
import pytest

from simspec import CostModel, replay, synthetic
from simspec.output.frames import texts
from simspec.policies import beta_ts, confidence, fixed, oracle
from simspec.reports import oracle_gap as score

COST = CostModel.from_ratio(0.2, 4)


@pytest.fixture(scope="module")
def trace():
    made = synthetic.iid(0.6, 12, 40, 4, seed=5)
    return replace(made, meta=replace(made.meta, tasks=("a", "b", "a") * 4))


def seconds(trace, policy, cost, seed=0):
    """Per sequence, by walking its rounds."""
    rounds, values = (
        replay(trace, policy, seed, cost),
        cost.seconds(replay(trace, policy, seed, cost)),
    )
    return np.array([sum(values[a:b]) for a, b in zip(rounds.offset, rounds.offset[1:])])


def test_figures_follow_from_definitions(trace):
    (result,) = score.score(
        {"t": trace}, COST, ["beta_ts", "fixed:2", "oracle"], replicates=2, seed=3
    )
    each = [seconds(trace, fixed(k), COST) for k in range(5)]
    times = [of.sum() for of in each]
    best = int(np.argmin(times))
    of_tasks = [[i for i, name in enumerate(trace.task) if name == task] for task in {*trace.task}]
    assert len(of_tasks) > 1
    by_task = sum(min(sum(of[i] for i in task) for of in each) for task in of_tasks)
    assert result["speedup_by_task"] == pytest.approx(480 / by_task)
    by_prompt = sum(min(of[i] for of in each) for i in range(12))
    assert result["speedup_by_prompt"] == pytest.approx(480 / by_prompt)
    least = seconds(trace, oracle(trace, COST), COST).sum()
    assert result["best_fixed"] == f"fixed:{best}"
    assert result["prompts"] == 12
    assert result["tokens"] == 480
    assert result["speedup_fixed"] == pytest.approx(480 / times[best])
    assert result["speedup_oracle"] == pytest.approx(480 / least)
    expected = [
        np.mean([seconds(trace, beta_ts(), COST, seed).sum() for seed in (3, 4)]),
        times[2],
        least,
    ]
    for row, name, time in zip(
        result["policies"], ("beta_ts:acceptance", "fixed:2", "oracle"), expected
    ):
        assert row["policy"] == name
        assert row["speedup"] == pytest.approx(480 / time)
        assert row["regret_fixed"] == pytest.approx(time / times[best] - 1)
        assert row["regret_oracle"] == pytest.approx(time / least - 1)
        assert row["share"] == pytest.approx((times[best] - time) / (times[best] - least))
        assert row["low"] <= row["share"] <= row["high"]
    assert [result["policies"][2][key] for key in ("share", "low", "high")] == [1, 1, 1]


def test_best_fixed_policy_scores_zero(trace):
    (result,) = score.score(
        {"t": trace}, COST, ["fixed:0", "fixed:1", "fixed:2", "fixed:3", "fixed:4"]
    )
    rows = {row["policy"]: row for row in result["policies"]}
    best = rows[result["best_fixed"]]
    assert (best["share"], best["low"], best["high"]) == (0, 0, 0)
    assert all(row["share"] <= 0 for row in rows.values())
    assert sum(row["share"] == 0 for row in rows.values()) == 1


def test_no_gap_has_no_share_and_a_gap_on_one_prompt_no_interval(trace):
    (result,) = score.score({"t": trace}, {"t": CostModel.from_ratio(5.0, 4)}, ["fixed:2"])
    row = result["policies"][0]
    assert result["best_fixed"] == "fixed:0"
    assert result["speedup_oracle"] == pytest.approx(1)
    assert row["share"] is row["low"] is row["high"] is None
    assert row["regret_fixed"] > 0
    assert score.score_frame([result])["share"].tolist() == [None] * 5
    run = trace.run.copy()
    run[trace.offset[1] :] = 0
    one = replace(trace, run=run)
    (result,) = score.score({"t": one}, COST, ["fixed:1"])
    row = result["policies"][0]
    assert row["share"] < 1
    assert row["low"] is row["high"] is None
    assert texts(score.score_frame([result]))[-1][-1] == f"{row['share']:.2f}"


def test_defaults_leave_out_missing_features(trace):
    (without,) = score.score({"t": trace}, 0.2, replicates=1, resamples=100)
    named = [row["policy"] for row in without["policies"]]
    assert "beta_ts:acceptance" in named
    assert not [name for name in named if name.startswith("confidence")]
    shown = synthetic.iid(0.7, 10, 30, 4, seed=1, confidence=True)
    (result,) = score.score({"s": shown}, 0.2, replicates=1, resamples=100)
    assert confidence(0.5).name in [row["policy"] for row in result["policies"]]


def test_policies_that_read_features_pay_for_them():
    shown = synthetic.iid(0.7, 10, 30, 4, seed=1, confidence=True)
    dear = CostModel(COST.draft, COST.verify, COST.catch_up, 0.0, 1.0, feature=0.1)
    free, paid = (
        score.score({"s": shown}, cost, ["confidence:0.5", "fixed:2"])[0]["policies"]
        for cost in (COST, dear)
    )
    assert paid[0]["speedup"] < free[0]["speedup"]
    assert paid[1]["speedup"] == free[1]["speedup"]


def test_too_few_prompts_are_refused(trace):
    with pytest.raises(ValueError, match="7 prompts are too few"):
        score.score({"t": trace.select(range(7))}, COST, ["fixed:1"])
