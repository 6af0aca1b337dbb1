"""The whole campaign on one machine, in calls of a few minutes; `make gpu` calls it.

Each call runs the stages that fit, and the next one continues.

python -m real.campaign --text corpus/ --prompts prompts.jsonl --out /tmp/campaign --limit 9
python -m real.campaign --target models/smollm2/target --text corpus/ --prompts prompts.jsonl ...
python -m real.campaign --toy --text notes.txt --prompts prompts.jsonl --out /tmp/toy --device cpu
"""

import os
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from real.campaign.config import (
    FULL,
    FULL_CHECKPOINT,
    RECOMMENDED,
    REQUIRED,
    TOY,
    TOY_CHECKPOINT,
    CampaignConfig,
)
from real.campaign.report import DEFAULT_LIMITS, ResultLimits, pack, write_report
from real.campaign.requirements import TASKS
from real.campaign.scheduler import advance, complete, select_stages, state_table
from real.campaign.stages import stages
from real.campaign.workspace import Workspace, check_checkpoint
from real.provenance import check_device
from simspec.numerics.rng import check_seed
from simspec.output.interrupts import exit_code, message, stoppable
from simspec.output.names import one_note

OUTCOMES = {True: "pass", False: "FAIL", None: "open"}


def campaign(
    text: Annotated[list[Path], typer.Option(help="Text to train on, repeatable.")],
    prompts: Annotated[list[Path], typer.Option(help="Prompts as JSON lines, repeatable.")],
    out: Annotated[Path, typer.Option(help="Workspace, models included; call again to continue.")],
    results: Annotated[
        Path | None, typer.Option(help="Folder of the files to keep. Default: OUT/results.")
    ] = None,
    largest_file: Annotated[
        float, typer.Option(help="Most MB of a file in --results.")
    ] = DEFAULT_LIMITS.file_bytes / 1e6,
    most_files: Annotated[
        int, typer.Option(help="Most files in --results.")
    ] = DEFAULT_LIMITS.files,
    heldout: Annotated[list[Path] | None, typer.Option(help="Held-out text, repeatable.")] = None,
    target: Annotated[
        Path | None,
        typer.Option(
            help="A checkpoint folder or .gguf file as the target: none is trained, and it writes "
            "what its drafters learn from."
        ),
    ] = None,
    training_prompts: Annotated[
        list[Path] | None,
        typer.Option(help="Prompts that --target continues for its drafters, repeatable."),
    ] = None,
    start: Annotated[
        Path | None,
        typer.Option(
            help="Folder of trained drafters of --target: those of its folders, such as eagle, "
            "train on from there."
        ),
    ] = None,
    minutes: Annotated[
        list[str] | None,
        typer.Option(
            help="Minutes that each drafter trains, or one: 1.3, eagle=4, repeatable. "
            "Default: the campaign's own."
        ),
    ] = None,
    limit: Annotated[
        float,
        typer.Option(
            help="Minutes of this call: no stage starts that takes longer than the time left."
        ),
    ] = 9,
    device: Annotated[str, typer.Option(help="cuda, or cpu to try it.")] = "cuda",
    seed: Annotated[int, typer.Option(help="Seed of all stages.")] = 0,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="Run these stages alone, repeatable: drafter-eagle. Several calls may run at once "
            "in one --out; the report then takes a call without."
        ),
    ] = None,
    toy: Annotated[bool, typer.Option(help="Tiny sizes: the whole campaign in minutes.")] = False,
) -> None:
    """Train a target and its drafters, or drafters for a target; record, measure, run and report.

    The same call continues after --limit.
    """
    began = time.monotonic()
    sizes = (FULL, TOY) if target is None else (FULL_CHECKPOINT, TOY_CHECKPOINT)
    workspace = Workspace(
        out,
        sizes[toy],
        tuple(text),
        tuple(heldout or ()),
        tuple(prompts),
        device,
        seed,
        checkpoint=target,
        training_prompts=tuple(training_prompts or ()),
        start=start,
    )
    try:
        if (training_prompts or start) and target is None:
            option = "--training-prompts are" if training_prompts else "--start is"
            raise ValueError(f"{option} for a target that exists: name it by --target")
        workspace.config = _with_minutes(workspace.config, minutes or ())
        if target is not None:
            check_checkpoint(target)
        check_device(device)
        check_seed(seed)
        _ = workspace.train_config  # refuses a wrong --start before anything is written
        if not 0 < largest_file < float("inf") or most_files < 1:
            raise ValueError(
                f"--largest-file is {largest_file} and --most-files {most_files}; "
                "expected MB > 0, and a file at least"
            )
        if not 0 < limit < float("inf"):
            raise ValueError(f"--limit is {limit}; expected minutes > 0")
        for path in (out, results or out):
            _check_folder(path)
        tasks = workspace.tasks()
        workspace.open()
        if not toy and (
            len(tasks) < TASKS or min(tasks.values()) < workspace.config.recording.per_task
        ):
            counts = ", ".join(f"{count} of {task}" for task, count in tasks.items())
            _say(
                f"note: prompts are {counts}; the report requires "
                f"{workspace.config.recording.per_task} of each of {TASKS} tasks or more"
            )
        ablations = [name for name, *_ in workspace.config.training.ablations]
        todo = select_stages(stages(target is not None, ablations), only)
        states = advance(workspace, todo, 60 * limit - (time.monotonic() - began), say=_say)
    except (ValueError, OSError) as error:
        _stop(error)
    except KeyboardInterrupt:
        print(message(), file=sys.stderr)
        raise typer.Exit(exit_code()) from None
    print(state_table(states))
    if only:
        raise typer.Exit(any(s.state == "failed" for s in states))
    failed = any(s.state == "failed" and s.stage.rank == "required" for s in states)
    try:
        requirements = write_report(
            workspace, [(s.stage.name, s.stage.rank, s.state, s.why) for s in states]
        )
        print("\n".join(f"{OUTCOMES[r.passed]}  {r.name}: {r.figure}" for r in requirements))
        limits = ResultLimits(int(1e6 * largest_file), most_files)
        written = pack(workspace, results or out / "results", limits)
        print(
            "results: "
            + ", ".join(f"{path.name} ({path.stat().st_size / 1e6:.2f} MB)" for path in written)
        )
    except (ValueError, OSError) as error:
        print(one_note(error), file=sys.stderr)
        failed = True
    print(f"complete: {'yes' if complete(states) else 'no'}")
    if any(s.state in ("left", "stopped") for s in states):
        print(
            "next call: "
            + shlex.join([Path(sys.executable).name, "-m", "real.campaign", *sys.argv[1:]])
        )
    if failed:
        raise typer.Exit(1)


