"""Contests: rates are exact on a simulated clock, calls are shuffled, a killed one continues."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from contest_clock import Clock, failing, requests, timed
from cost_replicates import replicated
from simulated_races import simulated, true_ratio
from toy_lm import toy_cost, toy_recording

from real import contest as module
from real.contest import (
    Contestant,
    Kept,
    Prediction,
    Request,
    Runs,
    compared,
    contest,
    policy_contestant,
    predictions,
    speedup_measured,
)
from real.decode import verify as phase_timer
from real.decode.verify import DRAFTING, VERIFICATION, PhaseTimer
from simspec import CostModel, policies, replay, synthetic
from simspec.cost.gate import no_interval

TRACE = synthetic.iid(0.6, 4, 20, 4)


COST = replace(replicated(CostModel.from_ratio(0.1, 4)), baseline=0.25, device="here")


def table_of(runs, predicted=(), trace=TRACE, cost=COST):
    found = compared(trace, list(runs.values()), dict(predicted), cost, "here")
    return {row["contestant"]: row for _, row in found.iterrows()}


def test_rates_equal_simulated_times():
    runs = timed(
        ("plain", 0.5, 0.25),
        ("generate", 0.5, 0.5),
        ("fixed:3", 1.0, 0.25, {"commits": 4, "factor": (2, 1, 4, 1)}),
    )
    rows = table_of(runs)
    ours = rows["fixed:3"]
    assert ours["tokens/round"] == 4
    seconds = np.array([18, 9, 36]).mean()
    assert ours["tokens/s"] == pytest.approx(80 / seconds)
    assert ours["measured"].value == pytest.approx(22 / seconds)
    assert np.isnan(ours["measured"].low)  # too few prompts
    assert rows["generate"]["measured"].value == pytest.approx(22 / 42)
    assert rows["plain"]["measured"].value == 1
    assert runs["plain"].first == [[0.75] * 4] * 3


def test_a_prediction_is_end_to_end_and_its_error_is_beside_it():
    """Each prompt takes 0.75 s to its first token, then 19 passes, or as many seconds as said."""
    runs = timed(("plain", 0.5, 0.25), ("fixed:3", 1.0, 0.25, {"commits": 4}))
    said = Prediction(np.full((4, 1), 2.25), np.full(4, 20 * 0.25), 20.0)
    row = table_of(runs, {"fixed:3": said})["fixed:3"]
    predicted = (0.75 + 19 * 0.25) / (1.25 + 2.0)
    assert row["predicted"].value == pytest.approx(predicted)
    assert row["error"].value == pytest.approx(predicted / row["measured"].value - 1)
    assert row["replayed"] == TRACE.rows / 20
    # a prompt's pass that is slower in one repeat, as another host's may be
    for each in runs.values():
        each.first[1] = [seconds + 6 for seconds in each.first[1]]
    slower = table_of(runs, {"fixed:3": said})["fixed:3"]["predicted"].value
    assert slower == pytest.approx((2.75 + 19 * 0.25) / (3.25 + 2.0))
    # an older file's, timed in the first repeat
    assert Runs("a", seconds=[[1, 1]] * 2, first=[1, 2]).first == [[1, 2]] * 2


def test_predicted_rounds_are_those_of_the_replay_of_that_seed():
    trace = toy_recording("model", "greedy", 3)[0]
    policy, cost = policies.parse("beta_ts"), toy_cost()
    found = predictions(trace, [policy], cost, 5)[policy.name]
    rounds = replay(trace, policy, seed=5, cost=cost)
    assert found.rounds == len(rounds)
    assert found.seconds[:, 0].sum() == pytest.approx(cost.seconds(rounds).sum())


def test_control_other_texts_are_counted():
    def changed(token, repeat, s):
        return [*token[:-1], 99] if s == 2 and repeat == 1 else token

    rows = table_of(timed(("plain", 1, 1), ("fixed:1", 1, 1, {"change": changed})))
    assert (rows["fixed:1"]["equal"], rows["plain"]["equal"]) == (3, 4)


def test_control_a_speedup_beyond_tokens_a_round_or_the_prediction_is_remarked():
    """Predicted 1.82 at 2 tokens a round; one sample a cell gives no interval."""

    def runs(name, passes, seconds):
        rng = np.random.default_rng(0)
        noisy = passes * seconds * np.exp(rng.normal(0, 0.02, (5, 20)))
        token = [[[s] * 10 for s in range(20)]] * 5
        return Runs(name, token, [[passes] * 20] * 5, noisy.tolist(), [[seconds] * 20] * 5)

    trace = synthetic.iid(0.6, 20, 10, 4)
    alike = replicated(CostModel.from_ratio(0.1, 4), 3, spread=0)
    for seconds, remark, cost in (
        (0.8, "no round can reach: the clock was disturbed", COST),
        (1.1, None, COST),
        (1.1, None, replace(alike, baseline=0.25, device="here")),
        (1.6, "the seconds are not settled (predicted 1.82, measured 1.25): run again", COST),
        (1.6, None, replace(COST, device="elsewhere")),
    ):
        both = {"plain": runs("plain", 10, 1.0), "fixed:1": runs("fixed:1", 5, seconds)}
        both["fixed:1"].first = [[1.0] * 20] * 5
        said = Prediction(np.full((20, 1), 4.75), np.full(20, 9.25), 100.0)
        row = table_of(both, {"fixed:1": said}, trace, cost)["fixed:1"]
        assert (remark is None) == (row["remark"] is None)
        assert (remark or "") in str(row["remark"])
        assert np.isnan(row["predicted"].low) == bool(no_interval(cost))


@pytest.mark.parametrize("after", [0, 1, 5, 11])
def test_failing_contestant_reports_its_error(after):
    clock = Clock()
    others = clock.contestant("plain", 1, 1), clock.contestant("fixed:1", 1, 2)
    rows = table_of(timed(others[0], failing("generate", after), others[1], clock=clock))
    assert rows["generate"]["remark"] == "RuntimeError: no room"
    assert rows["fixed:1"]["tokens/s"] == pytest.approx(20 / 41)
    with pytest.raises(RuntimeError, match="no"):
        timed(failing("plain", 3))


def calls_of(names, seed, repeats=2, prompts=5, kept=None):
    """Calls in order: (contestant, number of `begin`, prompt, budget), and warm-ups."""
    calls = []

    def contestant(name):
        began = []

        def begin():
            began.append(0)
            number = len(began)

            def generate(request):
                calls.append((name, number, request.address, request.budget))
                return [5] * request.budget, request.budget

            return generate

        return Contestant(name, begin, lambda: calls.append((name, "warm")))

    asked = [Request([1], 4 + s, s) for s in range(prompts)]
    contest([contestant(name) for name in names], asked, repeats, seed, kept=kept)
    return calls


def test_contestants_of_a_block_run_back_to_back_in_shuffled_order():
    names, prompts = ["plain", "fixed:1", "generate"], 5
    calls = calls_of(names, 3)
    warmed = [i for i, call in enumerate(calls) if call[1] == "warm"]
    assert [calls[i][0] for i in warmed] == names  # each behind its own first calls
    counted = calls[warmed[-1] + 1 :]
    assert all(call[0] == calls[i][0] for i in warmed for call in calls[i - 2 : i])
    whole = [call for call in counted if call[3] > 1]
    first = [call for call in counted if call[3] == 1]
    blocks = [whole[i : i + 3] for i in range(0, len(whole), 3)]
    assert [{call[2] for call in block} for block in blocks] == [{s} for s in range(prompts)] * 2
    assert all({call[0] for call in block} == set(names) for block in blocks)
    assert len({tuple(call[0] for call in block) for block in blocks}) > 2
    for name in names:
        states = [began for who, began, *_ in whole if who == name]
        assert states == sorted(states)  # one state a repeat, which goes on to the next prompt
        assert [states.count(state) for state in set(states)] == [prompts] * 2
        assert [s for who, _, s, _ in first if who == name] == [*range(prompts)] * 2
        fresh = {began for who, began, *_ in first if who == name}
        assert len(fresh - set(states)) == 2 * prompts  # none of these
    assert len({tuple(call[0] for call in calls_of(names, seed)) for seed in range(4)}) == 4
    assert calls_of(names, 3) == calls


def test_a_killed_contest_continues_with_the_repeat_that_was_not_finished(tmp_path):
    names, path = ["plain", "a", "b"], tmp_path / "s.json"
    whole = calls_of(names, 0, 3)
    calls_of(names, 0, 2, kept=Kept(path, {"seed": 0}, "one"))
    again = Kept(path, {"seed": 0}, "two")
    assert again.load(names, 5) == 2
    rest = calls_of(names, 0, 3, kept=again)
    assert [call[::2] for call in rest[-30:]] == [call[::2] for call in whole[-30:]]
    assert len(rest) == 3 * 3 + 30  # warm-ups, and one repeat with its first tokens
    kept = Kept(path, {"seed": 0}, "two")
    assert kept.saved.revisions == ["one", "two"]
    assert calls_of(names, 0, 3, kept=kept) == []
    with pytest.raises(ValueError, match="s.json was made with seed 0, now 1"):
        Kept(path, {"seed": 1})


@pytest.mark.parametrize(
    "spoil",
    [
        lambda saved: saved.pop("runs"),
        lambda saved: saved["runs"][0].update(surplus=1),
        lambda saved: saved["runs"][0]["first"].__setitem__(0, 1.0),
        lambda saved: saved["runs"][0]["first"][1].pop(),
        lambda saved: saved["runs"][0]["seconds"].pop(),
        lambda saved: saved["runs"][0]["seconds"][0].pop(),
        lambda saved: saved["runs"][0]["seconds"][0].__setitem__(0, 0.0),
        lambda saved: saved["runs"][0]["seconds"][0].__setitem__(0, "1"),
        lambda saved: saved["runs"].reverse(),
        lambda saved: saved["runs"][0]["first"].pop(),
    ],
)
def test_damaged_repeats_are_refused_in_one_line(tmp_path, spoil):
    path = tmp_path / "s.json"
    calls_of(["plain", "a"], 0, kept=Kept(path, {}))
    saved = json.loads(path.read_text())
    spoil(saved)
    path.write_text(json.dumps(saved))
    with pytest.raises(ValueError, match="name another file") as caught:
        calls_of(["plain", "a"], 0, kept=Kept(path, {}))
    assert "\n" not in str(caught.value)


def test_contests_that_cannot_be_are_refused():
    ok = failing("plain", 99)
    for entries, asked, repeats in (([ok] * 2, 1, 1), ([ok], 0, 1), ([ok], 1, 0)):
        with pytest.raises(ValueError, match="no contestant twice"):
            contest(entries, requests(asked, 1), repeats)


RACES = 600
LEAST, MOST = 0.91, 0.98
"""Of 600 intervals of 95%: a share's standard error is 0.9%. Seeds are fixed."""


