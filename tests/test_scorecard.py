"""The scorecard: predictions are exact on a simulated clock, deviations appear in their part."""

import json
import math
from dataclasses import fields, replace

import numpy as np
import pytest
from shell import command, refused, run
from simulated_machine import ROW, Machine, layers
from toy_lm import toy_cost, toy_recording

from real.bench import scoring
from real.bench.phase_costs import PhaseCosts, backlogs
from real.bench.phase_means import interpolated_means, phase_costs, phase_jobs
from real.bench.prediction import scorecard_rows
from real.bench.scorecard import Scorecard, ScorecardRow
from real.bench.scorecard_figure import draw_scorecard
from real.bench.scorecard_file import load_rows, save_rows
from real.bench.scoring import ScoreSettings, score, split_prompts
from real.decode.feature_reader import FeatureReader
from real.decode.loop import decode
from real.decode.phase_timer import OTHER
from real.decode.plan import chain_plan
from real.decode.result import DecodeResult
from real.measure.job import FEATURES, FIXED, PLAIN, Job, draft_jobs
from real.measure.round_times import RoundTimes
from real.model.target import Target
from real.pair import Pair
from real.rerun import prompts_of, rule_of
from simspec import Stepper, policies, replay, synthetic

ASK, READ, KEEP = 1 / 8, 1 / 4, 1 / 16
PARTS = ("acceptance", "cost", "overhead")


@pytest.fixture
def machine(monkeypatch):
    """A machine on which calling the policy, reading and committing take fixed times too."""
    made = Machine(monkeypatch)

    def slow(kind, name, seconds):
        honest = getattr(kind, name)

        def slowed(self, *arguments):
            made.time += seconds
            return honest(self, *arguments)

        monkeypatch.setattr(kind, name, slowed)

    slow(Stepper, "ask", ASK)
    slow(FeatureReader, "read", READ)
    slow(Target, "commit", KEEP)
    return made


def toy(name):
    trace, target, drafter = toy_recording(name, "greedy", 12)
    return trace, Pair(target, drafter, "toy", None, "", trace.meta.end_tokens)


def scored(name, texts, **more):
    trace, pair = toy(name)
    settings = ScoreSettings(**{"prompts": 5, "repeats": 2, "seed": 1} | more)
    return score("toy", trace, pair, texts, toy_cost(), settings)


@pytest.mark.parametrize("name", ["model", "early_exit"])
def test_predictions_are_exact_on_a_simulated_clock(name, machine):
    found = scored(name, ["fixed:0", "fixed:2", "fixed:5", "beta_ts:censored", "confidence:0.5"])
    for row in found:
        assert row.predicted == pytest.approx(row.measured, rel=1e-12), row.policy
        assert abs(row.error) < 1e-12, row.policy
        assert row.phases == pytest.approx(row.phases_measured, rel=1e-12)
        assert row.noise == 0
        assert row.tau == row.tau_measured
        assert row.speedup == pytest.approx(row.speedup_measured, rel=1e-12)
        assert max(abs(getattr(row, part)) for part in PARTS) < 1e-12
    card = Scorecard("cpu", "float64", 2, 1, tuple(found))
    assert card.median_abs_error < 1e-12
    assert card.noise_floor == 0
    assert card.good
    zero = found[0]
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
                job.drafter(pair.drafter),
                plan,
                rule_of(trace),
                prompt,
                int(trace.budget[s]),
                trace.meta.end_tokens,
                s,
            )
            times.add(job, ran)
    return phase_costs(times, K)


PRICE = PhaseCosts(
    np.array([0, 1.0, 2.5, 4]),
    np.array([3, 3.25, 3.5, 3.75]),
    np.array([0.25, 0.5, 0.625, 0.75]),
    np.array([0.5, 0.5, 0.75, 1]),
    np.array([0, 0.125, 0.5]),
    0.0625,
    np.array([0, 3, 0.25, 0.5]),
)


