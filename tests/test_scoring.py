"""The order of a scorecard's runs, and what each of them starts with."""

from types import SimpleNamespace

import numpy as np
import pytest
from doctored_scorecard import doctored
from toy_lm import toy_cost, toy_recording

from real import sampling
from real.bench import scoring
from real.bench.phase_costs import phase_jobs
from real.bench.scoring import ScoreSettings, score, split_prompts
from real.decode.loop import decode
from real.pair import Pair

PROMPTS, REPEATS = 4, 2
JOBS = len(phase_jobs(3, False))


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


@pytest.fixture(scope="module")
def counted(calls):
    """The calls behind the warm-up: each policy once, and each timing job."""
    seen, scored, others = calls
    return seen[3 + JOBS :], scored, others


def test_every_policy_and_job_runs_once_before_all_that_count(calls, counted):
    seen, scored, others = calls
    assert names(seen[:3]) == ["fixed:2", "fixed:3", "fixed:0"]
    warm = seen[: 3 + JOBS]
    assert {address for _, address, _ in warm} <= others
    assert sum(address in scored for _, address, _ in counted[0]) == 3 * PROMPTS * REPEATS
    assert len(counted[0]) == 3 * PROMPTS * REPEATS + JOBS * PROMPTS
    assert len(set(names(seen[3 : 3 + JOBS]))) > 3


def blocks_of(counted):
    """Runs of successive calls on one prompt: (prompt, names)."""
    found = []
    for call, name in zip(counted, names(counted)):
        if not found or found[-1][0] != call[1]:
            found.append((call[1], []))
        found[-1][1].append(name)
    return found


def test_policies_of_a_prompt_run_back_to_back_in_shuffled_order(counted):
    seen, scored, others = counted
    blocks = blocks_of(seen)
    measured = [block for block in blocks if block[0] in scored]
    assert [prompt for prompt, _ in measured] == sorted(scored) * REPEATS
    assert all(sorted(ran) == ["fixed:0", "fixed:2", "fixed:3"] for _, ran in measured)
    assert len({tuple(ran) for _, ran in measured}) > 2


def test_blocks_of_the_costs_are_spread_among_those_of_the_policies(counted):
    seen, scored, others = counted
    blocks = blocks_of(seen)
    priced = [block for block in blocks if block[0] in others]
    assert {prompt for prompt, _ in priced} == others
    assert [len(ran) for _, ran in priced] == [JOBS] * PROMPTS
    assert len({tuple(ran) for _, ran in priced}) == PROMPTS
    kinds = [prompt in scored for prompt, _ in blocks]
    half = len(kinds) // 2
    assert 0 < kinds[:half].count(False) < PROMPTS
    assert kinds[:half] != sorted(kinds[:half])
    assert kinds[:half] != sorted(kinds[:half], reverse=True)


@pytest.mark.parametrize("repeats, others", [(5, 20), (3, 7), (2, 1)])
def test_every_repeat_has_its_share_of_the_costs(repeats, others):
    blocks = scoring._blocks(np.random.default_rng(0), 20, others, repeats)
    assert len(blocks) == repeats
    counts = [sum(not is_scored for is_scored, _ in repeat) for repeat in blocks]
    assert sum(counts) == others
    assert max(counts) - min(counts) <= 1
    assert sorted(s for repeat in blocks for is_scored, s in repeat if not is_scored) == [
        *range(others)
    ]
    for repeat in blocks:
        assert [s for is_scored, s in repeat if is_scored] == [*range(20)]


def test_every_run_draws_its_own_noise(calls):
    assert {noise for *_, noise in calls[0]} == {0}


def test_every_repeat_starts_with_new_plans(counted):
    seen, scored, _ = counted
    by_plan: dict[int, list[int]] = {}
    for plan, address, _ in seen:
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
        score("toy", trace, pair, ["cali_ts:side=model"], toy_cost(), ScoreSettings(2, 1))


def test_measured_speedup_is_over_measured_plain_decoding():
    row = doctored(plain=2.0)[0]
    assert row.speedup_measured == pytest.approx(2 * row.speedup)
