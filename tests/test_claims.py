"""Verdicts on claims: error rates without an effect, and recordings on which the truth is known."""

import math
from dataclasses import replace

import numpy as np
import pytest
from documents import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from simspec import CostModel, synthetic
from simspec.numerics.stats import Estimate, jackknife
from simspec.papers.acceptance import by_confidence, first_depth, later_depths
from simspec.papers.catalogue import CLAIMS
from simspec.papers.claim import (
    BY_CONSTRUCTION,
    FAILED,
    HELD,
    UNDECIDED,
    Claim,
    Inputs,
    Verdict,
    decided,
    summary,
    verdict_table,
    verdicts_on,
)
from simspec.papers.draft_lengths import correlation, higher_hm_lower_speedup
from simspec.papers.evidence import POSITIVE, Effect, EffectSource, excess, observe
from simspec.papers.recorded import MEASURED, PRICES, Recorded, Recordings
from simspec.papers.thompson import SYNTHETIC, against_best_fixed, others_at_best, others_at_ten
from simspec.papers.trees import EAGLE_TREE
from simspec.policies.fixed import fixed

TRACES = ROOT / "traces"
CELLS, PIECES, PROMPTS, TRIALS = 90, 3, 120, 250


def claim(test, prices=()):
    return Claim(1, "Something holds.", "EESD", "Table 1", test, prices)


def piece(value, error, bounds=POSITIVE, excluded="", prompts=PROMPTS):
    interval = Estimate(value, -math.inf, math.inf, 0.95, prompts)
    return Effect("an effect", EffectSource("r", excluded=excluded), "", interval, error, bounds)


def cell(*evidence):
    return Verdict(claim(None), "no price", UNDECIDED, 1.0, "", tuple(evidence))


def words(*cells):
    return [verdict.verdict for verdict in decided(list(cells))]


def test_false_verdicts_are_as_rare_as_stated(record_property):
    """90 verdicts on 3 recordings each, every effect on its bound: any decided in at most 5%.

    Times vary by prompt as on recordings. More than 8% of 250 families would occur with
    probability below 0.02 at a rate of 5%.
    """
    rng, alarms = np.random.default_rng(0), 0
    for _ in range(TRIALS):
        shape = PROMPTS, CELLS * PIECES
        plain = rng.integers(10, 60, (PROMPTS, 1)) * rng.gamma(20, 1 / 20, shape)
        ours, theirs = (plain * rng.gamma(60, 1 / 60, shape) for _ in range(2))
        without = [times.sum(axis=0) - times for times in (ours, theirs)]
        gap = without[0] / without[1] - 1
        errors = np.sqrt((PROMPTS - 1) * gap.var(axis=0))
        values = ours.sum(axis=0) / theirs.sum(axis=0) - 1
        pieces = list(map(piece, values, errors))
        family = [cell(*pieces[i : i + PIECES]) for i in range(0, len(pieces), PIECES)]
        alarms += any(word != UNDECIDED for word in words(*family))
    record_property("measured", f"claims: {alarms / TRIALS:.1%} of {TRIALS} families are wrong")
    assert alarms <= scipy_stats.binom.ppf(0.98, TRIALS, 0.05)


def test_control_uncorrected_verdicts_would_alarm():
    """The same without Holm: one of 90 is decided nearly always."""
    rng = np.random.default_rng(1)
    family = [cell(piece(value, 1.0)) for value in rng.normal(size=CELLS)]
    alone = [words(one)[0] for one in family]
    assert any(word != UNDECIDED for word in alone)


def test_an_effect_as_large_as_seven_errors_is_found():
    null = [cell(piece(0.0, 1.0)) for _ in range(CELLS)]
    assert words(cell(piece(7.0, 1.0), piece(8.0, 1.0)), *null)[0] == HELD
    assert words(cell(piece(-7.0, 1.0), piece(8.0, 1.0)), *null)[0] == FAILED
    assert words(cell(piece(0.5, 1.0), piece(8.0, 1.0)), *null)[0] == UNDECIDED