def _with_minutes(config: CampaignConfig, given: Sequence[str]) -> CampaignConfig:
    """The same campaign with the training times given: 1.3 of each drafter, eagle=4 of one."""
    training, asked = config.training, {}
    names = (*REQUIRED, *RECOMMENDED, *(name for name, *_ in training.ablations))
    for text in given:
        name, named, number = text.rpartition("=")
        try:
            value = float(number)
        except ValueError:
            value = 0.0
        if not 0 < value < float("inf") or named and name not in names:
            raise ValueError(
                f"--minutes is {text!r}; expected minutes > 0 of each drafter, such as 1.3, "
                f"or of one, such as eagle=4: {', '.join(names)}"
            )
        asked[name] = {"minutes": value, "steps": 0}
    plan, plans = training.drafter_plan, {each: dict(own) for each, own in training.plans}
    if every := asked.pop("", None):
        plan = replace(plan, **every)  # type: ignore[arg-type]
        plans = {each: {k: own[k] for k in own if k not in every} for each, own in plans.items()}
    for name, own in asked.items():
        plans[name] = plans.get(name, {}) | own
    changed = tuple((each, tuple(own.items())) for each, own in plans.items())
    return replace(config, training=replace(training, drafter_plan=plan, plans=changed))


def _stop(error: Exception) -> None:
    print(one_note(error), file=sys.stderr)
    raise typer.Exit(2) from None


def _check_folder(path: Path) -> None:
    existing = next(p for p in (path, *path.absolute().parents) if p.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        state = "read-only" if existing.is_dir() else "a file"
        raise ValueError(f"{path} cannot be written, {existing} is {state}: name another folder")


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    with stoppable():
        typer.run(campaign)
