"""Requirements of a campaign's report from given results; the worst drafter decides, not a mean."""

from dataclasses import replace
from types import SimpleNamespace

from real.audit.forced_comparison import MIN_EQUAL_SHARE
from real.bench.scoring import split_prompts
from real.campaign import report, thresholds
from real.campaign import scoring as trials
from real.campaign.presets import FULL, TOY
from real.campaign.selection import best_fixed
from real.demo import TRACES
from real.jobs import RULES
from simspec import CostModel, load_trace, policies, replay, synthetic


def passed(found, config=TOY):
    """name -> whether the line holds, where the parts found just that."""
    folder = SimpleNamespace(config=config, result=found.get, device="cpu")
    return {line.name: line.passed for line in report.requirements(folder, [])}


def test_the_worst_rule_of_the_worst_drafter_decides_on_forced_texts():
    def found(worst):
        one = {"rounds": 1000, "equal": 1000, "draft_flips": 0, "divergences": 0, "failures": 0}
        worse = {"eagle": one | {"equal": worst}}
        return {
            f"forced-{d}": {"rules": {"greedy": one, "coupled": worse.get(d, one)}}
            for d in thresholds.DRAFTERS
        }

    name, edge = "bf16 on the recordings' texts", round(1000 * MIN_EQUAL_SHARE)
    assert passed(found(edge))[name] is True
    assert passed(found(edge - 1))[name] is False
    assert passed({})[name] is None


def test_the_worst_context_at_batch_1_decides_on_a_step():
    def found(distance, other=9.0, graphed=True):
        cells = {
            "batch 1, context 8": 1.1,
            "batch 1, context 64": distance,
            "batch 4, context 8": other,
        }
        plain = {at: {"seconds": 1e-3, "floor": 1e-3, "distance": d} for at, d in cells.items()}
        return {"ladder-8b": {"bandwidth": 1e12, "rate": 1e12, "graphed": graphed, "plain": plain}}

    name, most = "captured plain step, 8b", thresholds.STEPS["8b"]
    assert passed(found(most))[name] is True
    assert passed(found(most + 0.01))[name] is False
    assert passed(found(most, graphed=False))[name] is False
    assert passed(found(None))[name] is True


def test_a_race_is_won_from_the_stated_ratio_on():
    def found(ratio):
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
    assert passed(found(thresholds.ASSISTED))[name] is True
    assert passed(found(thresholds.ASSISTED - 0.01))[name] is False


def test_rounds_apart_count_with_and_without_an_excuse():
    def found(**more):
        one = {"tokens": 1000, "rounds": 1000, "exceptions": 0, "failures": 0, "tf32": False} | more
        return {f"equal-{d}": one for d in thresholds.DRAFTERS}

    name, most = "float32 runs equal their replays", int(1000 * thresholds.EXCEPTIONS)
    assert passed(found(exceptions=most))[name] is True
    for more in (
        {"exceptions": most + 1},
        {"failures": most + 1},
        {"exceptions": most, "failures": 1},
        {"tf32": True},
        {"tokens": 10},
    ):
        assert passed(found(**more))[name] is False, more


def test_recordings_need_enough_prompts_of_enough_tasks():
    def found(tasks, many):
        one = {
            "texts": 9,
            "rows": 99,
            "mean_accepted_length": 1.0,
            "repeated_8grams": 0.0,
            "by_task": {f"t{i}": {"texts": many} for i in range(tasks)},
        }
        return {f"record-{d}-{rule}": one for d in thresholds.DRAFTERS for rule in RULES}

    assert passed(found(thresholds.TASKS, FULL.recording.per_task), FULL)["recordings"] is True
    for tasks, many in (
        (thresholds.TASKS - 1, FULL.recording.per_task),
        (thresholds.TASKS, FULL.recording.per_task - 1),
    ):
        assert passed(found(tasks, many), FULL)["recordings"] is False
    assert passed(found(1, TOY.recording.per_task))["recordings"] is True
    assert (
        passed(
            found(1, TOY.recording.per_task),
            replace(TOY, recording=replace(TOY.recording, per_task=TOY.recording.per_task + 1)),
        )["recordings"]
        is False
    )


def test_the_fixed_length_that_is_scored_is_chosen_on_other_prompts(monkeypatch):
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


def test_the_best_fixed_length_is_that_of_the_least_seconds():
    trace = synthetic.iid(0.9, 12, 40, 6, seed=2)
    for ratio in (0.02, 0.15, 0.4, 3.0):
        cost = CostModel.from_ratio(ratio, 6)
        total = [
            float(cost.seconds(replay(trace, policies.BUILTIN["fixed"](k), cost=cost)).sum())
            for k in range(7)
        ]
        assert total[best_fixed(trace, cost)] == min(total) < max(total)
    assert best_fixed(trace, cost) == 0 < best_fixed(trace, CostModel.from_ratio(0.02, 6))
