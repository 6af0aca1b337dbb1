"""Scorecard rows whose runs follow given phase costs, but for one planted deviation."""

from dataclasses import fields, replace

import numpy as np

from real.bench.phase_costs import PhaseCosts
from real.bench.prediction import scorecard_rows
from real.decode.result import DecodeResult
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


def doctored(change=lambda result, i: result, moved=False, repeats=3, plain=1.0):
    """One row of fixed:2 whose runs follow PRICE, but for `change` and `moved` rounds.

    Plain decoding takes `plain` times as long as PRICE says.
    """
    trace = synthetic.iid(0.6, 4, 20, 3)
    policy = policies.BUILTIN["fixed"](2)
    replayed = replay(trace, policy)

    def results(rounds, price=None):
        decoded = []
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
            decoded.append(DecodeResult(token, *columns[: len(fields(DecodeResult)) - 1]))
        return decoded

    ran = replay(replace(trace, run=np.minimum(trace.run, 1)) if moved else trace, policy)
    undrafted = results(replay(trace, policies.BUILTIN["fixed"](0)), plain * PRICE.plain)
    runs = [[[change(r, i) for r in results(ran)], undrafted] for i in range(repeats)]
    (row,) = scorecard_rows("t", trace, "d", [(policy, [replayed])], PRICE, runs)
    return row, trace, replayed, ran


def slower(*phases, by=1.5):
    def change(result, i):
        seconds = result.seconds.copy()
        seconds[:, phases] *= by
        return replace(result, seconds=seconds)

    return change
