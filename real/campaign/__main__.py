"""The whole job on one machine, in calls of a few minutes: each does the parts that fit, and the next one goes on. `make gpu` calls it.

python -m real.campaign --text corpus/ --prompts prompts.jsonl --out /tmp/campaign --results results --limit 9
python -m real.campaign --toy --text notes.txt --prompts prompts.jsonl --out /tmp/toy --results /tmp/home --device cpu
"""

import os
import shlex
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import typer

from real.campaign.archive import pack
from real.campaign.config import FULL, TOY
from real.campaign.report import TASKS, write_report
from real.campaign.stages import Part, parts
from real.campaign.workspace import Folder
from real.files import replacing
from real.provenance import check_device
from real.train.trainer import Paused
from simspec.rng import check_seed

SOON, GRACE = 30, 30
"""Seconds on a card that a part which resumes is worth beginning with, and those that another may take beyond the limit."""


@dataclass(frozen=True)
class State:
    """Where a part stands after a call: done (before, or now in `seconds`), stopped, failed or left, and why."""

    part: Part
    state: str
    seconds: float = 0.0
    why: str = ""


def advance(
    folder: Folder,
    todo: Sequence[Part],
    limit: float,
    clock: Callable[[], float] = time.monotonic,
    say=print,
) -> list[State]:
    """Does the parts that are not done, in order, as long as they fit `limit` seconds; returns where each stands.

    A part is begun when what it needs is done and its estimate fits what is left; one that resumes is begun with less and stopped
    there. Once time was too short for a must, only musts are begun. What a part raises goes to a file in log/, others go on.
    """
    began, short = clock(), False
    states: dict[str, State] = {}
    for part in todo:
        if folder.found(part.name) is not None:
            states[part.name] = State(part, "done")
    for part in todo:
        if part.name in states:
            continue
        left = limit - (clock() - began)
        missing = [
            name for name in part.needs if name not in states or states[name].state != "done"
        ]
        wanted = folder.size.pace * (min(part.seconds, SOON) if part.resumes else part.seconds)
        if missing:
            states[part.name] = State(part, "left", why=f"needs {missing[0]}")
        elif wanted > left:
            why = f"takes about {folder.size.pace * part.seconds:.0f} s, {max(left, 0):.0f} s were left"
            states[part.name] = State(part, "left", why=why)
        elif short and part.rank != "must":
            states[part.name] = State(part, "left", why="a must comes first")
        else:
            states[part.name] = _done(folder, part, began + limit, clock, say)
        short = short or (
            part.rank == "must" and states[part.name].state in ("left", "stopped") and not missing
        )
    return [states[part.name] for part in todo]


def _done(folder: Folder, part: Part, until: float, clock, say) -> State:
    began, last = clock(), [-1]

    def progress(label: str, done: int, total: int, note: str = "") -> None:
        tenth = 10 * done // max(total, 1)
        if done == total or tenth != last[0]:
            say(f"[{clock() - began:5.0f} s] {part.name}: {label} {done}/{total} {note}".rstrip())
            last[0] = tenth
        if clock() > until + (0 if part.resumes else GRACE * folder.size.pace) and done < total:
            raise Paused(part.name)

    folder.progress = progress
    try:
        found = part.make(folder)
        folder.done(part.name, clock() - began, found)
        return State(part, "done", clock() - began)
    except Paused:
        why = (
            "the next call goes on there"
            if part.resumes
            else "took longer than estimated; the next call begins it anew"
        )
        return State(part, "stopped", clock() - began, f"time is up; {why}")
    except Exception as error:  # whatever a part raises, the others go on
        with replacing(folder.out / "log" / f"{part.name}.txt") as path:
            path.write_text(traceback.format_exc(), encoding="utf-8")
        folder.forget()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        why = f"{type(error).__name__}: {' '.join(str(error).split())[:160]} (log/{part.name}.txt)"
        say(f"{part.name} failed: {why}")
        return State(part, "failed", clock() - began, why)


def complete(states: Sequence[State]) -> bool:
    """Whether every must is done."""
    return all(each.state == "done" for each in states if each.part.rank == "must")


