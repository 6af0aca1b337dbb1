"""Tuned arguments: where they are looked for, what is found, and what is left on other prompts."""

import json
import math
from dataclasses import replace
from inspect import signature

import numpy as np
import pytest
from shell import command, refused

from simspec import CostModel, replay, synthetic
from simspec.numerics.stats import Estimate, holm
from simspec.policies import CLAIRVOYANT, KINDS, make, parse
from simspec.policy.predictor import split_by_task
from simspec.policy_kind import Option
from simspec.reports.tuning import Half, Search, Tuned, corrected, default_text, policy_text, tune
from simspec.trace.recordings import recordings
from simspec.trace.trace import Trace, load_trace

QUICK = Search(trials=32, replicates=1)
COST = CostModel.from_ratio(0.2, 6)


def alternating(first: float, second: float, pairs=12, rows=40) -> Trace:
    """Sequences of one acceptance and of another, in turn: the halves of `split_by_task`."""
    longer = [synthetic.iid(a, pairs, rows, 6, seed) for seed, a in enumerate((first, second))]
    both = synthetic.iid(0.5, 2 * pairs, rows, 6)
    run = np.stack([part.run.reshape(pairs, rows) for part in longer], axis=1).reshape(-1)
    return replace(both, run=run)


def seconds(trace, text, seed=0):
    policy = make(text, trace, COST)
    return COST.seconds(replay(trace, policy, seed, COST)).sum()


def coordinate(where, value):
    """The inverse of `where.value`."""
    if isinstance(where, Option):
        return where.values.index(value)
    return math.log(value) if where.log else value


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.space])
def test_spaces_hold_arguments_of_policies_and_their_defaults(name):
    trace, factory = load_trace(recordings()["tiny-early_exit-greedy"]), signature(KINDS[name].make)
    defaults = {key: value.default for key, value in factory.parameters.items()}
    defaults |= KINDS[name].required
    for key, where in KINDS[name].space.items():
        low, high = where.bounds
        for x in (low, (low + high) / 2, high):
            value = where.value(x)
            assert where.value(coordinate(where, value)) == value
            text = policy_text(name, KINDS[name].required | {key: value})
            if not (name == "fixed" and value > trace.K):
                make(text, trace, CostModel.from_ratio(0.1, trace.K))
        if defaults[key] is not None:
            assert low - 1e-9 <= coordinate(where, defaults[key]) <= high + 1e-9


def test_every_policy_with_numbers_is_tuned():
    chains = {name: kind for name, kind in KINDS.items() if kind.group != "trees"}
    untuned = {name for name, kind in chains.items() if not kind.space}
    assert untuned == set(CLAIRVOYANT) & set(chains)


def test_fixed_length_is_the_best_of_all_on_the_prompts_tuned_on():
    trace = synthetic.iid(0.8, 24, 40, 6, 3)
    fit, held_out = split_by_task(trace)
    found = tune({"t": trace}, "fixed", {"t": COST}, QUICK)
    times = [seconds(trace.select(fit), f"fixed:{k}") for k in range(7)]
    best = int(np.argmin(times))
    assert found.tuned == f"fixed:k={best}"
    (row,) = found.recordings
    others = trace.select(held_out)
    assert row.fit.tuned.value == pytest.approx(trace.select(fit).rows / times[best])
    plain, start = others.rows, default_text("fixed")
    assert row.held_out.default.value == pytest.approx(plain / seconds(others, start))
    assert row.held_out.tuned.value == pytest.approx(plain / seconds(others, found.tuned))
    assert row.held_out.difference.value == pytest.approx(
        row.held_out.tuned.value - row.held_out.default.value
    )
    assert row.held_out.default.prompts == 12


@pytest.mark.parametrize("policy", ["beta_ts", "two_thresholds:scope=sequence", "hf_heuristic"])
def test_nothing_is_lost_on_the_prompts_tuned_on_and_seeds_repeat(policy):
    trace = synthetic.iid(0.6, 20, 30, 6, 1)
    found = tune({"t": trace}, policy, {"t": COST}, QUICK)
    assert found.recordings[0].fit.tuned.value >= found.recordings[0].fit.default.value
    assert found == tune({"t": trace}, policy, {"t": COST}, QUICK)
    assert parse(found.tuned) is not None
    if ":" in policy:
        assert "scope=sequence" in found.tuned


def test_a_gain_that_other_prompts_do_not_share_is_over_fitted_and_a_shared_one_holds():
    """Control: only the acceptance of the held-out prompts differs between the two."""
    one = tune({"t": alternating(0.95, 0.0)}, "fixed", {"t": COST}, QUICK)
    assert one.recordings[0].verdict == "over-fitted"
    assert one.gain("fit") > 0.02 > 0 > one.gain("held_out")
    two = tune({"t": alternating(0.95, 0.95)}, "fixed", {"t": COST}, QUICK)
    assert two.recordings[0].verdict == "holds"
    assert two.gain("held_out") == pytest.approx(two.gain("fit"), abs=0.05)


