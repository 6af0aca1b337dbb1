"""Streams whose task switches: their orders, their regret by its definition, and known answers."""

import json
from dataclasses import replace

import numpy as np
import pytest
from console_pages import printed, steps
from documents import ROOT, blocks
from shell import command, refused

from simspec import CostModel, replay, synthetic
from simspec.policies import make
from simspec.reports.drift import (
    STARTS,
    best_pace,
    blocks_order,
    drift,
    longest_run,
    mixed_order,
    settled,
)
from simspec.trace.rounds import committed
from simspec.trace.trace import Trace

COST = CostModel.from_ratio(0.2, 6)
TASKS = ("easy",) * 10 + ("hard",) * 10


def two_tasks(easy: float, hard: float, rows=60) -> Trace:
    trace = synthetic.iid(0.5, 20, rows, 6)
    parts = [synthetic.iid(a, 10, rows, 6, 1) for a in (easy, hard)]
    run = np.concatenate([part.run for part in parts])
    return replace(trace, run=run, meta=replace(trace.meta, tasks=TASKS))


def one(trace, policy, orders=3, **options):
    (found,) = drift("r", trace, [policy], COST, orders, **options)
    return found


@pytest.mark.parametrize("turn", range(4))
def test_orders_hold_every_text_once_and_differ_in_switches(turn):
    tasks = ("a",) * 6 + ("b",) * 3 + ("c",) * 9
    in_blocks, mixed = blocks_order(tasks, turn, 5), mixed_order(tasks, turn, 5)
    assert sorted(in_blocks) == sorted(mixed) == list(range(18))
    names = np.array(tasks)
    assert (names[in_blocks][1:] != names[in_blocks][:-1]).sum() == 2
    assert (names[mixed][1:] != names[mixed][:-1]).sum() >= 9
    assert names[in_blocks][0] == "abc"[turn % 3]
    for name in "abc":  # the same prompts in the same order within a task
        kept = [[s for s in order if tasks[s] == name] for order in (in_blocks, mixed)]
        assert kept[0] == kept[1]
    assert blocks_order(tasks, turn, 5).tolist() == in_blocks.tolist()


def test_a_fixed_length_knows_no_order_and_the_best_one_has_no_regret():
    trace = two_tasks(0.8, 0.8)
    best = min(range(7), key=lambda k: COST.seconds(replay(trace, make(f"fixed:{k}", trace, COST),
                                                           0, COST)).sum())  # fmt: skip
    found = one(trace, f"fixed:{best}")
    assert found.blocks == found.mixed == found.reset
    assert found.switching.value == 0
    known = [value for value in found.after_switch if value is not None]
    assert known == pytest.approx([0.0] * len(known), abs=1e-9)
    assert (found.settled, found.idle, found.longest_idle) == (0, 0, 0)


def test_regret_is_the_time_over_that_of_the_best_length_on_the_same_tokens():
    trace, policy = two_tasks(0.9, 0.1, 30), make("hf_heuristic", two_tasks(0.9, 0.1), COST)
    found = one(trace, policy, orders=2, seed=4)
    spent, due = [0.0] * len(STARTS), [0.0] * len(STARTS)
    seconds = best_pace(trace, COST)
    for i in range(2):
        order = blocks_order(TASKS, i, 4)
        stream = trace.select(order)
        rounds = replay(stream, replace(policy, scope="stream"), 4 + i, COST)
        times, tokens = COST.seconds(rounds), committed(rounds, stream)
        counted, before = 0, TASKS[order[0]]
        for s, sequence in enumerate(order):
            if TASKS[sequence] != before:
                counted, before = 0, TASKS[sequence]
            for r in range(rounds.offset[s], rounds.offset[s + 1]):
                if TASKS[sequence] != TASKS[order[0]]:
                    b = max(j for j, start in enumerate(STARTS) if start <= counted)
                    row = trace.offset[sequence] + rounds.row[r] - stream.offset[s]
                    spent[b] += times[r]
                    due[b] += seconds[row : row + tokens[r]].sum()
                counted += 1
    twin = [s / d - 1 if d else None for s, d in zip(spent, due)]
    assert found.after_switch == pytest.approx(twin)