def covered(truth, **machine):
    rng = np.random.default_rng(7)

    def runs(tokens, seconds):
        token = [[[0] * int(n) for n in repeat] for repeat in tokens]
        return Runs("x", token, seconds=seconds.tolist())

    found = []
    for _ in range(RACES):
        ours, theirs = np.split(np.array(simulated(rng, **machine)), 2)
        found.append(speedup_measured(runs(*ours), runs(*theirs), resamples=300))
    return np.mean([truth in each for each in found])


def test_intervals_hold_the_true_ratio_as_often_as_stated():
    assert LEAST <= covered(1.0, bursts=0.02) <= MOST
    assert LEAST <= covered(true_ratio(1.2, 0.2), ratio=1.2, spread=0.2) <= MOST


def test_control_without_blocks_the_drift_is_not_held():
    assert covered(1.0, blocks=False) < 0.85


class Device:
    """Work waits in a queue; the clock advances when somebody waits for it."""

    def __init__(self):
        self.now = self.queue = 0.0

    def work(self, seconds=1.0):
        self.queue += seconds

    def synchronize(self, *_):
        self.now, self.queue = self.now + self.queue, 0.0

    def clock(self):
        return self.now


@pytest.fixture
def device(monkeypatch):
    simulated = Device()
    monkeypatch.setattr(torch.cuda, "synchronize", simulated.synchronize)
    monkeypatch.setattr(phase_timer, "perf_counter", simulated.clock)
    return simulated


