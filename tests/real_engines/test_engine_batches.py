"""Batches on an engine: costs by batch size, waves predicted and measured, schedules of lengths."""

from dataclasses import replace
from pathlib import Path

import naive_engine
import numpy as np
import pytest
from fake_engine import SETTINGS, FakeRunner, do_run, prompts
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import world, written

from real.engines import EngineError
from real.engines import measure as prices_of
from real.engines.compare import compare_rows
from real.engines.convention import CONVENTIONS, clipped, scheduled_passes
from real.engines.measure import cost_table, engine_cost, speedup_table
from real.engines.rows import read_rows
from real.engines.run import Plan, choose_prompts
from simspec import CostModel, load_trace
from simspec.cost.table import load_cost
from simspec.engines.exports import lengths_by_batch
from simspec.engines.ngram import ngram_rule
from simspec.engines.text import record_texts

K, END = 6, 3
SIZES, DEPTH, BATCH = (1, 2, 4), 4, 4
PLAIN = {1: 1.0, 2: 1.25, 4: 1.5}
VERIFY = {1: [1.0, 1.1, 1.3, 1.9, 2.4], 2: [1.25, 1.5, 2.0, 2.5, 4.0], 4: [1.5, 2.0, 3.0, 6.0, 9.0]}
"""Seconds of a fake engine's passes by requests, and by requests and draft tokens of each."""
RANGES = ((1, 1, 4), (2, 3, 2), (4, 4, 0))
RULES = CONVENTIONS["vllm"]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Costs by batch size, those of passes without a draft included."""
    return with_undrafted(costs(tmp_path_factory.mktemp("costs")))


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    """Waves of four on prompts that the costs are not of."""
    return held_out(tmp_path_factory.mktemp("held"))


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """The same under a schedule."""
    return scheduled(tmp_path_factory.mktemp("planned"))


def line(points, at):
    """The value at a place between two points {place: value}."""
    low = max(place for place in points if place <= at)
    high = min(place for place in points if place >= at)
    return points[low] + (points[high] - points[low]) * (at - low) / max(high - low, 1)


def clock(active, drafted, k):
    """Seconds of a pass of the fake engine."""
    if k == 0:
        return line(PLAIN, active)
    each = {n: line(dict(enumerate(row)), drafted / active) for n, row in VERIFY.items()}
    return line(each, active)


def measured(folder, name, plan, seed=0, count=8, ranges=(), **options):
    """(about, rows) of a run on the fake engine."""
    options = {"step_seconds": clock, "seconds": lambda d, k: clock(1, d, k)} | options
    made = prompts(count, seed)
    used = replace(SETTINGS, batch=plan.concurrent, schedule=ranges)
    return do_run(folder / name, FakeRunner(made, **options), made, plan, used)


def costs(folder, sizes=SIZES, **options):
    """Costs of forced drafts by batch size."""
    ks = tuple(range(DEPTH + 1))
    plans = [Plan(ks, 3, size, size, force=True) for size in sizes]
    runs = [measured(folder, f"b{plan.concurrent}.jsonl", plan, **options) for plan in plans]
    return cost_table(runs)


def held_out(folder, name="held.jsonl", ks=(0, 1, 2, 4), **options):
    """Waves of four on other prompts."""
    return measured(folder, name, Plan(ks, 2, BATCH, BATCH), **({"seed": 1, "count": 40} | options))


def test_costs_of_every_batch_size_are_the_clock_s(tmp_path):
    costs(tmp_path).to_json(tmp_path / "t.json")
    table = load_cost(tmp_path / "t.json")
    assert table.batch == SIZES
    for size in SIZES:
        cell = table.at(size)
        assert cell.baseline == PLAIN[size]
        assert np.allclose(cell.verify, [PLAIN[size], *VERIFY[size][1:]])
        assert len(cell.replicates) == 200
        assert cell.precision.samples["verify"][DEPTH] == cell.precision.blocks == 24 // size
    origins = {table.at(size).origin.sitting for size in SIZES}
    assert len({sitting.partition("-")[0] for sitting in origins}) == 1  # the same prompts


def test_partial_batches_and_divided_waves_do_not_count(tmp_path):
    plan = Plan((0, 4), 1, BATCH, BATCH, force=True)
    about, rows = measured(tmp_path, "r.jsonl", plan, count=10)
    assert engine_cost(about, rows).precision.blocks == 2
    divided = [replace(row, session=1) if row.block == 0 and row.k else row for row in rows]
    assert engine_cost(about, divided).precision.blocks == 1


def test_own_drafts_of_one_length_give_the_costs(tmp_path):
    """A draft model always drafts K tokens; steps of unequal drafts are left out."""
    about, rows = measured(tmp_path, "r.jsonl", Plan((0, 1, 2, 4), 3, 2, 2), count=24)
    verify = engine_cost(about, rows).verify
    assert np.allclose(verify[[0, 1, 2, 4]], np.array(VERIFY[2])[[0, 1, 2, 4]])


def test_predicted_speedups_of_waves_are_the_measured_ones(table, held, tmp_path):
    result = speedup_table(*held, table)
    assert (result.batch, result.prompts, result.repeats) == (BATCH, 40, 2)
    for row in result.rows:
        assert row.predicted == pytest.approx(row.measured, rel=1e-6)
        assert row.measured in row.measured_interval
    assert len({row.measured for row in result.rows}) == 4
    assert result.confirmed
    few = speedup_table(*held_out(tmp_path, "few.jsonl", count=28), table)
    assert {row.measured_interval for row in few.rows} == {None}  # 7 waves


def with_undrafted(table):
    """The costs with the passes without a draft that forced drafts do not have."""
    cells = tuple(
        (replace(cell, verify=np.array(VERIFY[size]), precision=None),)
        for size, (cell,) in zip(table.batch, table.cells)
    )
    return replace(table, cells=cells)


WRONG = [lambda n: np.array(SIZES)[np.searchsorted(SIZES, n)], lambda n: np.full_like(n, BATCH)]


@pytest.mark.parametrize("size", WRONG, ids=["padded", "always full"])
def test_control_a_wrong_interpolation_does_not_predict(table, held, monkeypatch, size):
    right = prices_of.StepPrices.seconds

    def wrong(prices, active, drafted=None):
        each = None if drafted is None else drafted * size(active) / active
        return right(prices, size(active), each)

    monkeypatch.setattr(prices_of.StepPrices, "seconds", wrong)
    assert speedup_table(*held, table).to_dict()["worst_error"] > 0.01


def test_prices_are_interpolated_as_written(tmp_path):
    """Sums over steps equal a loop over them, at the costs and at each replicate."""
    noise = np.random.default_rng(0)
    table = costs(tmp_path, step_seconds=lambda n, d, k: clock(n, d, k) * noise.lognormal(0, 0.1))
    prices = prices_of.StepPrices.of(table)
    active, drafted = np.array([4, 3, 3, 2, 1]), np.array([16, 5, 0, 7, 3])
    cells = {size: table.at(size) for size in SIZES}
    for r, seconds in enumerate(prices.seconds(active, drafted)):
        at = {n: cell.replicates[r - 1] if r else cell for n, cell in cells.items()}
        rows = {n: dict(enumerate(cell.verify.tolist())) for n, cell in at.items()}
        steps = [line({m: line(rows[m], d / n) for m in SIZES}, n) for n, d in zip(active, drafted)]
        assert seconds == pytest.approx(sum(steps), rel=1e-12)
    plain = {n: cell.baseline for n, cell in cells.items()}
    assert prices.seconds(active)[0] == pytest.approx(sum(line(plain, n) for n in active))


@st.composite
def schedules(draw):
    """Ranges without gaps, and how many requests may run together."""
    ends = sorted(draw(st.sets(st.integers(1, 8), min_size=1, max_size=4)))
    lengths = [draw(st.integers(0, K)) for _ in ends]
    ranges = [[a + 1, b, k] for a, b, k in zip([0, *ends], ends, lengths)]
    return ranges, draw(st.integers(1, 8))


def disagreements(seed, ranges, batch, late=False):
    """Sequences whose passes differ between vLLM's loop on tokens and the simulation."""
    made, rule = world(seed, sequences=batch + 2), ngram_rule("vllm:1,2")
    lengths = lengths_by_batch(ranges, max(k for _, _, k in ranges) or 1, batch)
    trace = record_texts(written(made), rule, K, (END,))
    waves = [list(range(batch)), [batch + 1, batch]] if batch > 1 else [[s] for s in range(3)]
    passes = scheduled_passes(trace, waves, lengths, RULES)
    wrong = []
    for wave in waves:
        twin = naive_engine.run_wave(
            [made[s] for s in wave], [END],
            lambda context, k: naive_engine.draft(context, k, rule) if k else [],
            lambda n: naive_engine.length_at(ranges, n), late,
        )  # fmt: skip
        for s, (text, run) in zip(wave, twin):
            assert text == trace.token[trace.offset[s] : trace.offset[s + 1]].tolist()
            if clipped(run, len(text)) != passes.sequence(s):
                wrong.append(s)
    return wrong


