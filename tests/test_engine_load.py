"""Arrivals at an engine: a double of vLLM takes the times that the simulation predicts."""

import re
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from fake_engine import END, prompts
from test_engine_workers import vllm  # noqa: F401
from test_vllm_proposer import SETTINGS
from vllm_double import VllmDouble

from real.engines.load import (
    LoadedRequest,
    own_seconds,
    predicted_both,
    predicted_load,
    predicted_table,
    read_loaded,
    run_load,
    with_prompts,
    write_loaded,
)
from real.engines.messages import Finished, Request, run_line
from real.engines.rows import Row, read_rows
from simspec import CostModel
from simspec.cost.batch import TokenCost
from simspec.cost.table import CostTable, load_cost
from simspec.engines.vllm_proposer import PolicyProposer
from simspec.replay.load import Server

ROOT = Path(__file__).parents[1]
TOKENS = TokenCost(1.0, 0.25, step=0.5)
ABOUT = {
    "engine": "vllm",
    "requests": 30,
    "draft": {"method": "policy", "k": 4, "ngram_min": 1, "ngram_max": 2, "model": None},
}


def seconds(active, drafted, k):
    """A pass of the double at TOKENS; its prompts take a row."""
    return 1.0 + 0.25 * (active + drafted) + (0.5 if drafted else 0.0)


def loaded(path, pass_seconds=seconds, slots=3):
    world = prompts(7, budget=20)
    double = VllmDouble(world, PolicyProposer, (END,), seconds=pass_seconds)
    double.start(SETTINGS)
    asked = [request for request, _ in world]
    rows = run_load(double.run, asked, (0.02, 0.3), (0, 2, 4), 30, slots)
    return write_loaded(path, ABOUT, rows)


def errors(path, slots=3):
    about, rows = read_loaded(path)
    found = predicted_load(about, rows, TOKENS.cost(4), Server(slots, 64, False))
    assert [(row["rate"], row["k"]) for row in found] == [
        (rate, k) for rate in (0.02, 0.3) for k in (0, 2, 4)
    ]
    keys = "tokens_per_second", "ttft", "latency"
    return [abs(row[f"predicted_{k}"] / row[f"measured_{k}"] - 1) for row in found for k in keys]


def test_double_under_load_takes_the_predicted_times(tmp_path):
    rows = loaded(tmp_path / "rows.jsonl")
    assert len(rows) == 2 * 3 * 30
    assert any(row.finished.seconds > sum(row.finished.pass_seconds) + 1 for row in rows)  # waited
    assert max(errors(tmp_path / "rows.jsonl")) < 1e-9


def test_another_engine_is_found(tmp_path):
    """Control: passes that take 5% longer, and a slot less, give errors."""
    loaded(tmp_path / "slow.jsonl", lambda *of: 1.05 * seconds(*of))
    assert max(errors(tmp_path / "slow.jsonl")) > 0.04
    loaded(tmp_path / "narrow.jsonl", slots=2)
    assert max(errors(tmp_path / "narrow.jsonl")) > 0.04


@pytest.mark.parametrize("k", [0, 2])
def test_own_seconds_are_the_passes_of_the_run(tmp_path, k):
    """Passes of 1, 2 and 3 requests take 1.1, 1.3 and 1.7 times their costs."""
    times, count = {1: 1.1, 2: 1.3, 3: 1.7}, iter(range(1, 1_000_000))

    def passes(active, drafted, k):  # no two clock readings are alike
        return times[active] * (1 + 0.25 * (active + drafted)) * (1 + 1e-9 * next(count))

    served = [row for row in loaded(tmp_path / "r", passes) if (row.rate, row.k) == (0.3, k)]
    cells = [
        CostModel(np.zeros(5), 1 + 0.25 * n * np.arange(1, 6), [0.0], 0.0, 1 + 0.25 * n)
        for n in times
    ]
    table = CostTable((1, 2, 3), (0,), tuple((cell,) for cell in cells))
    alone = [row_of(n, 1.0 + 0.25 * n) for n in (50, 120, 300)]
    own, _ = own_seconds(served, table, alone, 64)
    for size, cell in enumerate(cells, 1):
        found = own.at(size)
        assert found.baseline == pytest.approx(times[size] * cell.baseline)
        assert found.verify[:5] == pytest.approx(times[size] * cell.verify)
    untimed = [replace(row, finished=replace(row.finished, pass_seconds=None)) for row in served]
    with pytest.raises(ValueError, match="no pass of the run is timed"):
        own_seconds(untimed, table, alone, 64)


