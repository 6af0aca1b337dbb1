"""The campaign's scheduler on a simulated clock: time limits, resumption and failures."""

from dataclasses import replace

import pytest
from test_size import ROOM
from toy_campaign import open_workspace, write_inputs

from real.campaign.config import FULL, TOY, training_of
from real.campaign.scheduler import MIN_SECONDS, RANKS, Stage, advance, complete, state_table
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


def test_stages_are_unique_ordered_and_within_limits():
    names, ranks = [part.name for part in stages()], [part.rank for part in stages()]
    assert len(set(names)) == len(names)
    assert ranks == sorted(ranks, key=RANKS.index)
    for index, part in enumerate(stages()):
        assert set(part.needs) <= set(names[:index]), part.name
    must = sum(part.seconds for part in stages() if part.rank == "required")
    assert must <= 22 * 60
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