def test_pieces_that_do_not_count_do_not_decide():
    shown = piece(-9.0, 1.0, excluded="repetitive")
    assert words(cell(piece(9.0, 1.0), shown)) == [HELD]
    assert words(cell(shown)) == [UNDECIDED]


@pytest.mark.parametrize(
    ("value", "error", "word"),
    [(0.7, 0.01, HELD), (0.9, 0.01, FAILED), (0.5, 0.01, FAILED), (0.7, 0.1, UNDECIDED)],
)
def test_a_range_is_held_from_both_sides(value, error, word):
    assert words(cell(piece(value, error, (0.6, 0.8)))) == [word]


@given(
    st.floats(-3, 3),
    st.floats(0.01, 2),
    st.sampled_from([POSITIVE, (-0.01, math.inf), (0.6, 0.8), (-0.1, 0.1)]),
)
def test_p_values_follow_the_definition(value, error, bounds):
    """A slow twin: Student's t of each side by scipy.stats."""
    evidence = piece(value, error, bounds)
    sides = [(value - bounds[0]) / error, (bounds[1] - value) / error]
    above = [scipy_stats.t.sf(z, PROMPTS - 1) for z in sides]
    finite = sum(map(math.isfinite, bounds))
    assert evidence.inside == pytest.approx(max(above), rel=1e-6, abs=1e-12)
    below = min(1, finite * min(scipy_stats.t.sf(-z, PROMPTS - 1) for z in sides))
    assert evidence.outside == pytest.approx(below, rel=1e-6, abs=1e-12)


def test_equal_columns_have_no_error():
    columns = np.repeat(np.arange(1.0, 11)[:, None], 2, axis=1)
    assert jackknife(columns, excess) == (0.0, 0.0)
    evidence = observe("x", EffectSource("r"), "", columns, excess)
    assert evidence.inside == 1.0
    assert words(cell(evidence)) == [UNDECIDED]


def test_fewer_than_eight_prompts_are_refused():
    with pytest.raises(ValueError, match="7 prompts, expected at least 8"):
        observe("x", EffectSource("r"), "", np.ones((7, 2)), excess)


def test_the_jackknife_error_of_a_mean_is_the_textbook_one():
    x = np.random.default_rng(2).gamma(3, size=40)
    value, error = jackknife(np.stack((x, np.ones(40)), -1), lambda t: t[..., 0] / t[..., 1])
    assert value == pytest.approx(x.mean())
    assert error == pytest.approx(x.std(ddof=1) / math.sqrt(40))


def test_correlation_of_sums_is_numpys():
    x, y = np.random.default_rng(3).normal(size=(2, 50))
    sums = np.array([50, x.sum(), y.sum(), (x * x).sum(), (y * y).sum(), (x * y).sum()])
    assert correlation(sums) == pytest.approx(np.corrcoef(x, y)[0, 1])


# Recordings on which the truth is known.


def recorded(trace, drafter, c=0.1):
    return Recorded(f"control-{drafter}", drafter, "none", trace, CostModel.from_ratio(c, trace.K))


def verdict_of(test, *recordings, price=MEASURED):
    inputs = Inputs(Recordings(None, given=recordings))
    found = verdicts_on([claim(test, (price,))], inputs)
    return found[0].verdict


def alternating(alphas):
    """Acceptance by depth, independent rows."""
    return synthetic.decaying(alphas, 60, 120, seed=4)


def test_a_true_claim_holds_and_a_false_one_does_not():
    """0-alpha .8, then .7: it exceeds 1-alpha. Control: .6, then .8."""
    true = recorded(alternating([0.8, 0.7, 0.7, 0.7, 0.7]), "eagle")
    false = recorded(alternating([0.6, 0.8, 0.8, 0.8, 0.8]), "eagle")
    assert verdict_of(first_depth, true) == HELD
    assert verdict_of(first_depth, false) == FAILED