def test_pace_shares_each_round_of_the_best_length_among_its_tokens():
    trace = two_tasks(0.9, 0.0)
    pace = best_pace(trace, COST)
    half = trace.rows // 2
    easy = trace.select(range(10))
    times = [
        COST.seconds(replay(easy, make(f"fixed:{k}", easy, COST), 0, COST)).sum() for k in range(7)
    ]
    assert pace[:half].sum() == pytest.approx(min(times))
    assert pace[half:] == pytest.approx(1.0)  # nothing is accepted: plain decoding


def test_learning_starts_anew_at_a_switch_and_carried_state_pays_for_it():
    """Fresh state is the control: it meets no switch."""
    found = one(two_tasks(0.95, 0.05), "ema_tiers", orders=4)
    assert found.after_switch[0] > 0.2 > found.after_switch[-1]
    assert found.mixed.value < found.blocks.value
    assert found.settled is None or found.settled > 0
    even = one(two_tasks(0.9, 0.9), "ema_tiers", orders=4)
    assert found.switching.low > 0 > even.switching.low
    assert even.after_switch[0] == pytest.approx(even.after_text[0], abs=0.05)


def test_reset_is_the_usual_replay():
    trace = two_tasks(0.9, 0.2)
    policy = make("two_thresholds:attempts=2,scope=sequence", trace, COST)
    expected = trace.rows / COST.seconds(replay(trace, policy, 0, COST)).sum()
    assert one(trace, policy).reset.value == pytest.approx(expected)


def test_settled_and_longest_run_by_hand():
    assert settled((0.3, 0.04, 0.06, 0.01, 0.0, None)) == STARTS[3]
    assert settled((0.0, None, 0.05, 0.0, 0.0, -0.1)) == 0
    assert settled((0.0, 0.0, 0.0, 0.0, 0.0, 0.06)) is None
    flags = np.array([1, 1, 0, 1, 1, 1, 0, 1], dtype=bool)
    assert longest_run(flags) == 3
    assert longest_run(np.zeros(4, bool)) == 0
    assert longest_run(np.ones(4, bool)) == 4


def test_command_prints_both_tables_and_json(tmp_path):
    two_tasks(0.9, 0.1, 20).save(tmp_path / "t.parquet")
    words = ("drift", "t.parquet", "--cost", "0.2", "--policy", "ema_tiers", "--orders", "2")
    code, out, _ = command(tmp_path, *words)
    assert code == 0
    assert "by task - in turn" in out
    assert "since a switch" in out
    (row,) = json.loads(command(tmp_path, *words, "--json")[1])["rows"]
    assert row["policy"] == "ema_tiers"
    assert row["switching"]["low"] <= row["switching"]["high"]
    assert len(row["after_switch"]) == len(STARTS)


@pytest.mark.parametrize(
    "words, why",
    [
        (("--policy", "oracle"), "oracle cannot follow a stream"),
        (("--orders", "0"), "orders is 0"),
        (("--policy", "nobody"), "no policy is named 'nobody'"),
    ],
)
def test_command_refuses(tmp_path, words, why):
    two_tasks(0.9, 0.1, 12).save(tmp_path / "t.parquet")
    refused(tmp_path, "drift", "t.parquet", "--cost", "0.2", *words, words=why)


def test_one_task_has_no_switch(tmp_path):
    synthetic.iid(0.5, 9, 12, 4).save(tmp_path / "t.parquet")
    refused(tmp_path, "drift", "t.parquet", "--cost", "0.2", words="holds one task, synthetic")


@pytest.mark.docs
def test_page_shows_what_is_printed(tmp_path):
    for block in blocks(ROOT / "docs" / "drift.md", "console"):
        for words, shown in steps(block):
            assert printed(tmp_path, words, shown) == shown, " ".join(words)