def test_phase_costs_equal_their_cost_model():
    trace = synthetic.iid(0.6, 5, 30, 3, confidence=True)
    for text in ("fixed:0", "fixed:3", "beta_ts", "confidence:0.9", "cost_ts"):
        policy = policies.make(text, trace, PRICE.cost_model())
        rounds = replay(trace, policy)
        model = PRICE.cost_model("n", "d").reading(policy.reads)
        assert (model.name, model.device, model.baseline) == ("n", "d", 3.75)
        assert PRICE.seconds(rounds, policy.reads).sum(1) == pytest.approx(
            model.seconds(rounds), rel=1e-12
        )
    rounds = replay(trace, policies.make("sampling_only", trace, PRICE.cost_model()))
    slow = PRICE.drafting[rounds.computed] + np.where(
        rounds.computed > 0, PRICE.catch_up[np.minimum(backlogs(rounds), 2)], 0
    )
    assert np.array_equal(PRICE.seconds(rounds)[:, 0], slow)
    assert backlogs(rounds)[rounds.offset[:-1]].tolist() == [0] * 5


def doctored(change=lambda result, i: result, moved=False, repeats=3):
    """One row of fixed:2 whose runs follow PRICE, but for `change` and `moved` rounds."""
    trace = synthetic.iid(0.6, 4, 20, 3)
    policy = policies.BUILTIN["fixed"](2)
    replayed = replay(trace, policy)

    def results(rounds, price=None):
        made = []
        for s in range(trace.sequences):
            part = rounds.select([s])
            token = trace.token[trace.offset[s] : trace.offset[s + 1]]
            seconds = PRICE.seconds(part) if price is None else np.tile(price, (len(part), 1))
            columns = (
                part.row - trace.offset[s],
                part.computed,
                part.drafted,
                part.accepted,
                seconds,
                np.full(len(part), np.inf),
            )
            made.append(DecodeResult(token, *columns[: len(fields(DecodeResult)) - 1]))
        return made

    ran = replay(replace(trace, run=np.minimum(trace.run, 1)) if moved else trace, policy)
    plain = results(replay(trace, policies.BUILTIN["fixed"](0)), PRICE.plain)
    runs = [[[change(r, i) for r in results(ran)], plain] for i in range(repeats)]
    (row,) = scorecard_rows("t", trace, "d", [(policy, replayed)], PRICE, runs)
    return row, trace, replayed, ran


def slower(*phases, by=1.5):
    def change(result, i):
        seconds = result.seconds.copy()
        seconds[:, phases] *= by
        return replace(result, seconds=seconds)

    return change


def test_each_deviation_appears_in_its_own_part():
    exact, trace, replayed, _ = doctored()
    assert max(abs(getattr(exact, part)) for part in (*PARTS, "error")) < 1e-12
    assert exact.noise == 0
    assert exact.predicted == pytest.approx(trace.rows / PRICE.seconds(replayed).sum())
    assert exact.rounds == len(replayed)
    assert exact.speedup == exact.speedup_measured == pytest.approx(exact.predicted * 3.75)
    total = PRICE.seconds(replayed).sum(0)
    for phases, part in (((0, 1), "cost"), ((2, 3), "overhead")):
        row = doctored(slower(*phases))[0]
        assert getattr(row, part) == pytest.approx(
            math.log1p(total[list(phases)].sum() / 2 / total.sum())
        )
        assert getattr(row, part) > 0
        assert max(abs(getattr(row, other)) for other in PARTS if other != part) < 1e-12
    row, _, _, ran = doctored(moved=True)
    assert row.acceptance == pytest.approx(math.log(PRICE.seconds(ran).sum() / total.sum()))
    assert row.acceptance > 0
    assert max(abs(row.cost), abs(row.overhead)) < 1e-12
    assert row.tau > row.tau_measured


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("phases", [(0,), (1, 2), (3,), (0, 1, 2, 3)])
def test_parts_sum_to_the_log_ratio(phases, moved):
    for by in (0.3, 1.0, 4.0):
        row = doctored(slower(*phases, by=by), moved)[0]
        assert sum(getattr(row, part) for part in PARTS) == pytest.approx(
            math.log(row.predicted / row.measured), abs=1e-12
        )
        assert row.error == pytest.approx(row.predicted / row.measured - 1)