def test_a_false_half_of_a_claim_leaves_the_true_half_held():
    """0-alpha exceeds 1-alpha; 2-alpha is far below. The control: one word for both halves."""
    halved = recorded(alternating([0.9, 0.8, 0.4, 0.8, 0.8]), "eagle")
    assert verdict_of(first_depth, halved) == HELD
    assert verdict_of(later_depths, halved) == FAILED

    def both(inputs, price):
        return first_depth(inputs, price) + later_depths(inputs, price)

    assert verdict_of(both, halved) == FAILED


def test_one_contradiction_among_recordings_is_enough():
    true = recorded(alternating([0.8, 0.7, 0.7, 0.7, 0.7]), "eagle")
    false = recorded(alternating([0.6, 0.8, 0.8, 0.8, 0.8]), "eagle")
    assert verdict_of(first_depth, true, false) == FAILED
    assert verdict_of(first_depth, true, replace(false, excluded="repetitive")) == HELD


def test_confidence_that_misleads_is_a_false_claim():
    """Calibrated confidence grows with acceptance; the same codes reversed fall with it."""
    trace = synthetic.decaying([0.6] * 4, 30, 60, seed=5, confidence=True)
    assert verdict_of(by_confidence, recorded(trace, "glide")) == HELD
    reversed_codes = replace(trace, feature=255 - trace.feature)
    assert verdict_of(by_confidence, recorded(reversed_codes, "glide")) == FAILED


def test_thompson_sampling_wastes_less_than_ten_poor_tokens_and_loses_to_free_good_ones():
    poor = recorded(synthetic.iid(0.2, 30, 60, 10, seed=6), "model", 0.15)
    good = recorded(synthetic.iid(0.97, 30, 60, 10, seed=7), "model", 0.0)
    assert verdict_of(others_at_ten, poor) == HELD
    # against the best length, which is one token, it wastes the further ones
    assert verdict_of(others_at_best, poor) == FAILED
    assert verdict_of(others_at_ten, good) == FAILED


def pair(acceptance, costs):
    """Two drafters of the same outputs."""
    return [
        recorded(synthetic.iid(alpha, 40, 60, 10, seed=10 + i), drafter, c)
        for i, (drafter, alpha, c) in enumerate(zip(("eagle", "model"), acceptance, costs))
    ]


def test_a_better_drafter_is_the_slower_one_where_its_drafts_are_dear():
    dear = pair((0.8, 0.5), (0.6, 0.0))
    cheap = pair((0.8, 0.5), (0.0, 0.6))
    assert verdict_of(higher_hm_lower_speedup, *dear) == HELD
    assert verdict_of(higher_hm_lower_speedup, *cheap) == FAILED


def test_the_best_fixed_length_is_chosen_on_the_other_half():
    """Prompts of two kinds in turn: each half would choose the other kind's length for itself."""
    trace = synthetic.iid(0.5, 16, 40, 3, seed=8)
    run = trace.run.reshape(16, 40).copy()
    run[::2], run[1::2] = 0, np.minimum(3, np.arange(40, 0, -1))
    mixed = recorded(replace(trace, run=run.reshape(-1)), "early_exit", 0.3)
    seconds, mean = mixed.best_fixed(PRICES[1])
    all_lengths = mixed.fixed_seconds(PRICES[1])
    assert mean == pytest.approx(2.0)
    np.testing.assert_array_equal(seconds[::2], all_lengths[2, ::2])
    np.testing.assert_array_equal(seconds[1::2], all_lengths[0, 1::2])


def test_beta_is_compared_with_lengths_from_one_to_ten():
    trace = synthetic.iid(0.6, 16, 40, 12, seed=9)
    evidence, *at_the_papers_acceptance = against_best_fixed(
        Inputs(Recordings(None, given=(recorded(trace, "early_exit"),))), PRICES[1]
    )
    assert 1 <= evidence.figures["K"] <= 10
    assert evidence.bounds[0] == -0.01
    assert evidence.source.counted
    assert {e.source.excluded for e in at_the_papers_acceptance} == {SYNTHETIC}


