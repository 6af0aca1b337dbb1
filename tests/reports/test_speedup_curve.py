"""Speedup against K: the points are the sweep's, the intervals those over prompts."""

from dataclasses import replace

import numpy as np
import pytest

from simspec import CostModel, policies, replay, summary, sweep, synthetic
from simspec.numerics.stats import Estimate, ratio
from simspec.reports.speedup_curve import Point, plot_curves, speedup_curve

COST = CostModel.from_ratio(0.2, 5)


def test_points_equal_the_sweep_with_intervals_over_prompts():
    trace = synthetic.iid(0.7, 12, 40, 5, confidence=True)
    points = speedup_curve(trace, ["fixed:2", "beta_ts", "oracle"], COST, replicates=3, seed=4)
    assert [(p.policy, p.K) for p in points] == [
        *((f"fixed:{k}", k) for k in range(6)),
        ("beta_ts:acceptance", None),
        ("oracle", None),
    ]
    table = sweep(trace, [f"fixed:{k}" for k in range(6)], COST, 1, progress=False)
    assert [p.speedup.value for p in points[:6]] == pytest.approx(table.speedup.tolist())
    three = sweep(trace, ["fixed:3"], COST, 1, by="prompt", progress=False)
    interval, speedup = (
        ratio(three.speedup * three.seconds, three.seconds, seed=4),
        points[3].speedup,
    )
    assert (speedup.value, speedup.low, speedup.high) == pytest.approx(
        (interval.value, interval.low, interval.high), rel=2e-3
    )  # ties of resamples
    assert all(
        p.speedup.low <= p.speedup.value <= p.speedup.high and p.speedup.prompts == 12
        for p in points
    )
    # of a policy that draws, time is averaged over replicates
    seconds = [
        summary(
            replay(trace, policies.parse("beta_ts"), seed=4 + i, cost=COST), trace, COST
        ).seconds
        for i in range(3)
    ]
    assert points[6].speedup.value == pytest.approx(trace.rows / np.mean(seconds))
    assert points[7].speedup.value >= max(p.speedup.value for p in points)


def test_few_prompts_have_no_band():
    trace = synthetic.iid(0.5, 3, 20, 8)
    points = speedup_curve(trace, [], COST)
    assert [p.K for p in points] == list(range(6))
    assert all(p.speedup.low == p.speedup.value == p.speedup.high for p in points)
    assert len(speedup_curve(trace, [], 0.2)) == 9


def test_fixed_policies_are_points_of_the_curve():
    trace = synthetic.iid(0.5, 3, 20, 4)
    assert [
        p.policy
        for p in speedup_curve(
            trace, [policies.fixed(2), "fixed:3", policies.parse("beta_ts")], 0.1
        )
        if p.K is None
    ] == ["beta_ts:acceptance"]


def test_plot_has_a_panel_per_recording(tmp_path):
    points = [Point(f"fixed:{k}", k, Estimate(1.0 + k, 0.5 + k, 1.5 + k, 0.9, 9)) for k in (1, 0)]
    plot_curves(
        {"a/b.parquet": points, "b": [*points, Point("oracle", None, points[0].speedup)]},
        tmp_path / "c.png",
    )
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


def of_unequal_prompts(count):
    """Prompts whose drafts are right or wrong throughout, and of unequal lengths."""
    rates, lengths = np.arange(count) % 2, 4 + 20 * (np.arange(count) % 3)
    traces = [synthetic.iid(float(a), 1, int(n), 5) for a, n in zip(rates, lengths)]
    offset = np.concatenate(([0], np.cumsum(lengths)))
    names = tuple(map(str, range(count)))
    columns = ("token", "depth", "run", "feature")
    return replace(
        traces[0], offset=offset, budget=lengths, sequence=np.arange(count),
        prompt_offset=np.zeros(count + 1, np.int64),
        meta=replace(traces[0].meta, tasks=names, ids=names),
        **{name: np.concatenate([getattr(t, name) for t in traces]) for name in columns}
    )  # fmt: skip


def test_a_point_of_few_prompts_is_a_ratio_of_sums():
    trace = of_unequal_prompts(5)
    speedup = speedup_curve(trace, [], COST)[5].speedup
    seconds = COST.seconds(replay(trace, policies.fixed(5), cost=COST)).sum()
    assert speedup.value == pytest.approx(trace.rows * COST.baseline / seconds)
    assert (speedup.low, speedup.prompts) == (speedup.value, 5)
