"""A router's table: the draft length of each task and batch size, as JSON.

No engine reads it: a router in front of several servers does, one server for each draft length.
"""

import json
import math
from dataclasses import replace
from typing import Any

from simspec.engines.choice import MAX_LENGTH, Choice, Evidence, choose
from simspec.engines.counts import origin_of
from simspec.engines.documents import (
    check_fields,
    check_integer,
    check_list,
    check_number,
    check_text,
    parse_json,
    shown,
)
from simspec.engines.import_kinds import EngineSettings, fixed_tier
from simspec.engines.request import ExportFormat, Request, Settings
from simspec.engines.source import ImportFormat, ImportOptions, Source
from simspec.numerics.stats import Estimate

KIND = "router's table"
FEWEST = 8
"""Prompts of a task that gets its own lengths; others take those of `default`."""


def export(request: Request) -> str:
    """The JSON: `default`, and `tasks` of 8 prompts and more, each with steps by batch size.

    A step is {"batch", "draft_length", "speedup", "low", "high"}; 0 is plain decoding. ValueError
    for a policy that adapts its own lengths, and where nothing drafts.
    """
    chosen, evidence = request.choice, request.evidence
    given = None if chosen.chosen else chosen.policies[0]
    document: dict[str, Any] = {
        "target": evidence.target,
        "drafter": evidence.drafter,
        "default": _steps(request, chosen),
        "tasks": {},
    }
    for task in sorted({task for trace in evidence.traces.values() for task in trace.task}):
        part = of_task(evidence, task)
        prompts = sum(trace.sequences for trace in part.traces.values())
        if prompts >= FEWEST:
            steps = _steps(request, choose(part, given))
            document["tasks"][task] = {"prompts": prompts, "steps": steps}
    every = [document["default"], *(held["steps"] for held in document["tasks"].values())]
    if not any(step["draft_length"] for steps in every for step in steps):
        assert request.schedule  # raises: nothing drafts
    return json.dumps(document, indent=1) + "\n"


def of_task(evidence: Evidence, task: str) -> Evidence:
    """The evidence of one task's prompts: only recordings that have any."""
    traces = {
        name: trace.select([s for s, own in enumerate(trace.task) if own == task])
        for name, trace in evidence.traces.items()
        if task in trace.task
    }
    return replace(evidence, traces=traces, costs={name: evidence.costs[name] for name in traces})


def _steps(request: Request, choice: Choice) -> list[dict[str, Any]]:
    if choice.schedule is None:
        assert request.schedule  # raises: the policy has no fixed length
    assert choice.schedule is not None
    sizes = zip(choice.schedule.batch, choice.schedule.length, choice.gains)
    return [{"batch": batch, "draft_length": k, **_figures(gain)} for batch, k, gain in sizes]


def _figures(gain: Estimate) -> dict[str, float | None]:
    values = {"speedup": gain.value, "low": gain.low, "high": gain.high}
    return {name: None if math.isnan(v) else round(v, 4) for name, v in values.items()}


def validate(text: str, settings: Settings) -> None:
    """ValueError, one line, unless every task has steps of growing batch sizes and lengths."""
    read(text)


def read(text: str) -> dict[str, dict[int, int]]:
    """{task: {batch size: draft length}}, "" for the default; ValueError as `validate`."""
    data = check_fields(parse_json(text, KIND), KIND, ("target", "drafter", "default", "tasks"))
    check_text(data["target"], "target")
    check_text(data["drafter"], "drafter")
    if not isinstance(data["tasks"], dict):
        raise ValueError(f"tasks is {shown(data['tasks'])}, expected an object")
    found = {"": _lengths(data["default"], "default")}
    for task, held in data["tasks"].items():
        check_text(task, "a task's name")
        check_fields(held, f"task {shown(task)}", ("prompts", "steps"))
        check_integer(held["prompts"], f"task {shown(task)}: prompts", FEWEST)
        found[task] = _lengths(held["steps"], f"task {shown(task)}")
    return found


def _lengths(steps: Any, name: str) -> dict[int, int]:
    lengths: dict[int, int] = {}
    for step in check_list(steps, name):
        check_fields(step, f"{name}: a step", ("batch", "draft_length", "speedup", "low", "high"))
        batch = check_integer(step["batch"], f"{name}: batch", 1 + max(lengths, default=0))
        lengths[batch] = check_integer(step["draft_length"], f"{name}: draft_length", 0, MAX_LENGTH)
        for figure in ("speedup", "low", "high"):
            if step[figure] is not None:
                check_number(step[figure], f"{name}: {figure}", 0)
    return lengths


def import_table(source: Source, options: ImportOptions) -> EngineSettings:
    """Draft lengths of `options.task`; of the default where it is None, or not in the table."""
    tables = read(source.text)
    task = options.task if options.task in tables else ""
    sizes = sorted(tables[task])
    firsts = [1, *(size + 1 for size in sizes)]
    lengths = [tables[task][size] for size in sizes]
    tiers = map(fixed_tier, firsts, [*sizes[:-1], None], lengths)
    of = f"task {task}" if task else "the default"
    others = ", ".join(name for name in tables if name not in ("", task))
    notes = (f"of {of}" + (f"; the table also holds {others}" if others else ""),)
    return EngineSettings(origin_of(source), "router", tuple(tiers), notes)


_STEP = {"batch": 1, "draft_length": 3, "speedup": 1.5, "low": None, "high": None}
_RIGHT: dict[str, Any] = {"target": "t", "drafter": "d", "default": [_STEP], "tasks": {}}
_SHRINKS = {"code": {"prompts": 8, "steps": [{**_STEP, "batch": 4}, _STEP]}}

EXPORTS = (
    ExportFormat(
        "router",
        export,
        validate,
        ("which task a request is of: the router has to tell",),
        right=json.dumps(_RIGHT),
        wrong=(
            json.dumps({**_RIGHT, "tasks": {"code": [_STEP]}}),
            json.dumps({**_RIGHT, "tasks": _SHRINKS}),
            json.dumps({**_RIGHT, "default": [{**_STEP, "draft_length": 256}]}),
            json.dumps({**_RIGHT, "default": []}),
        ),
    ),
)
IMPORTS = (ImportFormat("router", import_table, ("task",)),)