def test_what_holds_by_construction_is_not_held_and_can_still_fail():
    built = replace(claim(None), construction="the test cannot fail")
    true, false = (replace(cell(piece(value, 1.0)), claim=built) for value in (9.0, -9.0))
    assert words(true) == [BY_CONSTRUCTION]
    assert words(false) == [FAILED]
    assert "0 held at every price and 0 at one at least; 1 hold by" in summary(decided([true]))
    # the control: the same evidence without a construction
    assert "1 held at every price" in summary(decided([cell(piece(9.0, 1.0))]))


def test_a_verdict_counts_the_recordings_on_which_the_effect_lies_where_claimed():
    def at(name, value, excluded=""):
        interval = Estimate(value, value - 1, value + 1, 0.95, PROMPTS)
        source = EffectSource(name, excluded=excluded)
        return Effect("an effect", source, "", interval, 0.5, POSITIVE)

    found = cell(at("a", 2), at("b", 2), at("b", 0.5), at("c", -2), at("d", 2, "repetitive"))
    assert found.inside == (1, 3)
    assert verdict_table([found]).rows[0][3].startswith("undecided (1 of 3)")


def test_a_verdict_says_why_nothing_counts():
    (found,) = verdicts_on(
        [claim(lambda inputs, price: [piece(9.0, 1.0, excluded=r) for r in ("x", "y", "x")])],
        Inputs(Recordings(None)),
    )
    assert (found.verdict, found.reason) == (UNDECIDED, "nothing counts (x, y)")
    (found,) = verdicts_on(
        [claim(lambda inputs, price: [piece(9.0, 1.0), piece(9.0, 1.0, excluded="x")])],
        Inputs(Recordings(None)),
    )
    assert (found.verdict, found.reason) == (HELD, "")


# Prices and the list itself.


def test_prices_are_what_they_are_called():
    cost = replace(
        CostModel.from_ratio(0.3, 4),
        verify=1 + 0.2 * np.arange(5),
        overhead=0.1,
        feature=0.01,
        predictor=0.02,
    )
    flat, rows = PRICES[1].of(cost), PRICES[4].of(cost)
    assert PRICES[0].of(cost).draft[1] == 0.3
    assert [p.draft[2] for p in (flat, rows)] == pytest.approx([0.1, 0.1])
    assert set(flat.verify) == {1.0}
    assert rows.verify[:5].tolist() == cost.verify.tolist()
    assert rows.nodes == 32
    for free in (flat, rows):
        assert free.overhead == 0.0
        assert free.reading(("confidence", "theta")) == free


@settings(max_examples=25)
@given(st.floats(0.1, 0.9), st.integers(1, 6))
def test_flat_prices_are_the_papers_formula(alpha, K):
    """A round takes 1 + c k plain steps, whatever the measured costs are."""
    trace = synthetic.iid(alpha, 4, 200, K, seed=K)
    ours = recorded(trace, "model", 0.4)
    rounds = ours.rounds(fixed(K))
    seconds = ours.seconds(fixed(K), PRICES[2]).sum()
    assert seconds == pytest.approx(len(rounds) + 0.1 * rounds.computed.sum())


def test_there_are_twenty_claims_at_least_whose_parts_are_lettered():
    numbers = dict.fromkeys(claim.number for claim in CLAIMS)
    assert sorted(numbers) == list(range(1, max(numbers) + 1))
    assert len(numbers) >= 20
    for number in numbers:
        parts = "".join(claim.part for claim in CLAIMS if claim.number == number)
        assert parts == "abc"[: len(parts)]
    assert len({claim.label for claim in CLAIMS}) == len(CLAIMS)
    assert all(claim.detail and claim.regime for claim in CLAIMS)


def test_eagles_tree_has_25_nodes_of_5_levels():
    assert len(EAGLE_TREE) == 25
    assert EAGLE_TREE.levels == 5