@given(st.integers(0, 1 << 30), schedules())
@settings(max_examples=150)
def test_passes_under_a_schedule_are_those_of_the_loop(seed, schedule):
    assert disagreements(seed, *schedule) == []


def test_control_a_length_chosen_one_pass_late_is_noticed():
    assert any(disagreements(seed, [*map(list, RANGES)], 4, late=True) for seed in range(20))


def scheduled(folder, name="s.jsonl", **options):
    return held_out(folder, name, (0, 4), ranges=RANGES, **options)


def test_a_schedule_is_compared_pass_by_pass_and_its_speedup_predicted(table, planned):
    about, rows = planned
    assert about["schedule"] == [list(step) for step in RANGES]
    result = compare_rows(about, rows)
    assert result.equal
    assert (result.requests, result.left_out) == (160, 0)
    drafted = {d for row in rows if row.k for _, d, _ in row.finished.passes}
    assert {0, 1, 2, 3, 4} <= drafted
    found = speedup_table(about, rows, table)
    assert found.scheduled
    assert [row.k for row in found.rows] == [0, 4]
    assert found.rows[1].predicted == pytest.approx(found.rows[1].measured, rel=1e-6)


def test_control_wrong_schedules_are_exceptions(planned, tmp_path):
    late = scheduled(tmp_path, count=16, late=True)
    assert len(compare_rows(*late).exceptions) > 2
    about, rows = planned
    for ranges in ([[1, 4, 4]], [[1, 1, 4], [2, 4, 2]]):
        result = compare_rows(about | {"schedule": ranges}, rows)
        assert {d.kind for d in result.exceptions} == {"passes"}
    fixed_length = {key: value for key, value in about.items() if key != "schedule"}
    assert not compare_rows(fixed_length, rows).equal


