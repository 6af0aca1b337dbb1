"""Steps of a server: written under kills and faults, read with care, and priced by their fit."""

import json
import logging
import sys
import time
from threading import Event
from types import SimpleNamespace

import numpy as np
import pytest
from shell import refused, simspec

from simspec.engines import step_log, vllm_plugin
from simspec.engines.step_log import FORM, StepWriter, is_step_log
from simspec.engines.steps import (
    FEWEST_STEPS,
    advice,
    further_passes,
    lengths_at_batches,
    read_steps,
)

ABOUT = {"vllm": "0.32.0", "model": "m", "method": "ngram", "K": 4}
A, B, C = 0.02, 0.003, 0.001
RATES = np.array([0.7, 0.6, 0.5, 0.4])
"""Acceptance of each position, given the one before."""


def rows_of(seed, count=3000, sizes=(1, 4), matched=0.7, K=4, c=C):
    """Steps of a server whose costs and acceptance are known; a share of requests has no draft."""
    draws, clock = np.random.default_rng(seed), 100.0
    yield {"t": clock, "running": sizes[0], "prompt": 9, "new": sizes[0]}
    for i in range(count):
        n = sizes[i * len(sizes) // count]
        drafting = int((draws.random(n) < matched).sum())
        run = (draws.random((drafting, K)) < RATES[:K]).cumprod(axis=1).sum(axis=0).tolist()
        clock += (A + B * n + c * drafting * K) * draws.lognormal(0, 0.1)
        clock += 0.5 * (draws.random() < 0.01)  # other work
        row = {"t": clock, "running": n, "prompt": 0, "new": n + sum(run), "drafts": drafting}
        yield row | {"drafted": [drafting] * K, "accepted": run}


def truth(n, k, matched=0.7, K=4):
    reached = RATES[:K].cumprod()
    exactly, j = reached - np.append(reached[1:], 0), np.arange(1, K + 1)
    more = matched * exactly @ np.where(j < K, np.ceil((j + 1) / (k + 1)) - 1, (j - k) / (k + 1))
    tokens, plain = 1 + matched * reached.sum(), A + B * n
    return tokens * plain / ((1 + more) * plain + C * n * k * (matched + more))


def write(path, rows, about=ABOUT):
    lines = [{"form": FORM, **about}, *rows]
    with open(path, "a", encoding="utf-8") as file:
        file.writelines(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    return path


def test_fit_finds_costs_and_acceptance(tmp_path):
    inside = 0
    for seed in range(30):
        path = write(tmp_path / f"{seed}.jsonl", rows_of(seed))
        for row in lengths_at_batches(read_steps(path)):
            assert row.speedup.value == pytest.approx(truth(row.requests, row.k), rel=0.1)
            inside += truth(row.requests, row.k) in row.speedup
    assert inside >= 0.88 * 30 * 8  # of 95%; the four lengths of a size share their draws


def test_a_length_of_two_starts_is_priced_though_each_alone_is_not(tmp_path):
    path = write(tmp_path / "a.jsonl", rows_of(1, sizes=(4,), matched=1))
    (sentence,) = advice(path)[1]
    assert "not settled, all steps verify as many tokens" in sentence
    assert "serve K = 2 for an hour" in sentence
    write(path, rows_of(2, sizes=(4,), matched=1, K=1), ABOUT | {"K": 1, "runner": "V2"})
    table, (sentence,) = advice(path)
    assert "vLLM 0.32.0, V2 runner" in table.attrs["title"]
    assert sentence.startswith("4 requests in flight: K = ")
    for row in table.to_dict("records"):
        expected = truth(4, row["k"], 1)
        assert row["speedup"].value == pytest.approx(expected, rel=0.08)


def test_prices_of_rows_may_bend_and_prompts_do_not_get_faster(tmp_path):
    """Rows past 8 cost four times as much; prompts take a fifth of the time."""
    draws, steps, clock = np.random.default_rng(5), [], 0.0

    def price(n, drafted):
        rows = n + drafted
        return 0.02 + 0.001 * rows + 0.003 * np.maximum(rows - 8, 0)

    for i in range(6000):
        n, drafting = 1 + 3 * (i >= 3000), int(draws.integers(0, 2 + 3 * (i >= 3000)))
        clock += price(n, 4 * drafting) * draws.lognormal(0, 0.05)
        row = {"t": clock, "running": n, "prompt": 0, "new": n + 2 * drafting, "drafts": drafting}
        steps.append(row | {"drafted": [drafting] * 4, "accepted": [drafting] * 2 + [0] * 2})
        if i % 10 == 0:
            clock += 0.1
            steps.append({"t": clock, "running": n, "prompt": 50, "new": n})
    path = write(tmp_path / "a.jsonl", steps)
    drafting = np.arange(5)
    for row in lengths_at_batches(read_steps(path)):
        held, more = drafting[: row.requests + 1], float(row.k == 1)
        tokens, passes = 1 + 2 * held.mean() / row.requests, 1 + more * held / row.requests
        drafted = row.k * held * (1 + more) / passes
        spent = (passes * price(row.requests, drafted)).mean()
        expected = (tokens * price(row.requests, 0) + 0.01) / (spent + 0.01)
        assert row.speedup.value == pytest.approx(expected, rel=0.04)


@pytest.mark.parametrize("rate", [0.5, 0.8, 0.95])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_shorter_drafts_take_the_passes_of_a_replay(rate, k):
    """Tokens that are right or wrong wherever a draft begins, as of a draft model."""
    right, K = np.random.default_rng(k).random(40_000) < rate, 5

    def rounds(longest):
        place = 0
        while place + longest < len(right):
            accepted = int(np.append(right[place : place + longest], False).argmin())
            yield np.arange(longest) < accepted
            place += accepted + 1

    served = np.array([*rounds(K)]).astype(int)
    passes = len(served) + further_passes(served, np.full(len(served), K), k).sum()
    replayed = sum(1 for _ in rounds(k))
    assert passes == pytest.approx(replayed, rel=0.04)
    kept = served.sum() / served[:, :k].sum() * len(served)  # the first k of each pass
    assert rate < 0.8 or abs(passes - replayed) < 0.5 * abs(kept - replayed)


def test_impossible_speedups_are_refused(tmp_path):
    path = write(tmp_path / "a.jsonl", rows_of(3, c=-0.003))
    with pytest.raises(ValueError, match="which no step can do"):
        lengths_at_batches(read_steps(path))


def test_steps_of_prompts_waits_and_pieces_of_prompts_are_left_out(tmp_path):
    steps = [
        {"t": 1.0, "running": 1, "prompt": 5, "new": 1},
        {"t": 1.1, "running": 1, "prompt": 0, "new": 1},  # kept
        {"t": 1.3, "running": 2, "prompt": 0, "new": 1},  # one of two reads its prompt
        {"t": 1.4, "running": 0, "prompt": 0, "new": 2},  # kept, the last
        {"t": 9.0, "running": 1, "prompt": 0, "new": 1},  # after a wait
        {"t": 9.2, "running": 1, "prompt": 0, "new": 1, "dropped": 3},
    ]
    found = read_steps(write(tmp_path / "a.jsonl", steps))
    assert found.requests.tolist() == [1, 2]
    assert found.seconds == pytest.approx([0.1, 0.1])


def test_tokens_accepted_past_the_end_of_a_request_are_not_emitted(tmp_path):
    """As vLLM 0.32 wrote it: four of six tokens were left to emit."""
    drafts = {"drafts": 1, "drafted": [1] * 4, "accepted": [1] * 4}
    steps = [
        {"t": 1.0, "running": 2, "prompt": 5, "new": 1},
        {"t": 1.1, "running": 2, "prompt": 0, "new": 4, **drafts},  # none ended: other counts
        {"t": 1.2, "running": 1, "prompt": 0, "new": 4, **drafts},  # two of six were cut
        {"t": 1.3, "running": 0, "prompt": 0, "new": 5, **drafts},
    ]
    found = read_steps(write(tmp_path / "a.jsonl", steps))
    assert found.requests.tolist() == [2, 1]
    assert found.accepted.tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]


GOOD = {"t": 1.0, "running": 1, "prompt": 0, "new": 2, "drafted": [1, 1], "accepted": [1, 0]}


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (json.dumps(GOOD | {"new": -1}), "line 2"),
        (json.dumps(GOOD | {"new": 1 << 60}), "line 2"),
        (json.dumps(GOOD | {"accepted": [2, 0]}), "falling counts, no more accepted"),
        (json.dumps(GOOD | {"drafted": [1] * 5, "accepted": [1] * 5}), "up to 4 positions"),
        (json.dumps(GOOD | {"drafted": [1] * 999}), "line 2"),
        (json.dumps(GOOD | {"t": -1e300}), "line 2"),
        ("\x1b[2J", "line 2"),
        ("x" * 20_000, "20000 bytes, expected at most"),
        ('{"form":"' + FORM + '","vllm":"0.32.0","model":"n","method":"ngram","K":4}', "another"),
        ('{"form":"steps-9","vllm":"1","model":"m","method":"ngram","K":4}', "expected simspec"),
    ],
)
def test_lines_that_no_server_writes_are_refused_in_one(line, told, tmp_path):
    path = write(tmp_path / "a.jsonl", [])
    path.write_text(path.read_text() + line + "\n" + json.dumps(GOOD) + "\n")
    with pytest.raises(ValueError, match=told) as error:
        read_steps(path)
    assert "\n" not in str(error.value)
    assert "\x1b" not in str(error.value)


