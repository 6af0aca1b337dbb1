"""The scorecard on a simulated clock: exact predictions, and costs from other prompts."""

from dataclasses import replace

import pytest
from doctored_scorecard import PARTS
from simulated_machine import ROW, Machine, layers
from toy_lm import toy_cost, toy_pair, toy_recording

from real.bench import scoring
from real.bench.phase_costs import RoundTimes, interpolated_means, phase_costs, phase_jobs
from real.bench.scorecard import Scorecard
from real.bench.scoring import ScoreSettings, score, split_prompts
from real.decode.features import FeatureReader
from real.decode.loop import decode
from real.decode.plans import chain_plan
from real.draft import Silent
from real.measure.timing import FEATURES, FIXED, PLAIN, Job, draft_jobs
from real.model.target import Target
from real.pair import Pair
from real.rerun import prompts_of, rule_of
from simspec import Stepper, policies

ASK, READ, KEEP = 1 / 8, 1 / 4, 1 / 16


@pytest.fixture
def machine(monkeypatch):
    """A machine on which calling the policy, reading and committing take fixed times too.

    Any text that drafter and target give alike will do, so layers do not compute.
    """
    simulated = Machine(monkeypatch, computes=False)

    def slow(kind, name, seconds):
        honest = getattr(kind, name)

        def slowed(self, *arguments):
            simulated.time += seconds
            return honest(self, *arguments)

        monkeypatch.setattr(kind, name, slowed)

    slow(Stepper, "ask", ASK)
    slow(FeatureReader, "read", READ)
    slow(Target, "commit", KEEP)
    return simulated


def toy(name):
    """(recording, pair) of the machine's layers, which no later test may be given."""
    trace, target, drafter = toy_recording.__wrapped__(name, "greedy", 8)
    return trace, Pair(target, drafter, "toy", None, "", trace.meta.end_tokens)


def scored(name, texts, **changes):
    trace, pair = toy(name)
    settings = ScoreSettings(**{"prompts": 5, "repeats": 2, "seed": 1} | changes)
    return score("toy", trace, pair, texts, toy_cost(), settings)


@pytest.mark.parametrize("name", ["model", "early_exit"])
def test_predictions_are_exact_on_a_simulated_clock(name, machine):
    rows = scored(name, ["fixed:0", "fixed:2", "fixed:5", "beta_ts:censored", "confidence:0.5"])
    assert [row.policy for row in rows][:2] == ["plain", "fixed:0"]
    for row in rows:
        assert row.predicted == pytest.approx(row.measured, rel=1e-12), row.policy
        assert abs(row.error or 0.0) < 1e-12, row.policy
        assert abs(row.rate_error) < 1e-12, row.policy
        assert row.phases == pytest.approx(row.phases_measured, rel=1e-12)
        assert row.noise == 0
        assert row.tau == row.tau_measured
        assert row.speedup == pytest.approx(row.speedup_measured, rel=1e-12)
        assert max(abs(getattr(row, part)) for part in PARTS) < 1e-12
    card = Scorecard("cpu", "float64", 2, 1, tuple(rows))
    assert card.median_abs_error < 1e-12
    assert card.noise_floor == 0
    assert card.good
    zero = rows[1]
    assert zero.phases_measured == pytest.approx(
        [0, zero.rounds * layers(4, 1, 1), zero.rounds * ASK, zero.rounds * KEEP]
    )


def test_phase_costs_equal_the_simulated_work(machine):
    trace, pair = toy("model")
    price = priced(trace, pair, 4)
    assert price.drafting == pytest.approx([j * layers(3, 1, 1) for j in range(5)])
    assert price.verification == pytest.approx([layers(4, j + 1, 1) for j in range(5)])
    assert price.policy == pytest.approx([ASK * (j + 1) for j in range(5)])
    assert price.other == pytest.approx([KEEP] * 5)
    assert price.catch_up == pytest.approx([3 * ROW * b for b in range(5)])
    assert price.feature == pytest.approx(READ)
    assert price.plain == pytest.approx([0, layers(4, 1, 1), ASK, KEEP])