def test_a_schedule_with_a_recording_needs_every_request_of_a_wave(tmp_path):
    """With a recording in the place of a rule that always drafts K tokens, as a model does."""
    from real.engines.compare import written_text

    about, rows = scheduled(tmp_path, count=8, rule="vllm_v2:1,2")
    model = about | {"draft": {"method": "model"}}
    plain = [written_text(row) for row in rows if row.k == 0 and row.block < 2]
    trace = record_texts(plain, ngram_rule("vllm_v2:1,2"), 4, (END,))
    assert compare_rows(model, rows, trace).equal
    without = trace.select([s for s in range(8) if trace.meta.ids[s] != "p1"])
    result = compare_rows(model, rows, without)
    assert result.equal
    assert result.left_out == BATCH * 2  # the waves of p1, in two repeats
    lost = [row for row in rows if (row.block, row.k, row.request.id) != (0, 4, "p2")]
    assert compare_rows(about, lost).left_out == BATCH - 1


@pytest.mark.parametrize("fails", [1, 6, 9, 13])
def test_a_killed_wave_runs_whole_again_and_keeps_its_rows(tmp_path, fails):
    whole = scheduled(tmp_path, "whole.jsonl", count=8)[1]
    with pytest.raises(EngineError):
        scheduled(tmp_path, "cut.jsonl", count=8, fails=4 + fails)  # the warm-up counts
    kept = read_rows(tmp_path / "cut.jsonl")[1]
    about, rows = scheduled(tmp_path, "cut.jsonl", count=8)
    assert rows[: len(kept)] == kept
    assert {row.key: row.finished for row in rows} == {row.key: row.finished for row in whole}
    assert len(rows) == len(whole)
    assert compare_rows(about, rows).equal


