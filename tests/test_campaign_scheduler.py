"""The campaign's scheduler on a simulated clock: time limits, resumption and failures."""

from dataclasses import replace

import pytest
import torch
from test_size import ROOM
from toy_campaign import open_workspace, write_inputs

from real.campaign import stages as campaign_stages
from real.campaign.config import FULL, TOY, training_of
from real.campaign.scheduler import (
    MIN_SECONDS,
    RANKS,
    Stage,
    advance,
    complete,
    select_stages,
    state_table,
)
from real.campaign.stages import stages


class SimulatedClock:
    """Time that advances only by the work of stages."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def part(
        self, name, seconds, rank="required", needs=(), takes=None, resumes=False, fails=False
    ):
        """A stage of `takes` or `seconds`; one that resumes advances in steps of a second."""
        left = [takes or seconds]

        def make(folder):
            while left[0] > 0:
                left[0] -= 1
                self.now += 1
                folder.progress("working", 0, 1)
            if fails:
                raise RuntimeError("no luck\nat all")
            return {"ran": name}

        return Stage(name, rank, seconds, make, needs, resumes)


@pytest.fixture
def clocked(tmp_path):
    inputs = write_inputs(tmp_path)
    return SimulatedClock(), open_workspace(inputs, tmp_path / "out", replace(TOY, pace=1.0))


def run(folder, todo, limit, clock):
    return {
        status.stage.name: status.state
        for status in advance(folder, todo, limit, clock, lambda line: None)
    }


def test_stages_beyond_the_time_limit_are_not_started(clocked):
    clock, folder = clocked
    todo = [
        clock.part("a", 30),
        clock.part("b", 50),
        clock.part("c", 20),
        clock.part("d", 5, "recommended"),
        clock.part("e", 5, needs=("b",)),
    ]
    assert run(folder, todo, 60, clock) == {
        "a": "done",
        "b": "left",
        "c": "done",
        "d": "left",
        "e": "left",
    }  # c fits; d is no must
    assert clock.now == 50
    assert run(folder, todo, 60, clock) == dict.fromkeys("abcde", "done")
    assert clock.now == 110


def test_resumable_stages_start_with_less_time(clocked):
    clock, folder = clocked
    long = clock.part("long", 200, resumes=True)
    todo = [long, clock.part("next", 10, needs=("long",)), clock.part("extra", 1, "recommended")]
    assert run(folder, todo, 100, clock) == {"long": "stopped", "next": "left", "extra": "left"}
    assert clock.now == 101
    assert run(folder, todo, MIN_SECONDS - 1, clock)["long"] == "left"
    assert run(folder, todo, 200, clock) == dict.fromkeys(("long", "next", "extra"), "done")
    late = clock.part(
        "late", 10, takes=500
    )  # one that does not resume is given up only far beyond the limit
    before = clock.now
    assert run(folder, [late], 20, clock) == {"late": "stopped"}
    assert clock.now - before == 51


def test_failed_stage_stops_only_its_dependents(clocked):
    clock, folder = clocked
    todo = [
        clock.part("a", 1),
        clock.part("s", 1, "recommended", fails=True),
        clock.part("t", 1, "recommended", ("s",)),
        clock.part("u", 1, "optional"),
    ]
    states = advance(folder, todo, 60, clock, lambda line: None)
    assert [status.state for status in states] == ["done", "failed", "left", "done"]
    assert complete(states)
    assert "RuntimeError: no luck at all" in states[1].why
    assert "Traceback" in (folder.out / "log" / "s.txt").read_text()
    assert "needs s" in state_table(states)
    assert state_table(states).count("\n") == 3
    assert not complete(
        advance(folder, [clock.part("m", 1, fails=True)], 60, clock, lambda line: None)
    )
    assert run(folder, [clock.part("s", 1, "recommended")], 60, clock) == {
        "s": "done"
    }  # tried anew


def test_a_failed_stage_comes_last_in_the_next_call(clocked):
    """Else a stage that always fails would take the time of all others in every call."""
    clock, folder = clocked
    todo = [clock.part("f", 20, fails=True), clock.part("a", 50)]
    assert run(folder, todo, 30, clock) == {"f": "failed", "a": "left"}
    assert run(folder, todo, 60, clock) == {"f": "left", "a": "done"}


def test_nothing_starts_on_a_gpu_that_an_error_made_unusable(clocked, monkeypatch):
    """After a kernel's failed assertion every later call of the process fails, memory's too."""
    clock, folder = clocked

    def broken():
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", broken)
    todo = [clock.part("a", 1), clock.part("f", 1, fails=True), clock.part("b", 1)]
    states = advance(folder, todo, 60, clock, lambda line: None)
    assert [state.state for state in states] == ["done", "failed", "left"]
    assert "the next call goes on" in states[2].why


def test_a_training_plans_for_the_time_that_its_call_has_left(clocked, monkeypatch):
    _, folder = clocked
    planned = []
    card = {"steps": 1, "parameters": {}, "evaluation": {}}
    monkeypatch.setattr(
        campaign_stages, "train_with", lambda known, training, *_: planned.append(training) or card
    )
    folder.__dict__["known"] = None
    given = next(d for d in folder.train_config.drafters if d.drafter == "eagle")
    given = replace(given, plan=replace(given.plan, steps=0, minutes=4))
    folder.__dict__["train_config"] = replace(folder.train_config, drafters=(given,))
    for seconds in (float("inf"), 145):
        folder.seconds_left = seconds
        campaign_stages.train_drafter(folder, "eagle")
    assert [training.plan.minutes for training in planned] == [4, pytest.approx(0.85 * 100 / 60)]


def test_named_stages_run_alone(clocked):
    clock, folder = clocked
    todo = [
        clock.part("distil", 30),
        clock.part("drafter-eagle", 30, needs=("distil",), resumes=True),
        clock.part("record", 1, needs=("drafter-eagle",)),
    ]
    assert [stage.name for stage in select_stages(todo, ["record", "distil"])] == [
        "distil",
        "record",
    ]
    with pytest.raises(ValueError, match="--only is 'eagle'; expected a stage, such as distil or"):
        select_stages(todo, ["eagle"])
    folder.save_result("drafter-eagle", 1, {})
    alone = select_stages(todo, ["record"])  # its needs are done in another call
    assert run(folder, alone, 60, clock) == {"record": "done"}


def test_stages_are_unique_ordered_and_within_limits():
    names, ranks = [part.name for part in stages()], [part.rank for part in stages()]
    assert len(set(names)) == len(names)
    assert ranks == sorted(ranks, key=RANKS.index)
    for index, part in enumerate(stages()):
        assert set(part.needs) <= set(names[:index]), part.name
    must = sum(part.seconds for part in stages() if part.rank == "required")
    assert must <= 30 * 60  # an H200's seconds, where one ran them
    assert max(part.seconds for part in stages()) < 9 * 60
    shape, training = FULL.training.target, training_of(FULL, (), (), "cuda", 0)
    layer = (
        2 * shape.width * shape.head_dim * (shape.heads + shape.kv_heads)
        + 3 * shape.width * shape.hidden
    )
    assert 100e6 <= shape.layers * layer + shape.vocab * shape.width <= 200e6
    assert 20 <= shape.layers <= 28
    assert training.compiled
    assert not training_of(FULL, (), (), "cpu", 0).compiled
    assert FULL.recording.per_task >= 24
    assert FULL.recording.budget >= 160
    assert FULL.recording.K == 16
    assert FULL.checks.min_tokens >= 20_000
    assert FULL.archive_bytes <= ROOM
