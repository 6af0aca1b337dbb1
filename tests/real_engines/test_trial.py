"""Versions of engines that were not tested: used after equal passes, else refused in one line."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fake_engine import SETTINGS, FakeRunner

from real.engines import RELEASED
from real.engines.adapter import Environment
from real.engines.trial import KEPT, PASSES, PROMPTS, try_version

RULES = {
    "vllm": ("vllm", "vllm:1,3"), "llamacpp": ("llamacpp", "llamacpp:1"),
    "transformers": ("transformers_ngram", "transformers:1,2"),
}  # fmt: skip


def runner_of(name, end=None, kind=FakeRunner):
    """An engine whose model goes on with the prompts' patterns, and errs in a fifth of tokens."""
    rng = np.random.default_rng(0)
    world = []
    for request in PROMPTS:
        future = np.array(request.prompt * 4)
        wrong = rng.random(len(future)) < 0.2
        future[wrong] = rng.choice(request.prompt, wrong.sum())
        world.append((request, [3] * 9 if end else future.tolist()))
    rules, rule = RULES[name]
    return kind(world, rules, rule, name=name, sets_k=name != "llamacpp")


class Late(FakeRunner):
    """An engine that drafts nothing in one pass of the second prompt, which had a draft."""

    def answer(self, request, k, force):
        finished = super().answer(request, k, force)
        if request.id != PROMPTS[1].id:
            return finished
        place = next(i for i, row in enumerate(finished.passes) if row[1] and not row[2])
        passes = list(finished.passes)
        passes[place] = 1, 0, 0
        return replace(finished, passes=tuple(passes))


@pytest.fixture
def environment(tmp_path):
    (tmp_path / "bin").mkdir()
    return Environment(tmp_path / "bin" / "python", "vllm", "0.33.0")


def no_engine():
    raise AssertionError("the trial runs again")


@pytest.mark.parametrize("name", RELEASED)
def test_equal_passes_are_used_with_a_note_and_tried_once(name, environment):
    engine, runner = RELEASED[name], runner_of(name)
    note = try_version(engine, environment, SETTINGS, lambda: runner)
    assert note.startswith("vllm 0.33.0 was not tested with simspec, which knows ")
    assert int(note.split(": ")[-1].split()[0]) >= PASSES
    assert runner.closed == 1
    assert try_version(engine, environment, SETTINGS, no_engine) == note
    other = replace(environment, version="0.34.0")
    assert "0.34.0" in try_version(engine, other, SETTINGS, lambda: runner)
    (environment.python.parents[1] / KEPT).write_text('{"tried": 3}')  # no trial
    try_version(engine, environment, SETTINGS, lambda: runner)
    assert runner.closed == 3
    closed = replace(environment, python=Path("/proc/nowhere/bin/python"))
    assert try_version(engine, closed, SETTINGS, lambda: runner) == note


@pytest.mark.parametrize("name", RELEASED)
def test_one_other_pass_is_a_refusal_that_names_it(name, environment):
    runner = runner_of(name, kind=Late)
    for make in (lambda: runner, no_engine):
        with pytest.raises(ValueError, match="of trial 1 has ") as raised:
            try_version(RELEASED[name], environment, SETTINGS, make)
        text = str(raised.value)
        assert "[1, 0, 0] tokens emitted, drafted and accepted, where the replay has [1, " in text
        assert text.endswith(f"give {environment.python.parents[1]} a version that was tested")
        assert "\n" not in text


def test_texts_that_end_at_once_decide_nothing(environment):
    runner = runner_of("vllm", end=True)
    for _ in range(2):  # not kept
        with pytest.raises(ValueError, match="all texts of its trial end before 20 passes"):
            try_version(RELEASED["vllm"], environment, SETTINGS, lambda: runner)