def test_starts_on_two_runners_are_refused(tmp_path):
    path = write(tmp_path / "a.jsonl", [GOOD], ABOUT | {"runner": "V1"})
    write(path, [GOOD])  # of an older plug-in
    assert read_steps(path).about.runner == "V1"
    write(path, [GOOD], ABOUT | {"runner": "V2"})
    with pytest.raises(ValueError, match="another model, drafter, version or runner"):
        read_steps(path)


def test_a_log_without_a_start_and_an_empty_one_are_refused(tmp_path):
    (tmp_path / "a").write_text(json.dumps(GOOD) + "\n" + json.dumps(GOOD))
    with pytest.raises(ValueError, match="a step before any start"):
        read_steps(tmp_path / "a")
    (tmp_path / "b").write_text("")
    with pytest.raises(ValueError, match="set SIMSPEC_STEPS"):
        read_steps(tmp_path / "b")
    with pytest.raises(ValueError, match=f"0 steps without prompts.*{FEWEST_STEPS}"):
        lengths_at_batches(read_steps(write(tmp_path / "c", [])))


@pytest.fixture
def told():
    """What is logged."""
    lines, handler = [], logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    step_log.logger.addHandler(handler)
    yield lines
    step_log.logger.removeHandler(handler)


def until(ready):
    """Waits for another thread."""
    while not ready():
        time.sleep(0.01)


