"""Stages of a campaign, and running them within a time limit."""

import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from real.campaign.workspace import Workspace
from real.files import replacing
from real.train.training_loop import Paused

RANKS = ("required", "recommended", "optional")


@dataclass(frozen=True)
class Stage:
    """One stage.

    | field | meaning |
    | --- | --- |
    | name, rank | required, recommended or optional |
    | seconds | estimate on a GPU |
    | run | (workspace) -> result, for the report |
    | needs | stages that must be done before |
    | resumes | continues where it was stopped, so that it may start with less time than it needs |
    """

    name: str
    rank: str
    seconds: float
    run: Callable[[Workspace], dict]
    needs: tuple[str, ...] = ()
    resumes: bool = False


MIN_SECONDS, GRACE_SECONDS = 30, 30
"""Least time to start a stage that resumes; time beyond the limit for one that does not."""


@dataclass(frozen=True)
class State:
    """A stage after a call: done, stopped, failed or left; seconds of this call; why."""

    stage: Stage
    state: str
    seconds: float = 0.0
    why: str = ""


def advance(
    workspace: Workspace,
    todo: Sequence[Stage],
    limit: float,
    clock: Callable[[], float] = time.monotonic,
    say=print,
) -> list[State]:
    """Runs the stages that are not done, in order, within `limit` seconds; the state of each.

    A stage starts when its needs are done and its estimate fits the time left; one that resumes
    starts with less, and is stopped. Once time is too short for a required stage, only required
    ones start. An exception of a stage goes to a file in log/, and the others continue, the stage
    itself comes last in the next call. Where it leaves the GPU unusable no other stage starts.
    """
    began, short, usable = clock(), False, True
    failed = {
        stage.name for stage in todo if (workspace.out / "log" / f"{stage.name}.txt").exists()
    }
    states: dict[str, State] = {}
    for stage in todo:
        if workspace.result(stage.name) is not None:
            states[stage.name] = State(stage, "done")
    for stage in sorted(todo, key=lambda stage: stage.name in failed):
        if stage.name in states:
            continue
        left = limit - (clock() - began)
        missing = [
            name
            for name in stage.needs
            if (
                states[name].state != "done"
                if name in states
                else workspace.result(name) is None  # a stage that this call leaves out
            )
        ]
        wanted = workspace.config.pace * (
            min(stage.seconds, MIN_SECONDS) if stage.resumes else stage.seconds
        )
        if missing:
            states[stage.name] = State(stage, "left", why=f"needs {missing[0]}")
        elif not usable:
            why = "no kernel runs until this process ends; the next call goes on"
            states[stage.name] = State(stage, "left", why=why)
        elif wanted > left:
            estimate = workspace.config.pace * stage.seconds
            why = f"takes about {estimate:.0f} s, {max(left, 0):.0f} s were left"
            states[stage.name] = State(stage, "left", why=why)
        elif short and stage.rank != "required":
            states[stage.name] = State(stage, "left", why="a required stage comes first")
        else:
            states[stage.name] = _run(workspace, stage, began + limit, clock, say)
            usable = states[stage.name].state != "failed" or release_memory()
        short = short or (
            stage.rank == "required"
            and states[stage.name].state in ("left", "stopped")
            and not missing
        )
    return [states[stage.name] for stage in todo]


def _run(workspace: Workspace, stage: Stage, until: float, clock, say) -> State:
    began, last = clock(), [-1]

    def progress(label: str, done: int, total: int, note: str = "") -> None:
        tenth = 10 * done // max(total, 1)
        if done == total or tenth != last[0]:
            say(f"[{clock() - began:5.0f} s] {stage.name}: {label} {done}/{total} {note}".rstrip())
            last[0] = tenth
        if (
            clock() > until + (0 if stage.resumes else GRACE_SECONDS * workspace.config.pace)
            and done < total
        ):
            raise Paused(stage.name)

    workspace.progress = progress
    workspace.seconds_left = max(until - began, 0)
    try:
        result = stage.run(workspace)
        workspace.save_result(stage.name, clock() - began, result)
        return State(stage, "done", clock() - began)
    except Paused:
        why = (
            "the next call continues there"
            if stage.resumes
            else "took longer than estimated; the next call starts it again"
        )
        return State(stage, "stopped", clock() - began, f"time is up; {why}")
    except Exception as error:  # whatever a stage raises, the others continue
        with replacing(workspace.out / "log" / f"{stage.name}.txt") as path:
            path.write_text(traceback.format_exc(), encoding="utf-8")
        workspace.unload_models()
        why = f"{type(error).__name__}: {' '.join(str(error).split())[:160]} (log/{stage.name}.txt)"
        say(f"{stage.name} failed: {why}")
        return State(stage, "failed", clock() - began, why)


def select_stages(todo: Sequence[Stage], names: Sequence[str] | None) -> list[Stage]:
    """The named stages in order, all without names; ValueError for a name that none has."""
    known = {stage.name for stage in todo}
    if unknown := [name for name in names or () if name not in known]:
        raise ValueError(
            f"--only is {unknown[0]!r}; expected a stage, such as {todo[0].name} or {todo[-1].name}"
        )
    return [stage for stage in todo if not names or stage.name in names]


def release_memory() -> bool:
    """Gives unused memory of the GPU back; False after an error that ends all use of it."""
    try:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
            torch.cuda.synchronize()
    except RuntimeError:  # a failed assertion of a kernel: every later call fails too
        return False
    return True


def complete(states: Sequence[State]) -> bool:
    """Whether every required stage is done."""
    return all(s.state == "done" for s in states if s.stage.rank == "required")


def state_table(states: Sequence[State]) -> str:
    """The states as a table."""
    width = max(len(s.stage.name) for s in states)
    lines = []
    for s in states:
        spent = f"{s.seconds:6.1f} s" if s.seconds else " " * 8
        lines.append(
            f"{s.stage.name:{width}}  {s.stage.rank:11}  {s.state:7}  {spent}  {s.why}".rstrip()
        )
    return "\n".join(lines)
