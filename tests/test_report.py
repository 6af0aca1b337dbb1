"""Requirements of a campaign's report from given results; the worst drafter decides, not a mean."""

from dataclasses import replace
from types import SimpleNamespace

from real.audit.forced_decoding import MIN_EQUAL_SHARE
from real.bench.scoring import split_prompts
from real.campaign import report
from real.campaign import requirements as thresholds
from real.campaign import timings as trials
from real.campaign.config import FULL, TOY
from real.campaign.recordings import best_fixed
from real.demo import TRACES
from real.jobs import RULES
from simspec import CostModel, load_trace, policies, replay, synthetic


def passed(results, config=TOY):
    """name -> whether the line holds, where the parts found just that."""
    folder = SimpleNamespace(config=config, result=results.get, device="cpu")
    return {line.name: line.passed for line in report.requirements(folder, [])}


def test_teacher_forced_requirement_uses_the_worst_drafter_and_rule():
    def results(worst):
        one = {"rounds": 1000, "equal": 1000, "draft_flips": 0, "divergences": 0, "failures": 0}
        worse = {"eagle": one | {"equal": worst}}
        return {
            f"forced-{d}": {"rules": {"greedy": one, "coupled": worse.get(d, one)}}
            for d in thresholds.DRAFTERS
        }

    name, edge = "bf16 on the recordings' texts", round(1000 * MIN_EQUAL_SHARE)
    assert passed(results(edge))[name] is True
    assert passed(results(edge - 1))[name] is False
    assert passed({})[name] is None


def test_captured_step_requirement_uses_the_worst_context():
    def results(distance, other=9.0, graphed=True):
        cells = {
            "batch 1, context 8": 1.1,
            "batch 1, context 64": distance,
            "batch 4, context 8": other,
        }
        plain = {cell: {"seconds": 1e-3, "floor": 1e-3, "distance": d} for cell, d in cells.items()}
        return {"ladder-8b": {"bandwidth": 1e12, "rate": 1e12, "graphed": graphed, "plain": plain}}

    name, most = "captured plain step, 8b", thresholds.STEPS["8b"]
    assert passed(results(most))[name] is True
    assert passed(results(most + 0.01))[name] is False
    assert passed(results(most, graphed=False))[name] is False
    assert passed(results(None))[name] is True


def test_race_requirement_starts_at_its_ratio():
    def results(ratio):
        over = [
            {
                "group": "all",
                "contestant": "model=a",
                "assisted": "assisted:constant",
                "ratio": ratio,
            }
        ]
        return {"race": {"over_assisted": over, "rows": [], "verdict": "recommended: plain"}}

    name = "race against transformers on the lab target"
    assert passed(results(thresholds.ASSISTED))[name] is True
    assert passed(results(thresholds.ASSISTED - 0.01))[name] is False


def test_mismatched_rounds_count_excused_or_not():
    def results(**changes):
        one = {
            "tokens": 1000,
            "rounds": 1000,
            "exceptions": 0,
            "failures": 0,
            "tf32": False,
        } | changes
        return {f"equal-{d}": one for d in thresholds.DRAFTERS}

    name, most = "float32 runs equal their replays", int(1000 * thresholds.EXCEPTIONS)
    assert passed(results(exceptions=most))[name] is True
    for changes in (
        {"exceptions": most + 1},
        {"failures": most + 1},
        {"exceptions": most, "failures": 1},
        {"tf32": True},
        {"tokens": 10},
    ):
        assert passed(results(**changes))[name] is False, changes


def test_recordings_need_enough_prompts_of_enough_tasks():
    def results(tasks, many):
        one = {
            "texts": 9,
            "rows": 99,
            "mean_accepted_length": 1.0,
            "repeated_8grams": 0.0,
            "by_task": {f"t{i}": {"texts": many} for i in range(tasks)},
        }
        return {f"record-{d}-{rule}": one for d in thresholds.DRAFTERS for rule in RULES}

    assert passed(results(thresholds.TASKS, FULL.recording.per_task), FULL)["recordings"] is True
    for tasks, many in (
        (thresholds.TASKS - 1, FULL.recording.per_task),
        (thresholds.TASKS, FULL.recording.per_task - 1),
    ):
        assert passed(results(tasks, many), FULL)["recordings"] is False
    assert passed(results(1, TOY.recording.per_task))["recordings"] is True
    assert (
        passed(
            results(1, TOY.recording.per_task),
            replace(TOY, recording=replace(TOY.recording, per_task=TOY.recording.per_task + 1)),
        )["recordings"]
        is False
    )


def test_scored_fixed_length_is_chosen_on_other_prompts(monkeypatch):
    path = TRACES / "tiny-model-coupled.parquet"
    trace, cost, seen = load_trace(path).select(range(12)), CostModel.from_ratio(0.2, 16), []
    folder = SimpleNamespace(
        config=TOY,
        seed=0,
        device="cpu",
        progress=print,
        pair=lambda *_: None,
        trace=lambda *_: path,
    )
    folder.open_recording = lambda *_: (trace, cost)
    monkeypatch.setattr(
        trials,
        "select_policies",
        lambda folder, others, cost: seen.append(set(others.sequence.tolist())),
    )
    monkeypatch.setattr(trials, "score", lambda *_: [])
    trials.score_drafter(folder, "model")
    mine = set(split_prompts(trace, TOY.scoring.prompts, 0)[0].sequence.tolist())
    assert len(seen) == 1
    assert seen[0] == set(trace.sequence.tolist()) - mine
    assert len(mine) == TOY.scoring.prompts


def test_best_fixed_length_has_the_least_time():
    trace = synthetic.iid(0.9, 12, 40, 6, seed=2)
    for ratio in (0.02, 0.15, 0.4, 3.0):
        cost = CostModel.from_ratio(ratio, 6)
        total = [
            float(cost.seconds(replay(trace, policies.BUILTIN["fixed"](k), cost=cost)).sum())
            for k in range(7)
        ]
        assert total[best_fixed(trace, cost)] == min(total) < max(total)
    assert best_fixed(trace, cost) == 0 < best_fixed(trace, CostModel.from_ratio(0.02, 6))
