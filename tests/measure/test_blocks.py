"""Blocks of jobs in the decode loop behind a prompt passed once, and the pace of each round."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_lm import DRAFTERS, RULES, UNRECORDED, toy_cost, toy_pair

from real.decode.loop import decode
from real.decode.plans import chain_plan
from real.measure import timing as module
from real.measure.blocks import LoopBlock, TreeWidthBlock
from real.measure.timing import (
    FIXED,
    FLOOR,
    NEAR,
    SPREAD,
    STOLEN,
    WIDTH,
    EndOfJobs,
    Job,
    JobPlan,
    Pace,
    Samples,
    TimingBlock,
    _beside,
    draft_jobs,
    stolen_seconds,
)
from real.model.target import Target
from simspec import policies

COUNT = 6


def orders(seen, turns):
    """The order of each turn, checked to hold every job once."""
    rows = np.array(seen).reshape(turns, COUNT)
    assert (np.sort(rows, 1) == np.arange(1, COUNT + 1)).all()
    return {tuple(row) for row in rows.tolist()}


def test_jobs_of_the_loop_and_tree_widths_are_shuffled():
    block, seen = object.__new__(LoopBlock), []
    block.jobs = [Job(FIXED, size) for size in range(1, COUNT + 1)]
    block.one_by_one, block.target = True, toy_pair("prompt_lookup")[0]
    block._sequence = lambda units, retries, counted: seen.extend(u.size for (u,) in units)
    block.run(np.random.default_rng(0), 4, True, 0.0)
    assert len(orders(seen, 4)) == 4
    block, seen = object.__new__(TreeWidthBlock), []
    block.trees = {Job(WIDTH, size): None for size in range(1, COUNT + 1)}
    block._draft = lambda job, rounds, counted: seen.append(job.size)
    random = np.random.default_rng(0)
    for _ in range(4):
        block.run(random, 4, True, 0.0)
    assert len(orders(seen, 4)) == 4


PROMPT = [5, 9, 7, 5, 9, 7, 5, 9]


@pytest.fixture
def passed(monkeypatch):
    """The prompts that the target passed."""
    prompts, prefill = [], Target._prefill

    def noted(target, tokens):
        prompts.append(list(tokens))
        return prefill(target, tokens)

    monkeypatch.setattr(Target, "_prefill", noted)
    return prompts


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", [*DRAFTERS, *UNRECORDED])
def test_decoding_again_behind_a_prompt_passed_once_equals_decoding(name, rule, passed):
    def texts(target, prompts):
        plan = chain_plan(policies.BUILTIN["fixed"](3), 3, 0, toy_cost())
        runs = [decode(target, drafter, plan, RULES[rule], p, 12, sequence=1) for p in prompts]
        return [(r.token.tolist(), r.drafted.tolist(), r.accepted.tolist()) for r in runs]

    target, drafter = toy_pair(name)
    prompts = [PROMPT, PROMPT, PROMPT[1:], PROMPT]
    expected = texts(target, prompts)
    assert len(passed) == 4
    with target.repeating_prompt():
        assert texts(target, prompts) == expected
    assert [len(tokens) for tokens in passed[4:]] == [7, 6, 7]
    assert texts(target, prompts) == expected
    assert len(passed) == 4 + 3 + 4


@pytest.mark.parametrize("name", ["prompt_lookup", "eagle"])
def test_a_run_passes_its_prompt_once(name, passed):
    target, drafter = toy_pair(name)
    target = Target(target.decoder, drafter.taps, capacity=128)
    samples, jobs = Samples(), draft_jobs(4, drafter.has_logits)
    block = LoopBlock(target, drafter, RULES["greedy"], PROMPT, jobs, samples)
    for run in range(1, 3):
        block.run(np.random.default_rng(0), 3, True, 0.0)
        assert passed == [PROMPT[:-1]] * run
    lengths = {done.computed for rounds in samples.rounds.values() for done in rounds}
    assert lengths >= {0, 1, 2, 3}


ONE, TWO = Job(FIXED, 1), Job(FIXED, 2)


def ran(retries, room=100):
    """Jobs of the units one, two, one; the first draft is accepted whole, so a row is left."""
    plan = JobPlan({ONE: SimpleNamespace(K=1), TWO: SimpleNamespace(K=2)}, [[ONE], [TWO], [ONE]],
                   room, retries)  # fmt: skip
    position = 0
    with pytest.raises(EndOfJobs):
        while True:
            accepted = 0 if position else 1
            size = plan.job.size
            plan.end_round(
                SimpleNamespace(computed=size, drafted=size, accepted=accepted, position=position)
            )
            position += accepted + 1
    return plan.jobs


def test_jobs_behind_a_backlog_are_repeated():
    assert ran(retries=3) == [ONE, TWO, ONE, TWO]
    assert ran(retries=0) == [ONE, TWO, ONE]


def test_a_sequence_ends_where_its_room_does():
    assert ran(retries=3, room=1) == [ONE]


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


def test_stolen_time_is_read_where_the_system_says_it(tmp_path):
    ticks = module.os.sysconf("SC_CLK_TCK")
    file = tmp_path / "stat"
    file.write_text(f"cpu  9 9 9 9 9 9 9 {3 * ticks} 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n")
    assert stolen_seconds(file) == 3
    file.write_text("nothing")
    assert stolen_seconds(file) == stolen_seconds(tmp_path / "none") == 0


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