def test_own_seconds_by_hand():
    """Costs of 1 s a pass and 0.1 s + 0.01 s a prompt's token; two requests that share one pass.

    Passes: a prompt of 10 in 0.4 s (costs 0.2), one of 29 beside a pass in 0.8 s (0.1 + 0.3), then
    both in 3 s, and one in 1.5 s. Three requests never ran: 4.5 s of 2 s.
    """
    cell = CostModel(np.zeros(2), [1.0, 2.0], [0.0], 0.0, 1.0)
    table = CostTable((1, 2, 3), (0,), ((cell,),) * 3)
    alone = [row_of(n, 0.1 + 0.01 * n) for n in (10, 30, 50)]
    passes = (1, 0, 0), (1, 0, 0), (1, 0, 0)
    rows = [
        LoadedRequest(1.0, 0, 0, 0.0, Request(name, (1,) * n, 3), Finished(
            name, (1,) * len(clock), passes[: len(clock)], clock, clock[0], sum(clock), None, "end"
        ))
        for name, n, clock in (("a", 10, (0.4, 0.8, 3.0)), ("b", 29, (0.8, 3.0, 1.5)))
    ]  # fmt: skip
    own, all_passes = own_seconds(rows, table, alone, 64)
    assert all_passes == pytest.approx((0.4 + 0.8 + 3.0 + 1.5) / (0.2 + 0.4 + 1.0 + 1.0))
    assert [own.at(size).baseline for size in (1, 2, 3)] == pytest.approx([1.5, 3.0, 2.25])
    assert own.at(1).verify[1] == pytest.approx(3.0)
    # prompts take twice their costs
    line = with_prompts(table, [row_of(n, 2 * (0.1 + 0.01 * n)) for n in (10, 30, 50)], 512)[0]
    wide = own_seconds(rows, table, alone, 512)[0]
    assert wide.at(1).verify[511] == pytest.approx(line.at(1).verify[511])


def test_table_shows_both(tmp_path):
    loaded(tmp_path / "rows.jsonl")
    about, rows = read_loaded(tmp_path / "rows.jsonl")
    table = predicted_table(predicted_load(about, rows, TOKENS.cost(4), Server(3, 64, False)))
    assert table.texts()[0][-1] in ("+0.0%", "-0.0%")
    with pytest.raises(ValueError, match="n-gram drafts"):
        model = about | {"draft": {"method": "model", "model": "m", "k": 4}}
        predicted_load(model, rows, TOKENS.cost(4), Server(3))
    with pytest.raises(ValueError, match="holds 29 of 30: it was interrupted"):
        predicted_load(about, rows[:-1], TOKENS.cost(4), Server(3))


def test_prompts_are_priced_by_their_own_passes():
    """Passes of 100 ms and 2 ms a token: a prompt of n tokens takes these, a draft as measured."""
    few = CostModel(np.zeros(3), [0.1, 0.3, 0.5], [0.0], 0.0, 0.1)  # the slope of noise
    table = CostTable((1, 4), (0,), ((few,), (few,)))
    rows = [row_of(n, 0.1 + 0.002 * n) for n in (50, 120, 300)]
    found, line = with_prompts(table, rows, 1024)
    assert line == pytest.approx((0.1, 0.002))
    for size, (cell,) in zip(found.batch, found.cells):
        assert cell.verify[:3].tolist() == few.verify.tolist()
        for drafts in (3, 50, 200):
            seconds = 0.1 + 0.002 * size * (drafts + 1)
            assert cell.verify[drafts] == pytest.approx(max(seconds, 0.5))
    with pytest.raises(ValueError, match="too few prompts of different lengths"):
        with_prompts(table, rows[:2], 1024)


def row_of(n, seconds):
    """A request that had the engine to itself: a prompt of n tokens, which took these seconds."""
    passes = (1, 0, 0), (1, 0, 0)
    done = Finished(f"{n}", (1, 2), passes, None, seconds, seconds + 1, None, "end")
    return Row(0, 0, 0, None, Request(f"{n}", (1,) * n, 2), done)


def recorded_load(name):
    """Predicted and measured figures of a bundled run, from its requests, costs and prompts."""
    folder = ROOT / "traces" / "smollm2" / "engines"
    _, alone = read_rows(folder / f"{name}-prompts.rows.jsonl.xz")
    about, rows = read_loaded(folder / f"{name}.jsonl.xz")
    assert not {row.request.prompt for row in alone} & {row.request.prompt for row in rows}
    cost = load_cost(folder / f"{name}.cost.json")
    return predicted_both(about, rows, cost, alone, Server(about["slots"], 2048))


RUNS = "vllm-load", *(f"vllm-load-{run}" for run in range(2, 7))