def table(states: Sequence[State]) -> str:
    """Where each part stands, for people."""
    wide = max(len(each.part.name) for each in states)
    lines = []
    for each in states:
        spent = f"{each.seconds:6.1f} s" if each.seconds else " " * 8
        lines.append(
            f"{each.part.name:{wide}}  {each.part.rank:6}  {each.state:7}  {spent}  {each.why}".rstrip()
        )
    return "\n".join(lines)


def campaign(
    text: Annotated[list[Path], typer.Option(help="Text to train on, repeatable.")],
    prompts: Annotated[list[Path], typer.Option(help="Prompts as JSON lines, repeatable.")],
    out: Annotated[
        Path, typer.Option(help="Everything lies here, models too; call again to continue.")
    ],
    results: Annotated[
        Path | None,
        typer.Option(help="What travels home: at most 8 files of 16 MB. Default: OUT/results."),
    ] = None,
    heldout: Annotated[list[Path] | None, typer.Option(help="Held-out text, repeatable.")] = None,
    limit: Annotated[
        float,
        typer.Option(
            help="Minutes of this call: no part is begun that takes longer than what is left."
        ),
    ] = 9,
    device: Annotated[str, typer.Option(help="cuda, or cpu to try it.")] = "cuda",
    seed: Annotated[int, typer.Option(help="Of everything.")] = 0,
    toy: Annotated[bool, typer.Option(help="Minute sizes: the whole job in a minute.")] = False,
) -> None:
    """Train a target and its drafters, record them, measure, run, and report; stopped by --limit, the same call goes on."""
    began = time.monotonic()
    folder = Folder(
        out, TOY if toy else FULL, tuple(text), tuple(heldout or ()), tuple(prompts), device, seed
    )
    try:
        check_device(device)
        check_seed(seed)
        if not 0 < limit < float("inf"):
            raise ValueError(f"--limit is {limit}; expected minutes > 0")
        for path in (out, results or out):
            _check_folder(path)
        tasks = folder.tasks()
        folder.open()
        if not toy and (len(tasks) < TASKS or min(tasks.values()) < folder.size.per_task):
            few = ", ".join(f"{many} of {task}" for task, many in tasks.items())
            _say(
                f"note: prompts are {few}; the report asks for {folder.size.per_task} of each of {TASKS} tasks or more"
            )
        states = advance(folder, parts(), 60 * limit - (time.monotonic() - began), say=_say)
    except (ValueError, OSError) as error:
        _stop(error)
    except KeyboardInterrupt:
        print("interrupted; the same call goes on with the part that it was in", file=sys.stderr)
        raise typer.Exit(130) from None
    print(table(states))
    failed = any(each.state == "failed" and each.part.rank == "must" for each in states)
    try:
        requirements = write_report(
            folder, [(each.part.name, each.part.rank, each.state, each.why) for each in states]
        )
        print(
            "\n".join(
                f"{'pass' if v.passed else 'FAIL' if v.passed is False else 'open'}  {v.name}: {v.figure}"
                for v in requirements
            )
        )
        made = pack(folder, results or out / "results")
        print(
            "results: "
            + ", ".join(f"{path.name} ({path.stat().st_size / 1e6:.2f} MB)" for path in made)
        )
    except (ValueError, OSError) as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        failed = True
    print(f"complete: {'yes' if complete(states) else 'no'}")
    if any(each.state in ("left", "stopped") for each in states):
        print(
            "next call: "
            + shlex.join([Path(sys.executable).name, "-m", "real.campaign", *sys.argv[1:]])
        )
    if failed:
        raise typer.Exit(1)


def _stop(error: Exception) -> None:
    print(" ".join(str(error).split()), file=sys.stderr)
    raise typer.Exit(2) from None


def _check_folder(path: Path) -> None:
    there = next(each for each in (path, *path.absolute().parents) if each.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise ValueError(
            f"{path} cannot be written, {there} is {'read-only' if there.is_dir() else 'a file'}: name another folder"
        )


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    typer.run(campaign)
