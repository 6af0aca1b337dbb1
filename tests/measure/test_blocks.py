"""Blocks of a measurement: jobs in a new random order each time, behind a prompt passed once."""

import numpy as np
import pytest
from toy_lm import DRAFTERS, RULES, UNRECORDED, toy_cost, toy_pair

from real.decode.loop import decode
from real.decode.plans import chain_plan
from real.measure.blocks import LoopBlock, TreeWidthBlock
from real.measure.timing import FIXED, WIDTH, Job, Samples, draft_jobs
from real.model.target import Target
from simspec import policies

COUNT = 6


def orders(seen, turns):
    """The order of each turn, checked to hold every job once."""
    rows = np.array(seen).reshape(turns, COUNT)
    assert (np.sort(rows, 1) == np.arange(1, COUNT + 1)).all()
    return {tuple(row) for row in rows.tolist()}


def test_jobs_of_the_loop_are_shuffled():
    block, seen = object.__new__(LoopBlock), []
    block.jobs = [Job(FIXED, size) for size in range(1, COUNT + 1)]
    block.one_by_one, block.target = True, toy_pair("prompt_lookup")[0]
    block._sequence = lambda units, retries, counted: seen.extend(u.size for (u,) in units)
    block.run(np.random.default_rng(0), 4, True, 0.0)
    assert len(orders(seen, 4)) == 4


def test_tree_widths_are_shuffled():
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
