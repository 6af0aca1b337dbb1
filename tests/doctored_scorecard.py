"""Scorecard rows whose runs follow given phase costs, but for one planted deviation."""

from dataclasses import replace

import numpy as np

from real.bench.phase_costs import PhaseCosts
from real.bench.scorecard import Prices, scorecard_rows
from real.decode.loop import DecodeResult
from simspec import policies, replay, synthetic

PARTS = ("acceptance", "cost", "overhead")
PRICE = PhaseCosts(
    np.array([0, 1.0, 2.5, 4]),
    np.array([3, 3.25, 3.5, 3.75]),
    np.array([0.25, 0.5, 0.625, 0.75]),
    np.array([0.5, 0.5, 0.75, 1]),
    np.array([0, 0.125, 0.5]),
    0.0625,
    np.array([0, 3, 0.25, 0.5]),
)
NO_PRICES = Prices(PRICE, (), 4)


def ran(trace, rounds, seconds):
    """One repeat: results of these rounds of all prompts; seconds float64 `[R, 4]`."""
    results = []
    for s in range(trace.sequences):
        a, b = rounds.offset[s], rounds.offset[s + 1]
        columns = (rounds.row, rounds.computed, rounds.drafted, rounds.accepted)
        position, *lengths = (column[a:b] for column in columns)
        token = trace.token[trace.offset[s] : trace.offset[s + 1]]
        gap = np.full(b - a, np.inf)
        results.append(DecodeResult(token, position - trace.offset[s], *lengths, seconds[a:b], gap))
    return results


def doctored(change=lambda result, i: result, **settings):
    """(row of fixed:2 of `doctored_rows`, trace, its replay, rounds that ran)."""
    rows, *rest = doctored_rows(change, **settings)
    return rows[1], *rest


def doctored_rows(change, moved=False, repeats=3, plain=1.0, prices=NO_PRICES, prompts=4):
    """Rows of plain decoding and fixed:2, whose runs follow PRICE, but for `change` and `moved`.

    Plain decoding takes `plain` times as long as PRICE says. `change` maps each result of fixed:2
    and the number of its repeat; `moved` rounds accept one token at most.
    """
    trace = synthetic.iid(0.6, prompts, 20, 3)
    policy = policies.BUILTIN["fixed"](2)
    replayed = replay(trace, policy)
    measured = replay(replace(trace, run=np.minimum(trace.run, 1)) if moved else trace, policy)
    one_by_one = replay(trace, policies.BUILTIN["fixed"](0))
    undrafted = ran(trace, one_by_one, np.tile(plain * PRICE.plain, (len(one_by_one), 1)))
    drafted = ran(trace, measured, PRICE.seconds(measured))
    runs = [[[change(r, i) for r in drafted], undrafted] for i in range(repeats)]
    rows = scorecard_rows("t", trace, "d", [(policy, [replayed])], prices, runs)
    return rows, trace, replayed, measured


def slower(*phases, by=1.5):
    def change(result, i):
        seconds = result.seconds.copy()
        seconds[:, phases] *= by
        return replace(result, seconds=seconds)

    return change