def test_the_page_holds_the_recorded_runs():
    page = " ".join((ROOT / "docs" / "load.md").read_text(encoding="utf-8").split())
    runs = [recorded_load(name) for name in RUNS]
    for row in predicted_table(runs[-1]).texts():
        assert f"| {' | '.join(row)} |" in page
    errors = [[r["predicted_latency"] / r["measured_latency"] - 1 for r in run] for run in runs]
    assert max(map(abs, errors[-1])) < 0.1
    assert f"latency is predicted within {max(map(abs, errors[-1])):.1%}.**" in page
    every = [row for run in runs for row in run]
    assert len(every) == 36
    own = max(abs(row["own_latency"] / row["measured_latency"] - 1) for row in every)
    assert f"simulated within {own:.1%} in all 36 cells" in page
    passes = [row["passes"] for run in runs[:-1] for row in run]
    assert f"passes take {min(passes):.2f} to {max(passes):.2f} times their costs" in page
    tokens = [r["predicted_tokens_per_second"] / r["measured_tokens_per_second"] for r in every]
    assert f"Throughput is within {max(abs(t - 1) for t in tokens):.1%} in all" in page
    spans = [f"{min(e):.0%} to {max(e):+.0%}" for e in errors]
    assert f"Latency there: {spans[4]}; run 4: {spans[3]}" in page
    assert f"timed after it: {spans[2]}" in page
    assert f"half the context: {spans[0]} and {spans[1]}" in page


def test_the_page_holds_the_warnings_of_their_costs():
    page = " ".join((ROOT / "docs" / "load.md").read_text(encoding="utf-8").split())
    folder = ROOT / "traces" / "smollm2" / "engines"
    warnings = [w for name in RUNS for w in load_cost(folder / f"{name}.cost.json").warnings]
    line = r"a pass of [123] draft tokens is faster than one of [01] by (\d+)% of a plain one"
    found = [match for warning in warnings if (match := re.match(line, warning))]
    assert len(found) == len(warnings) > 0
    assert f"by up to {max(int(match[1]) for match in found)}% of a plain one" in page


@pytest.mark.parametrize("text", ["", "{}", '{"about": {}}\n{"rate": 1}', "x"])
def test_other_files_are_one_line(tmp_path, text):
    (tmp_path / "r").write_text(text)
    with pytest.raises(ValueError, match="holds no run under load"):
        read_loaded(tmp_path / "r")


def test_line_holds_arrivals_only_where_given():
    request = Request("a", (1,), 2)
    assert "arrivals" not in run_line(1, [request], 1, 0, None)
    assert run_line(1, [request], 1, 0, None, arrivals=[0.5])["arrivals"] == [0.5]


class Engine:
    """vLLM's engine for the worker: every step gives each request a token, the third ends it."""

    def __init__(self, passes):
        self.passes, self.rows, self.together = passes, {}, []

    def add_request(self, number, prompt, sampling):
        self.rows[number] = 0

    def step(self):
        time.sleep(0.002)
        self.together.append(len(self.rows))
        done = []
        for number in list(self.rows):
            self.passes.append((number, self.rows[number], 0, 1))
            self.rows[number] += 1
            if self.rows[number] == 3:
                del self.rows[number]
                output = SimpleNamespace(token_ids=[1, 2, 3], finish_reason="length")
                done.append(
                    SimpleNamespace(finished=True, request_id=number, outputs=[output])
                )  # fmt: skip
        return done


def test_worker_lets_requests_join_at_their_times(vllm):  # noqa: F811
    engine = vllm.VllmEngine.__new__(vllm.VllmEngine)
    engine.draft, engine.most, engine.options = None, 0, {"batch": 2, "longest": 9}
    engine.scheduler = SimpleNamespace(passes=[])
    engine.engine = Engine(engine.scheduler.passes)
    engine._sampling = lambda most: None
    asked = [{"id": f"{i}", "prompt": [1], "max_tokens": 3} for i in range(4)]
    found = {
        row["id"]: row for row in engine.run(asked, 2, 0, None, arrivals=[0.05, 0.05, 0.05, 0.2])
    }
    assert engine.engine.together[:3] == [3, 3, 3]  # beyond `concurrent`: vLLM's own queue
    assert engine.engine.together[3:] == [1, 1, 1]
    for row in found.values():
        assert 0.002 <= row["first_seconds"] < row["seconds"]
    assert found["3"]["seconds"] < 0.15  # from its arrival, not from the start
    with pytest.raises(ValueError, match="4 requests, 1 arrivals"):
        next(engine.run(asked, 2, 0, None, arrivals=[0.0]))
