"""Timing blocks: which count, what they weigh, and passes that leave decoding as it is."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_lm import DRAFTERS, RULES, UNRECORDED, toy_cost, toy_pair

from real.decode.loop import decode
from real.decode.plans import chain_plan
from real.measure import timing as module
from real.measure.timing import (
    FLOOR,
    NEAR,
    SPREAD,
    STOLEN,
    Pace,
    TimingBlock,
    _beside,
    stolen_seconds,
)
from simspec import policies

PROMPT = [5, 9, 7, 5, 9, 7, 5, 9]


class Clock:
    """A clock that advances by what `take` is told, some of it stolen."""

    def __init__(self):
        self.time = self.stolen = 0.0

    def pace(self):
        return Pace(timer=lambda: self.time, stolen=lambda: self.stolen)

    def take(self, pace, seconds, stolen=0.0):
        self.time += seconds
        self.stolen += stolen
        return pace.note(seconds)


def test_a_block_lasts_a_second_and_the_next_begins_with_its_last_pass():
    clock = Clock()
    pace = clock.pace()
    pace.begin()
    assert [clock.take(pace, 0.4)[0] for _ in range(5)] == [0, 0, 0, 1, 1]
    assert [block.pace for block in pace.blocks] == [[0.4] * 3, [0.4] * 3]


def test_blocks_of_a_run_that_does_not_count_are_dropped():
    clock = Clock()
    pace = clock.pace()
    pace.begin()
    clock.take(pace, 0.1)
    pace.begin()
    clock.take(pace, 0.7)
    clock.take(pace, 0.7)
    pace.drop()
    assert [block.pace for block in pace.blocks] == [[0.1]]


def test_a_block_is_left_out_where_time_was_stolen_or_its_passes_spread():
    clock = Clock()
    pace = clock.pace()
    for seconds, stolen in (((0.1, 0.1, 0.1), 0), ((0.1, 0.1, 0.1), 0.1), ((0.1, 0.2, 0.3), 0)):
        pace.begin()
        for second in seconds:
            clock.take(pace, second, stolen)
    assert pace.counted == [True, False, False]
    assert pace.weights.tolist() == [1 / FLOOR**2, 0, 0]
    assert pace.typical == 0.1


def test_all_blocks_count_where_none_would():
    pace = Pace()
    pace.extend([[0.5, 1.0], [0.5, 3.0]])
    assert pace.counted == [True, True]
    assert pace.typical == 2.0


@given(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=9), st.floats(0, 1))
def test_weight_and_rule_follow_their_definition(passes, stolen):
    block = TimingBlock(passes, stolen)
    low, high = np.quantile(passes, (0.25, 0.75))
    spread = (high - low) / np.median(passes)
    assert block.spread == pytest.approx(spread)
    assert block.disturbed == (stolen > STOLEN or spread > SPREAD)
    assert block.weight == pytest.approx((1 - stolen) / max(spread, FLOOR) ** 2)


def test_blocks_survive_a_file():
    pace, again = Pace(), Pace()
    pace.extend([[0.0, 1.0, 1.5], [0.25]])
    again.extend(pace.to_list())
    assert again.blocks == pace.blocks
    for wrong in ([[float("nan"), 1.0]], [[0.0, "x"]], [[]], [None]):
        with pytest.raises((ValueError, TypeError)):
            Pace().extend(wrong)


def test_stolen_time_is_read_where_the_system_says_it(tmp_path):
    ticks = module.os.sysconf("SC_CLK_TCK")
    file = tmp_path / "stat"
    file.write_text(f"cpu  9 9 9 9 9 9 9 {3 * ticks} 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n")
    assert stolen_seconds(file) == 3
    file.write_text("nothing")
    assert stolen_seconds(file) == stolen_seconds(tmp_path / "none") == 0


def test_bare_passes_are_settled_by_the_pace_on_both_sides(monkeypatch):
    left = iter([1.0] * module.ROUNDS + [2.0] * module.ROUNDS + [10.0] * module.ROUNDS)
    monkeypatch.setattr(module, "one_row", lambda target, token: next(left))
    settled = []

    class Waiting:
        def settle(self, before, after):
            settled.append((before, after))

    pace = Pace()
    pace.settle(None, 1)  # nothing waits: nothing is timed
    pace.paced.append(Waiting())
    for _ in range(3):
        pace.settle(None, 1)
    assert settled == [(1, 2), (2, 10)]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", [*DRAFTERS, *UNRECORDED])
def test_one_row_passes_between_rounds_change_no_token(name, rule):
    target, drafter = toy_pair(name)
    runs = []
    for timed in (False, True):
        plan = chain_plan(policies.BUILTIN["fixed"](3), 3, 0, toy_cost())
        note = (lambda done: module.one_row(target, 7)) if timed else (lambda done: None)
        run = decode(target, drafter, plan, RULES[rule], PROMPT, 12, sequence=1, on_round=note)
        runs.append((run.token.tolist(), run.drafted.tolist(), run.accepted.tolist()))
    assert runs[0] == runs[1]


@given(
    st.lists(st.tuples(st.integers(0, 2), st.floats(0.1, 9)), min_size=2, max_size=30), st.data()
)
def test_pace_of_a_round_is_the_median_of_near_passes_of_its_block(passes, data):
    """By its definition, pass by pass: up to NEAR before the round and NEAR after it."""
    i = data.draw(st.integers(0, len(passes) - 2))
    block = passes[i + 1][0]
    near = [
        seconds
        for place, (other, seconds) in enumerate(passes)
        if other == block and -NEAR < place - i <= NEAR
    ]
    assert _beside(passes, i) == (float(np.median(near)), block)