def test_a_call_is_timed_to_its_end_and_from_an_idle_device(device):
    def begin():
        device.work(7)

        def generate(request):
            device.work(request.budget)
            return [0] * request.budget, request.budget

        return generate

    asked = [Request([1], 3), Request([1], 4)]
    (runs,) = contest([Contestant("plain", begin)], asked, 2, 0, "cuda", timer=device.clock)
    assert runs.seconds == [[3, 4]] * 2
    assert runs.first == [[1, 1]] * 2


def test_phases_are_timed_to_their_end_where_that_is_asked_for(device):
    for exact, seconds in ((True, [3, 2]), (False, [0, 0])):
        clock = PhaseTimer(torch.device("cuda"), exact)
        clock.begin()
        device.work(3)
        clock.lap(DRAFTING)
        device.work(2)
        clock.lap(VERIFICATION)
        assert clock.rows[0][:2] == seconds


def test_our_loop_runs_without_waits_between_phases(monkeypatch):
    trace, target, drafter = toy_recording("model", "greedy", 2)
    asked = []

    def decoded(*_, **options):
        asked.append(options)
        return SimpleNamespace(token=np.zeros(3, np.int32), position=np.zeros(1))

    monkeypatch.setattr(module, "decode", decoded)
    pair, policy = SimpleNamespace(target=target), policies.parse("fixed:2")
    ours = policy_contestant("fixed:2", pair, drafter, policy, trace, toy_cost(), 0)
    assert ours.begin()(Request([5], 3)) == ([0, 0, 0], 1)
    assert asked == [{"exact": False}]