def held(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_cut_line_ends_before_the_next_start(tmp_path):
    path = write(tmp_path / "a.jsonl", [GOOD, GOOD | {"t": 1.5}])
    path.write_text(path.read_text() + '{"t":1.6,"runn')
    writer = StepWriter(path, ABOUT)
    writer.put(GOOD | {"t": 2.0})
    writer.put(GOOD | {"t": 2.5})
    writer.close()
    assert is_step_log(path)
    steps = read_steps(path)
    assert steps.seconds.tolist() == [0.5, 0.5]
    assert steps.notes == ("1 lines were cut short by a kill",)


def test_a_file_is_turned_over_within_its_bytes(tmp_path):
    path = tmp_path / "a.jsonl"
    writer = StepWriter(path, ABOUT, most_bytes=4000)
    for i in range(100):
        writer.put(GOOD | {"t": float(i)})
    writer.close()
    parts = [held(path.with_name(name)) for name in ("a.jsonl.1", "a.jsonl")]
    assert all(part[0]["form"] == FORM for part in parts)
    kept = [row["t"] for part in parts for row in part[1:]]
    assert kept == [float(i) for i in range(100 - len(kept), 100)]
    assert sum(p.stat().st_size for p in tmp_path.iterdir()) <= 4000 + 400


def test_a_second_server_leaves_the_file_to_the_first(tmp_path, told):
    path = tmp_path / "a.jsonl"
    first, second = StepWriter(path, ABOUT), None
    first.put(GOOD)
    until(lambda: path.exists() and len(held(path)) == 2)
    second = StepWriter(path, ABOUT)
    second.thread.join()
    second.put(GOOD)
    second.close()
    first.put(GOOD)
    first.close()
    assert len(held(path)) == 3
    (line,) = told
    assert "another server writes it: give each its own SIMSPEC_STEPS" in line


@pytest.mark.parametrize(("path", "reason"), [("/dev/full", "No space"), ("/nowhere/a", "No such")])
def test_what_the_disk_refuses_is_told_once(path, reason, told):
    writer = StepWriter(path, ABOUT)
    writer.thread.join()
    for _ in range(3):
        writer.put(GOOD)
    writer.close()
    (line,) = told
    assert reason in line


def test_a_slow_disk_drops_steps_and_counts_them(tmp_path, monkeypatch):
    monkeypatch.setattr(step_log, "WAITING_ROWS", 2)
    write_file, ready = StepWriter._write_file, Event()
    monkeypatch.setattr(StepWriter, "_write_file", lambda self: ready.wait() and write_file(self))
    writer = StepWriter(tmp_path / "a.jsonl", ABOUT)
    for i in range(5):
        writer.put(GOOD | {"t": float(i)})
    ready.set()
    writer.close()
    _, first, second = held(tmp_path / "a.jsonl")
    assert (first["t"], first["dropped"], second["t"]) == (0.0, 3, 1.0)


STATS = SimpleNamespace(
    num_running_reqs=2, num_waiting_reqs=1, kv_cache_usage=0.123456,
    spec_decoding_stats=SimpleNamespace(
        num_drafts=2, num_draft_tokens_per_pos=[2, 1], num_accepted_tokens_per_pos=[1, 1]
    ),
)  # fmt: skip
STEP = SimpleNamespace(num_prompt_tokens=0, num_generation_tokens=4)
CONFIG = SimpleNamespace(
    model_config=SimpleNamespace(model="m"),
    speculative_config=SimpleNamespace(method="ngram", num_speculative_tokens=2),
    use_v2_model_runner=True,
)


def test_plugin_writes_where_the_variable_says_and_fails_no_server(tmp_path, monkeypatch, told):
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__version__="0.32.0"))
    monkeypatch.delenv(step_log.VARIABLE, raising=False)
    off = vllm_plugin.StepLogger(CONFIG)
    off.record(STATS, STEP)
    assert off.writer is None
    path = tmp_path / "a.jsonl"
    monkeypatch.setenv(step_log.VARIABLE, str(path))
    on = vllm_plugin.StepLogger(CONFIG, 1)
    on.record(scheduler_stats=STATS, iteration_stats=STEP, mm_cache_stats=None, engine_idx=1)
    on.record(STATS, None)
    on.record(SimpleNamespace(), STEP)  # of another version
    on.record(STATS, STEP)
    assert on.writer is None
    monkeypatch.setenv(step_log.BYTES_VARIABLE, "many")
    assert vllm_plugin.StepLogger(CONFIG).writer is None
    assert len(told) == 2
    until(lambda: (tmp_path / "a.jsonl.1").exists() and len(held(tmp_path / "a.jsonl.1")) == 2)
    start, row = held(tmp_path / "a.jsonl.1")
    assert (start["K"], start["method"], start["runner"]) == (2, "ngram", "V2")
    assert row.pop("t") > 0
    assert row == {
        "running": 2, "waiting": 1, "kv": 0.1235, "prompt": 0, "new": 4, "drafts": 2,
        "drafted": [2, 1], "accepted": [1, 1],
    }  # fmt: skip
    assert not path.exists()


def test_advise_reads_a_servers_steps(tmp_path):
    path = write(tmp_path / "steps.jsonl", rows_of(7))
    call = ("advise", "vllm", "--log", path, "--out", tmp_path / "out")
    printed, _ = simspec(*call, cwd=tmp_path)
    assert "1 request in flight: K = " in printed
    assert "4 requests in flight: K = " in printed
    saved = json.loads((tmp_path / "out" / "advice.json").read_text())
    assert len(saved["rows"]) == 8
    refused(tmp_path, *call, "--cost", "a.json", words="a server's steps, which price themselves")
