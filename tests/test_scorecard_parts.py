"""Parts of a scorecard's error: each deviation appears in its own part."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from doctored_scorecard import PARTS, PRICE, doctored, slower

from real.bench.phase_costs import backlogs
from real.bench.scorecard import Scorecard, ScorecardRow
from real.bench.scorecard_figure import draw_scorecard
from real.decode.phase_timer import OTHER
from simspec import policies, replay, synthetic


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

    scorecard = card([0.01, -0.02, 0.03, -0.05, 0.02])
    assert scorecard.median_abs_error == 0.02
    assert scorecard.p90_abs_error == pytest.approx(0.042)
    assert scorecard.good
    assert not card([0.04, 0.04, -0.04]).good
    assert card([0.04, 0.04, -0.04], 0.02).good
    assert not card([0.0, 0.0, 0.3], 0.5).good  # the tail is not excused
    alone = card([0.01], repeats=1)
    assert alone.noise_floor is None
    assert alone.good
    report = scorecard.summary()
    assert {"device", "rows", "median_abs_error", "p90_abs_error", "noise_floor"} <= report.keys()
    assert json.loads(json.dumps(report))["rows"][0].keys() == set(
        ScorecardRow.__dataclass_fields__
    )


def test_figure_is_drawn(tmp_path):
    card = Scorecard("cpu", "float32", 3, 0, tuple(doctored(slower(i))[0] for i in range(4)))
    draw_scorecard(card, tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    assert OTHER == 3  # the picture names phases by their order
