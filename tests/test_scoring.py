"""The order of a scorecard's runs, and what each of them starts with."""

from types import SimpleNamespace

import pytest
from doctored_scorecard import doctored
from toy_lm import toy_cost, toy_recording

from real import sampling
from real.bench import scoring
from real.bench.scoring import ScoreSettings, score, split_prompts
from real.decode.loop import decode
from real.pair import Pair

PROMPTS, REPEATS = 4, 2


@pytest.fixture(scope="module")
def calls():
    """Calls of the decode loop by a scorecard: (plan, address, noise held at the start)."""
    trace, target, drafter = toy_recording("prompt_lookup", "coupled", 8, K=3, budget=8)
    pair, seen = Pair(target, drafter, "toy", None, "", trace.meta.end_tokens), []

    def noted(*arguments):
        seen.append((arguments[2], arguments[7], sampling._noise.cache_info().currsize))
        return decode(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scoring, "decode", noted)
        settings = ScoreSettings(PROMPTS, REPEATS, 1)
        score("toy", trace, pair, ["fixed:2", "fixed:3"], toy_cost(), settings)
    scored, others = split_prompts(trace, PROMPTS, 1)
    return seen, set(scored.sequence.tolist()), set(others.sequence.tolist())


def names(seen):
    return [plan.stepper.policy.name for plan, *_ in seen]


def test_every_policy_runs_once_before_all_that_count(calls):
    seen, scored, others = calls
    assert names(seen[:3]) == ["fixed:2", "fixed:3", "fixed:0"]
    assert {address for _, address, _ in seen[:3]} <= others
    assert sum(address in scored for _, address, _ in seen[3:]) == 3 * PROMPTS * REPEATS


def test_runs_of_policies_and_timing_jobs_are_mixed(calls):
    seen, scored, _ = calls
    counted = seen[3:]
    runs = [call for call in counted if call[1] in scored]
    assert len(set(names(runs[:PROMPTS]))) > 1
    half = len(counted) // 2
    jobs = [sum(call[1] not in scored for call in part) for part in (counted[:half], counted)]
    assert 0 < jobs[0] < jobs[1]
    kinds = [call[1] in scored for call in counted[: half // 2]]
    assert kinds != sorted(kinds)
    assert kinds != sorted(kinds, reverse=True)


def test_every_run_draws_its_own_noise(calls):
    assert {noise for *_, noise in calls[0]} == {0}


def test_every_repeat_starts_with_new_plans(calls):
    seen, scored, _ = calls
    by_plan: dict[int, list[int]] = {}
    for plan, address, _ in seen[3:]:
        if address in scored:
            by_plan.setdefault(id(plan), []).append(address)
    assert len(by_plan) == 3 * REPEATS
    assert all(addresses == sorted(scored) for addresses in by_plan.values())


def test_predictors_of_another_recording_are_refused():
    trace, target, drafter = toy_recording("model", "greedy", 4)
    other = SimpleNamespace(sha256="f" * 64)
    bare = SimpleNamespace(name="model", has_logits=True, predictors={"theta": other})
    pair = SimpleNamespace(target=target, drafter=bare)
    with pytest.raises(ValueError, match="reads 'theta' by predictor ffff"):
        score("toy", trace, pair, ["model_only"], toy_cost(), ScoreSettings(2, 1))


def test_measured_speedup_is_over_measured_plain_decoding():
    row = doctored(plain=2.0)[0]
    assert row.speedup_measured == pytest.approx(2 * row.speedup)