def priced(trace, pair, K):
    times = RoundTimes()
    for job in phase_jobs(K, has_logits=True):
        for s, prompt in enumerate(prompts_of(trace)):
            plan = chain_plan(job.policy, trace.K, 0, toy_cost())
            ran = decode(
                pair.target,
                (Silent() if job.kind == PLAIN else pair.drafter),
                plan,
                rule_of(trace),
                prompt,
                int(trace.budget[s]),
                trace.meta.end_tokens,
                s,
            )
            times.add(job, ran)
    return phase_costs(times, K)


def test_scored_and_cost_prompts_are_disjoint():
    trace = toy_recording("model", "greedy", 12)[0]
    for seed in range(4):
        one, other = split_prompts(trace, 5, seed)
        assert one.sequences == 5 == other.sequences
        assert not set(one.meta.ids) & set(other.meta.ids)
    assert split_prompts(trace, 5, 0)[0].meta.ids != split_prompts(trace, 5, 1)[0].meta.ids
    assert split_prompts(trace, 11, 0)[1].sequences == 1
    for prompts in (0, 12):
        with pytest.raises(
            ValueError, match="prompts to score of 12; expected at least 1, and one left over"
        ):
            split_prompts(trace, prompts, 0)


def test_control_slower_cost_prompts_are_detected(machine, monkeypatch):
    """Costs come from the other prompts only: where those are slow, the prediction is wrong."""
    honest = scoring.split_prompts

    def noted(trace, prompts, seed):
        one, other = honest(trace, prompts, seed)
        slow.update(other.sequence.tolist())
        return one, other

    slow: set[int] = set()

    def slower_there(*arguments):
        result = decode(*arguments)
        return replace(result, seconds=result.seconds * (2 if arguments[-1] in slow else 1))

    monkeypatch.setattr(scoring, "split_prompts", noted)
    monkeypatch.setattr(scoring, "decode", slower_there)
    plain, row = scored("model", ["fixed:2"])
    assert row.rate_error == plain.rate_error == pytest.approx(-0.5)
    assert row.error == pytest.approx(0, abs=1e-12)  # both are as slow there
    assert row.cost < -0.5
    assert row.acceptance == pytest.approx(0, abs=1e-12)


def test_stream_policies_and_prompt_lookup_are_scored(machine):
    rows = scored("prompt_lookup", ["fixed:3", "hf_heuristic:3"], repeats=1)
    assert all(row.noise is None and row.tau == row.tau_measured for row in rows)
    # looking up moves no layer: only the target's passes count
    assert all(abs(row.rate_error) < 1e-12 and row.phases[0] == 0 for row in rows)
    assert all(abs(row.error) < 1e-12 for row in rows[1:])
    stream = replace(policies.parse("beta_ts"), scope="stream", name="stream")
    _, row = scored("model", [stream])
    assert row.tau == row.tau_measured


def test_unmeasured_lengths_are_interpolated():
    jobs = phase_jobs(20, True)
    assert jobs[0] == Job(PLAIN)
    assert [j.size for j in jobs if j.kind == FIXED] == [*range(9), 12, 16, 20]
    assert Job(FEATURES, 3) not in phase_jobs(3, False)
    assert Job(FEATURES, 3) in phase_jobs(3, True)
    assert phase_jobs(0, False) == [Job(PLAIN), Job(FIXED, 0)]
    line = interpolated_means({0: [1.0] * 3, 2: [2.0] * 3, 4: [4.0] * 5, 7: [99.0]}, 10)
    assert line.tolist() == [1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    line = interpolated_means({0: [5.0] * 4, 1: [1.0] * 4}, 10)
    assert line.tolist() == [5, 1, *[0] * 9]
    with pytest.raises(ValueError, match="take other prompts for the costs"):
        phase_costs(RoundTimes(), 10)


@pytest.mark.parametrize("name", ["model", "prompt_lookup"])
def test_scorecard_and_measure_run_the_same_jobs(name):
    _, drafter = toy_pair(name)
    for K in (1, 5, 8):
        scored, measured = (
            {job for job in jobs if job.kind not in (PLAIN, FIXED)}
            for jobs in (phase_jobs(K, drafter.has_logits), draft_jobs(K, drafter.has_logits))
        )
        assert scored == measured