def test_noise_is_the_deviation_of_repeats():
    def spread(result, i):
        return replace(result, seconds=result.seconds * (1, 2, 4, 8)[i])

    for repeats, middle in ((1, 1), (2, 1), (3, 2), (4, 2)):
        row = doctored(spread, repeats=repeats)[0]
        assert row.measured == pytest.approx(row.predicted / middle)
        speeds = np.array([1, 1 / 2, 1 / 4, 1 / 8][:repeats])
        assert (
            row.noise is None
            if repeats == 1
            else row.noise == pytest.approx(speeds.std(ddof=1) / speeds.mean())
        )


def test_scorecard_bounds_median_and_p90_error():
    row = doctored()[0]

    def card(errors, noise=0.0, repeats=3):
        noise = None if repeats == 1 else noise
        return Scorecard(
            "cpu", "float32", repeats, 0, tuple(replace(row, error=e, noise=noise) for e in errors)
        )

    found = card([0.01, -0.02, 0.03, -0.05, 0.02])
    assert found.median_abs_error == 0.02
    assert found.p90_abs_error == pytest.approx(0.042)
    assert found.good
    assert not card([0.04, 0.04, -0.04]).good
    assert card([0.04, 0.04, -0.04], 0.02).good
    assert not card([0.0, 0.0, 0.3], 0.5).good  # the tail is not excused
    alone = card([0.01], repeats=1)
    assert alone.noise_floor is None
    assert alone.good
    said = found.summary()
    assert {"device", "rows", "median_abs_error", "p90_abs_error", "noise_floor"} <= said.keys()
    assert json.loads(json.dumps(said))["rows"][0].keys() == set(ScorecardRow.__dataclass_fields__)


def test_scored_and_cost_prompts_are_disjoint():
    trace = toy("model")[0]
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
    (row,) = scored("model", ["fixed:2"])
    assert row.error == pytest.approx(-0.5)
    assert row.cost < -0.5
    assert row.acceptance == pytest.approx(0, abs=1e-12)


def test_stream_policies_and_prompt_lookup_are_scored(machine):
    found = scored("prompt_lookup", ["fixed:3", "hf_heuristic:3"], repeats=1)
    assert all(row.noise is None and row.tau == row.tau_measured for row in found)
    # looking up moves no layer: only the target's passes count
    assert all(abs(row.error) < 1e-12 and row.phases[0] == 0 for row in found)
    stream = replace(policies.parse("beta_ts"), scope="stream", name="stream")
    (row,) = scored("model", [stream])
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
    _, pair = toy(name)
    for K in (1, 5, 8):
        scored, measured = (
            {job for job in jobs if job.kind not in (PLAIN, FIXED)}
            for jobs in (
                phase_jobs(K, pair.drafter.has_logits),
                draft_jobs(K, pair.drafter.has_logits),
            )
        )
        assert scored == measured


def test_figure_is_drawn(tmp_path):
    card = Scorecard("cpu", "float32", 3, 0, tuple(doctored(slower(i))[0] for i in range(4)))
    draw_scorecard(card, tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    assert OTHER == 3  # the picture names phases by their order


def test_saved_rows_round_trip_for_their_settings_only(tmp_path):
    path, settings = tmp_path / "s.json", {"device": "cpu", "seed": 3, "recordings": {"a": "0f"}}
    held = {"a": (doctored(slower(2))[0],), "b": (replace(doctored(slower(1))[0], noise=None),)}
    assert load_rows(path, settings) == {}
    save_rows(path, settings, held)
    assert load_rows(path, settings) == held
    for other in (
        settings | {"seed": 4},
        settings | {"fast": True},
        settings | {"recordings": {"a": "10"}},
        {"device": "cpu", "seed": 3},
    ):
        with pytest.raises(
            ValueError,
            match="s.json was made with (seed 3|fast None|recordings {'a': '0f'}), this is",
        ):
            load_rows(path, other)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda said: said.pop("rows"),
        lambda said: said["rows"]["a"][0].pop("tau"),
        lambda said: said["rows"]["a"][0].update(surplus=1),
        lambda said: said["rows"]["a"][0].update(error=float("nan")),
        lambda said: said["rows"]["a"][0].update(policy=5),
        lambda said: said["rows"]["a"][0].update(phases=[1, 2, 3]),
        lambda said: said["rows"]["a"][0].update(tokens=True),
        lambda said: said.update(settings=[5]),
        lambda said: said.update(rows=5),
    ],
)
def test_damaged_file_is_refused_in_one_line(tmp_path, spoil):
    path = tmp_path / "s.json"
    save_rows(path, {}, {"a": [doctored(slower(2))[0]]})
    said = json.loads(path.read_text())
    spoil(said)
    path.write_text(json.dumps(said))
    with pytest.raises(ValueError, match="s.json holds no rows of a scorecard: ") as caught:
        load_rows(path, {})
    assert "\n" not in str(caught.value)