def test_the_default_is_kept_where_nothing_is_faster():
    trace, free = synthetic.iid(1.0, 20, 41, 3), CostModel.from_ratio(0.0, 3)
    found = tune({"t": trace}, "fixed", {"t": free}, QUICK)
    assert (found.tuned, found.recordings[0].verdict) == ("fixed:k=3", "default kept")
    assert found.gain("fit") == found.gain("held_out") == 0.0


def test_recordings_named_together_are_one_family():
    gains = {"a": alternating(0.95, 0.95), "b": alternating(0.95, 0.95, rows=30)}
    found = tune(gains, "fixed", dict.fromkeys(gains, COST), QUICK)
    alone = np.array([row.held_out.p for row in found.recordings])
    assert [row.p for row in found.recordings] == pytest.approx(holm(alone).tolist())
    assert {row.verdict for row in found.recordings} == {"holds"}


def test_one_setting_serves_all_recordings_by_the_mean_of_their_logarithms():
    traces = {"easy": synthetic.iid(0.95, 20, 40, 6), "hard": synthetic.iid(0.2, 20, 40, 6)}
    found = tune(traces, "fixed", dict.fromkeys(traces, COST), QUICK)
    fits = {name: trace.select(split_by_task(trace)[0]) for name, trace in traces.items()}
    sums = [sum(np.log(seconds(trace, f"fixed:{k}")) for trace in fits.values()) for k in range(7)]
    assert found.tuned == f"fixed:k={int(np.argmin(sums))}"
    assert [row.recording for row in found.recordings] == ["easy", "hard"]


def half(p, value=0.1):
    interval = Estimate(value, value - 0.05, value + 0.05, 0.95, 12)
    return Half(interval, interval, interval, p)


def rows_of(*held_out):
    return [Tuned(str(i), half(0.01), one, one.p, "") for i, one in enumerate(held_out)]


def test_verdicts_are_corrected_by_holm_and_slower_and_kept_settings_do_not_hold():
    """Control: each p alone is below 0.05."""
    alone = [corrected(rows_of(half(p)), 0.95)[0].verdict for p in (0.01, 0.02, 0.04)]
    assert alone == ["holds"] * 3
    rows = corrected(rows_of(half(0.04), half(0.01), half(0.03)), 0.95)
    assert [row.p for row in rows] == pytest.approx([0.06, 0.03, 0.06])
    assert [row.verdict for row in rows] == ["over-fitted", "holds", "over-fitted"]
    slower, kept = rows_of(half(0.001, -0.2), half(0.001))
    rows = corrected([slower, replace(kept, verdict="default kept")], 0.95)
    assert [row.verdict for row in rows] == ["over-fitted", "default kept"]


def test_no_recording_holds_where_setting_and_default_are_exchangeable():
    """Any false 'holds' of 6 recordings: at most 5%, of 400 families 20 and two errors; 35 are
    allowed. Control: without the correction it is 1 - 0.975^6 = 14%, 56 of 400.
    """
    rng = np.random.default_rng(1)
    families = [
        corrected(rows_of(*(half(p, d) for p, d in zip(rng.random(6), rng.normal(size=6)))), 0.95)
        for _ in range(400)
    ]
    false = sum(any(row.verdict == "holds" for row in rows) for rows in families)
    assert false <= 35
    alone = sum(
        any(row.held_out.p <= 0.05 and row.held_out.difference.value > 0 for row in rows)
        for rows in families
    )
    assert alone > 35


def test_command_prints_halves_and_the_text_to_sweep_with(tmp_path):
    alternating(0.95, 0.9).save(tmp_path / "t.parquet")
    words = ("tune", "fixed", "t.parquet", "--cost", "0.2", "--trials", "16")
    code, out, error = command(tmp_path, *words)
    assert code == 0, error
    assert "held out" in out
    text = out.split("--policy ")[1].split()[0]
    assert parse(text).name.startswith("fixed")
    data = json.loads(command(tmp_path, *words, "--json")[1])
    assert data["tuned"] == text
    assert [row["prompts"] for row in data["rows"]] == [12, 12]
    assert command(tmp_path, "sweep", "t.parquet", "--policy", text)[0] == 0


def test_too_few_prompts_have_no_interval(tmp_path):
    synthetic.iid(0.5, 9, 12, 4).save(tmp_path / "t.parquet")
    why = "4 prompts in a half are too few"
    refused(tmp_path, "tune", "fixed", "t.parquet", "--cost", "0.1", words=why)
