"""Verdicts on claims: right and wrong at the stated rates, by enumeration and by simulation."""

from functools import partial
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simspec.numerics.stats import difference
from simspec.papers.claims import (
    HELD,
    NO_EVIDENCE,
    NOT_HELD,
    UNDECIDED,
    Claim,
    Effect,
    needed,
    pooled,
    verdict_of,
    verdict_table,
)

P = 60
ALL = Claim("0", "All have it.", "-", lambda recordings: [])
SOME = Claim("0", "Some have it.", "-", lambda recordings: [], some=True)
WITHIN = Claim("0", "It is small.", "-", lambda recordings: [], (-0.1, 0.1))


def effect(values, on="a", what="x", pair="target/text"):
    """An effect whose figure is the mean of values float64[P]."""
    return Effect(what, on, pair, "", (1 + np.asarray(values), np.ones(len(values))))


def worlds(mean, pieces=1, draws=200, prompts=P, what="x", shared=0.5):
    """Draws of pieces of these means, which share half of their prompts' variance."""
    random, means = np.random.default_rng(0), np.broadcast_to(mean, pieces)
    for _ in range(draws):
        common = random.normal(0, np.sqrt(shared), prompts)
        own = random.normal(0, np.sqrt(1 - shared), (pieces, prompts))
        yield [
            effect(means[i] + common + own[i], str(i), what.format(i)) for i in range(pieces)
        ]  # fmt: skip


def shares(claim, drawn):
    """{word: its share of the verdicts}."""
    words = [verdict_of(claim, effects).word for effects in drawn]
    return {word: words.count(word) / len(words) for word in (HELD, NOT_HELD)}


MOST = 0.025 + 3 * np.sqrt(0.025 * 0.975 / 200)
"""Of a side of a verdict that errs in 5%: three deviations of 200 draws above."""


@pytest.mark.parametrize("pieces", [1, 3])
def test_each_verdict_errs_at_the_stated_rate_where_the_effect_is_at_the_bound(pieces):
    for claim, what in ((ALL, "x"), (ALL, "alternative {}"), (SOME, "x")):
        found = shares(claim, worlds(0.0, pieces, what=what))
        assert max(found.values()) <= MOST, (what, found)
    assert shares(WITHIN, worlds(0.1))[HELD] <= MOST


def test_one_piece_unlike_the_others_decides_as_the_claim_is_worded():
    one = (-0.7, 0.7, -0.7)  # one recording, or alternative, unlike the others
    assert shares(SOME, worlds(one, 3, 40))[HELD] > 0.95
    assert shares(ALL, worlds(one, 3, 40, what="{}"))[NOT_HELD] > 0.95
    assert shares(ALL, worlds(one, 3, 40))[HELD] == 0  # their mean
    assert shares(WITHIN, worlds(0.0, 1, 40, prompts=4000))[HELD] > 0.95


def test_with_ten_prompts_of_two_values_each_all_worlds_are_enumerated():
    """Gains of 1 or -1 with equal chance: no effect. The mean's 1,024 worlds, by their count."""
    chance = {HELD: 0.0, NOT_HELD: 0.0, UNDECIDED: 0.0}
    for signs in product((-1.0, 1.0), repeat=10):
        if list(signs) == sorted(signs):  # one of each count; the order of prompts does not matter
            ups = signs.count(1.0)
            ways = np.prod([(10 - i) / (i + 1) for i in range(ups)])
            word = verdict_of(ALL, [effect(np.array(signs) + 1e-9)]).word
            chance[word] += ways / 1024
    assert sum(chance.values()) == pytest.approx(1)
    for word in (HELD, NOT_HELD):  # 9 or 10 of 10 prompts agree: 11 of 1,024 worlds
        assert 0 < chance[word] <= 11 / 1024 + 1e-12


def test_pieces_of_exactly_zero_are_named_and_do_not_count():
    some = effect(np.random.default_rng(0).normal(0.7, 1, P))
    same = effect(np.zeros(P), "b")
    for claim in (ALL, SOME):
        found = verdict_of(claim, [some, same])
        assert (found.word, found.left_out) == (HELD, ("b",))
        assert verdict_of(claim, [same]).word == NO_EVIDENCE
    assert verdict_of(WITHIN, [same]).word == HELD  # 0 is within: here it is evidence
    wide = Claim("0", "It adds .6.", "-", lambda recordings: [], (0.6, 0.8))
    assert verdict_of(wide, [same]).word == NOT_HELD


def priced(mean, error, prompts, draws=150, spread=1.0):
    """Draws of a piece of this mean, at measured prices of this error and their replicates."""
    random = np.random.default_rng(0)
    for _ in range(draws):
        times = 1 + mean + random.normal(0, spread, prompts)
        prices = random.normal(0, error) + np.append(0.0, random.normal(0, error, 64))
        columns = times[:, None] + prices if error else times
        yield [Effect("x", "a", "p", "", (columns, np.ones(prompts)))]


@pytest.mark.parametrize("error", [0.0, 0.3])
def test_as_many_prompts_and_prices_as_are_named_decide_in_four_of_five_draws(error):
    """The control: at prices that err as much as they did ten times the prompts do not."""
    (undecided,) = next(e for e in priced(0.4, error, 20) if verdict_of(ALL, e).word == UNDECIDED)
    found, mean = verdict_of(ALL, [undecided]).needed, undecided.interval.value
    assert found == needed(undecided, ALL.bounds)
    assert str(found).endswith("%") == np.isfinite(found.prices) == (error > 0)
    spread = undecided.columns[0].reshape(20, -1)[:, 0].std(ddof=1)
    right, precise = HELD if mean > 0 else NOT_HELD, found.prices if error else 0.0
    drawn = priced(mean, precise, found.prompts, spread=spread)
    assert shares(ALL, drawn)[right] == pytest.approx(0.8, abs=0.1)
    assert found.prompts > 20
    if error:
        drawn = priced(mean, error, 10 * found.prompts, 30, spread)
        assert shares(ALL, drawn)[right] < 0.5


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(-1, 1), min_size=1, max_size=5), st.integers(0, 100))
def test_the_pooled_effect_is_the_mean_and_its_prompts_are_resampled_together(means, seed):
    random = np.random.default_rng(seed)
    values = np.array(means)[:, None] + random.normal(0, 1, (len(means), P))
    whole = pooled([effect(of, str(i)) for i, of in enumerate(values)])
    assert whole.interval.value == pytest.approx(values.mean(), abs=1e-12)
    alone = effect(values.mean(axis=0)).interval
    assert (whole.interval.low, whole.interval.high) == pytest.approx((alone.low, alone.high))


def test_a_table_has_a_row_for_each_pair_and_what_was_verdict_table():
    random = np.random.default_rng(0)
    gap = partial(random.normal, 5, 1, P)
    effects = [effect(gap(), on, pair=pair) for pair in ("a/greedy", "b/greedy") for on in "xy"]
    table = verdict_table([Claim("1", "x", "-", lambda recordings: effects)], None)
    assert list(table["pair"]) == ["a/greedy", "b/greedy"]
    assert list(table["verdict"]) == [HELD, HELD]
    assert list(table["recordings"]) == ["x, y", "x, y"]
    columns = np.arange(P) + 1.0, np.ones(P), np.ones(P), np.ones(P)
    both = pooled([effects[0], Effect("x", "z", "a/greedy", "", columns, difference)])
    assert both.interval.value == pytest.approx((effects[0].interval.value + 29.5) / 2)
