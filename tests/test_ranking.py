"""The recommendation of a race: nothing slower than decoding without drafts."""

from dataclasses import replace

import numpy as np
import pytest
from race_clock import TASKS, row, timed
from scipy import stats

from real.bench.race import PLAIN, Runs
from real.bench.race_rows import (
    Figure,
    RaceRow,
    race_rows,
    rate_ratio,
    ratio_to_assisted,
    recommend,
    recommendation,
)
from real.prompts import ALL, LOW_REPEAT


def made_row(name, rate, group=ALL, **fields):
    return RaceRow(
        name, group, "=" in name or ":" in name, 4, rate=rate, speedup=rate / 10, **fields
    )


def both(name, rate, rate_there, **fields):
    return [made_row(name, rate, **fields), made_row(name, rate_there, LOW_REPEAT)]


@pytest.mark.parametrize(
    "others, expected",
    [
        ([], PLAIN),
        (both("model=a", 9, 9), PLAIN),  # slower
        (both("model=a", 10, 10), PLAIN),  # no faster
        (both("model=a", 12, 11), "model=a"),
        (both("model=a", 12, 11) + both("model=b", 13, 11), "model=b"),
        (both("model=a", 12, 11) + both("model=b", 13, 9), "model=a"),  # b is fast in loops alone
        (both("model=a", 12, 11, low=0.98, high=1.4), PLAIN),  # not surely
        (both("model=a", 12, 11, low=1.02, high=1.4), "model=a"),
        (
            both("model=a", 12, 11) + both("generate_static", 14, 14),
            PLAIN,
        ),  # somebody else is faster without drafts
        (both("prompt_lookup:10", 30, 30), PLAIN),  # not ours to recommend
        ([replace(made_row("model=a", 12), rate=None, speedup=None, error="no")], PLAIN),
        ([made_row("model=a", 12)], PLAIN),  # ran, but not where texts loop little
    ],
)
def test_nothing_slower_than_no_speculation_is_recommended(others, expected):
    rows = [*both("plain", 10, 10), *both("generate", 8, 8), *others]
    assert recommend(rows) == expected
    assert recommendation(rows).startswith(f"recommended: {expected}, ")
    assert ("generate_static is 1.40 times as fast" in recommendation(rows)) == (
        len(others) == 4 and others[2].contestant == "generate_static"
    )


def test_recommendation_without_low_repeat_prompts():
    gone = RaceRow("plain", LOW_REPEAT, False, 0)
    assert (
        recommend(
            [
                made_row("plain", 10),
                gone,
                made_row("model=a", 12),
                replace(gone, contestant="model=a", drafts=True),
            ]
        )
        == "model=a"
    )


def test_slow_drafter_is_not_recommended():
    _, rows = timed(("plain", 1, 1), ("model=slow", 1, 3, {"commits": 2}))
    assert recommend(rows) == PLAIN
    assert row(rows, "model=slow").per_pass == 2
    _, rows = timed(("plain", 1, 1), ("model=quick", 1, 1, {"commits": 2}))
    assert recommend(rows) == "model=quick"


def test_ratio_to_assisted_compares_the_best_of_both():
    contestants = [
        ("plain", 1, 1),
        ("model=a", 0, 3, {"commits": 4}),
        ("model=b", 0, 2, {"commits": 4}),
        ("eagle=c", 0, 1, {"commits": 4}),
    ]
    runs, _ = timed(
        *contestants,
        ("assisted:constant", 0, 4, {"commits": 4}),
        ("assisted:heuristic", 0, 5, {"commits": 4}),
    )
    names = {"contestant": "model=b", "assisted": "assisted:constant"}
    assert ratio_to_assisted(runs, TASKS)[0] == {"group": ALL, "prompts": 4} | names | {
        "ratio": 2.0,
        "low": None,
        "high": None,
    }
    assert ratio_to_assisted(runs[:4], TASKS) == []
    many = [
        replace(r, token=[t * 3 for t in r.token], seconds=[t * 3 for t in r.seconds]) for r in runs
    ]
    assert figures(rate_ratio(many[2], many[4], list(range(12)))) == pytest.approx(
        (2, 2, 2)
    )  # every prompt alike: no width
    with pytest.raises(ValueError, match="no 'plain' among"):
        race_rows(runs[1:], TASKS)


def many(name, tokens, seconds):
    """A contestant on twelve prompts alike: new tokens and seconds of each, by repeat."""
    token = [[[0] * n for _ in range(12)] for n in tokens]
    return Runs(name, True, token, seconds=[[s] * 12 for s in seconds])


def figures(ratio):
    return ratio.value, ratio.low, ratio.high


def test_ratio_is_the_mean_over_repeats_of_that_of_their_totals():
    """8 tokens in 2 s against 4 in 2 s, but for a first repeat of other lengths and times."""
    ours = many("model=a", [9, 8, 8], [100.0, 2.0, 2.0])
    theirs = many("assisted:constant", [4, 4, 4], [2.0, 2.0, 2.0])
    first = 9 / 100 / (4 / 2)
    ratio = rate_ratio(ours, theirs, list(range(12)))
    assert figures(ratio) == pytest.approx([(first + 2 + 2) / 3] * 3)
    ratio = rate_ratio(theirs, ours, list(range(12)))
    assert figures(ratio) == pytest.approx([(1 / first + 0.5 + 0.5) / 3] * 3)


def test_interval_is_the_jackknife_of_the_ratio():
    seconds = np.random.default_rng(0).uniform(1, 3, (2, 3, 10))
    runs = [
        Runs(name, True, [[[0] * (s + 1) for s in range(10)]] * 3, seconds=each.tolist())
        for name, each in zip("ab", seconds)
    ]
    everyone = list(range(10))
    left_out = [rate_ratio(*runs, [s for s in everyone if s != i]).value for i in everyone]
    found = rate_ratio(*runs, everyone)
    tokens = np.arange(1, 11).sum()
    rates = tokens / seconds.sum(2)
    assert found.value == pytest.approx((rates[0] / rates[1]).mean())
    reach = stats.t.ppf(0.975, 9) * np.sqrt(9 * np.var(left_out))
    assert figures(found) == pytest.approx((found.value, found.value - reach, found.value + reach))
    assert rate_ratio(*runs, everyone[:7]) == Figure(rate_ratio(*runs, everyone[:7]).value)