def test_counts_are_rounded_to_whole_batches():
    trace = load_trace(Path(__file__).parents[2] / "traces/smollm2/greedy/prompt_lookup.parquet")
    for count, batch, expected in ((12, 4, 12), (12, 16, 16), (0, 16, 96), (90, 25, 75)):
        assert len(choose_prompts(trace, count, batch=batch)) == expected
    assert choose_prompts(trace, 12, "2/2") == choose_prompts(trace, 12, "2/2", batch=4)
    with pytest.raises(ValueError, match="the part has 48 prompts, a batch 64: give a larger"):
        choose_prompts(trace, 12, "2/2", batch=64)


def test_what_cannot_be_compared_is_one_line(held, tmp_path):
    table, (about, rows) = costs(tmp_path), held
    with pytest.raises(ValueError, match="price 1 to 1 requests a pass.*4: measure --concurrent 4"):
        speedup_table(about, rows, table.at(1))
    few = replace(table, batch=(2, 4), cells=table.cells[1:])
    with pytest.raises(ValueError, match="price 2 to 4 requests.*passes of 1: measure.* 1 too"):
        speedup_table(about, rows, few)
    short = replace(table, cells=tuple((cell.truncate(2),) for (cell,) in table.cells))
    with pytest.raises(ValueError, match="price drafts up to 2, the run has 4: measure 4"):
        speedup_table(about, rows, short)
    own = measured(tmp_path, "own.jsonl", Plan((0, 2), 1, BATCH, BATCH))
    with pytest.raises(ValueError, match="hold prompts out"):
        speedup_table(*own, table)
    turns = measured(tmp_path, "turns.jsonl", Plan((0, 2), 1, 8, BATCH), seed=1)
    for refused in (lambda: speedup_table(*turns, table), lambda: engine_cost(*turns)):
        with pytest.raises(ValueError, match="run again with --concurrent 2 or more"):
            refused()
    small = measured(tmp_path, "small.jsonl", Plan((0, 2), 1, 2, BATCH), seed=1)
    with pytest.raises(ValueError, match="waves have 2: run again with --prompts 4"):
        speedup_table(*small, table)


def test_requests_that_do_not_share_their_first_pass_are_refused(planned):
    """Prompts that a pass cannot hold are read in several, and their requests start apart."""
    about, rows = planned
    place = next(i for i, row in enumerate(rows) if row.k and len(row.finished.passes) > 2)
    seconds = rows[place].finished.pass_seconds
    apart = replace(rows[place].finished, pass_seconds=(7.0, *seconds[1:]))
    rows = [*rows[:place], replace(rows[place], finished=apart), *rows[place + 1 :]]
    for refused in (
        lambda: compare_rows(about, rows),
        lambda: speedup_table(about, rows, CostModel.from_ratio(0.1, 4)),
    ):
        with pytest.raises(ValueError, match="did not start in one pass: give shorter prompts, or"):
            refused()
