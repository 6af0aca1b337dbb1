"""The report of a campaign: each requirement, its figure, and whether it holds."""

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from real.campaign.correctness import all_required, audited, equal, forced, recorded
from real.campaign.performance import emulated, fastest, raced, scored, step
from real.campaign.requirement import Requirement
from real.campaign.thresholds import STEPS
from real.campaign.workspace import Workspace
from real.files import replace_json, replacing
from real.provenance import device_name, revision, versions


def requirements(
    workspace: Workspace, states: Sequence[tuple[str, str, str, str]]
) -> list[Requirement]:
    """All requirements, from the stages' results and `states` (name, rank, state, why).

    ValueError for results that hold something else.
    """
    checks = [
        partial(all_required, states),
        *(partial(line, workspace) for line in (recorded, equal, forced, audited, scored, fastest)),
    ]
    checks += [partial(step, workspace, name, most) for name, most in STEPS.items()]
    checks += [partial(line, workspace) for line in (raced, emulated)]
    return [_evaluated(line) for line in checks]


def _evaluated(line: partial[Requirement]) -> Requirement:
    try:
        return line()
    except (LookupError, TypeError, AttributeError, ZeroDivisionError) as error:
        what = f"{type(error).__name__}: {error}"
        raise ValueError(
            f"the report's {line.func.__name__!r} cannot be read from parts/ ({what}); "
            "delete its files there"
        ) from error


def write_report(
    workspace: Workspace, states: Sequence[tuple[str, str, str, str]]
) -> list[Requirement]:
    """Writes report.json and REPORT.md into the campaign's folder."""
    lines = requirements(workspace, states)
    card = workspace.result("card") or {}
    head: dict[str, Any] = {
        "size": workspace.config.name,
        "device": device_name(workspace.device),
        "target": workspace.target,
        "complete": lines[0].passed,
    }
    head |= {
        "versions": versions(),
        "git": revision(),
        "heldout_loss_nats": card.get("heldout_loss_nats", {}),
    }
    parts = [dict(zip(("part", "rank", "state", "why"), state)) for state in states]
    replace_json(
        workspace.out / "report.json",
        head | {"verdicts": [asdict(line) for line in lines], "parts": parts},
    )
    with replacing(workspace.out / "REPORT.md") as path:
        path.write_text(_markdown(head, lines), encoding="utf-8")
    return lines


def _markdown(head: dict, lines: Sequence[Requirement]) -> str:
    target = str(head["target"])[:12]
    where = f"Device: {head['device']}. Target: {target}. Complete: {head['complete']}."
    text = [f"# Campaign ({head['size']})", "", where, ""]
    losses = head["heldout_loss_nats"].get("target", {})
    text += (
        [
            "Held-out loss, nats a token: "
            + ", ".join(f"{name} {loss}" for name, loss in losses.items())
            + ".",
            "",
        ]
        if losses
        else []
    )
    text += ["| what | wanted | measured | holds |", "| --- | --- | --- | --- |"]
    words = {True: "yes", False: "**no**", None: "not measured"}
    text += [
        f"| {line.name} | {line.wanted} | {line.figure} | {words[line.passed]} |" for line in lines
    ]
    for line in lines:
        if line.passed is False:
            text += [
                "",
                f"## Short: {line.name}",
                "",
                *(f"- {key}: {value}" for key, value in line.parts.items()),
            ]
    return "\n".join(text) + "\n"