class Killed(BaseException):
    pass


def test_interrupted_scorecard_continues(tmp_path, monkeypatch, capsys):
    done, stop = [], ["tiny-medusa-greedy"]

    def scored(name, *rest):
        if name in stop:
            raise Killed
        done.append(name)
        return [replace(doctored(slower(1))[0], recording=name)]

    monkeypatch.setattr("real.jobs.scorecard.score", scored)
    monkeypatch.setattr("real.jobs.models.check_pair", lambda *given: None)
    monkeypatch.setattr("real.jobs.models.load_pair", lambda *given: None)

    def command(*more):
        told = "--policy", "fixed:1", "--save", tmp_path / "s.json", "--json"
        return run(capsys, "scorecard", "tiny-eagle-greedy", "tiny-medusa-greedy", *told, *more)

    with pytest.raises(Killed):
        command()
    assert done == ["tiny-eagle-greedy"]
    stop.clear()
    said = json.loads(command()[1])
    assert (
        done
        == ["tiny-eagle-greedy", "tiny-medusa-greedy"]
        == [row["recording"] for row in said["rows"]]
    )
    assert json.loads(command()[1]) == said
    assert len(done) == 2
    code, out, error = command("--seed", 1)
    assert (code, out, len(done)) == (2, "", 2)
    assert "was made with seed 0, this is 1" in error


@pytest.mark.parametrize("name", ["teacher-force", "emulate", "scorecard"])
def test_help_has_an_example(name, tmp_path):
    code, out, _ = command(tmp_path, name, "--help")
    assert code == 0
    assert f"simspec {name}" in " ".join(out.split())
    assert "Example:" in out
    assert "--json" in out


def test_scorecard_command_on_a_bundled_recording(tmp_path):
    given = "scorecard", "tiny-model-greedy", "--policy", "fixed:1", "--prompts", 1, "--repeats"
    code, out, _ = command(tmp_path, *given, 1, "--json", "--plot", "p.png")
    said = json.loads(out)
    assert code == (0 if said["good"] else 1)
    assert said["noise_floor"] is None
    assert said["device"].startswith("cpu")
    (row,) = said["rows"]
    assert (row["policy"], row["drafter"], row["prompts"]) == ("fixed:1", "model", 1)
    assert row["predicted"] > 0 < row["measured"]
    assert (tmp_path / "p.png").exists()
    refused(tmp_path, *given, 0, words="--repeats is 0")
    refused(
        tmp_path,
        "scorecard",
        "tiny-model-greedy",
        "--prompts",
        500,
        words="500 prompts to score of 120",
    )
    refused(tmp_path, *given, 1, "--plot", "no/p.png", words="there is no folder no")
    refused(
        tmp_path,
        "scorecard",
        "tiny-prompt_lookup-greedy",
        "--policy",
        "confidence:0.5",
        words="'confidence' is not in this trace",
    )
    refused(
        tmp_path,
        "scorecard",
        "tiny-model-greedy",
        "--policy",
        "fixd:1",
        words="did you mean fixed?",
    )
