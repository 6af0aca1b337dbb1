"""The report of a campaign, each requirement with its figure, and the files that are kept."""

import io
import shutil
import tarfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from real.bench.scorecard import MEDIAN_BOUND, NOISE_FACTOR, P90_BOUND
from real.campaign.requirements import (
    ASSISTED,
    DRAFTERS,
    EMULATED,
    ON_ONE,
    STEPS,
    Requirement,
    all_required,
    audited,
    equal,
    forced,
    not_measured,
    recorded,
    results_of,
)
from real.campaign.timings import scorecard
from real.campaign.workspace import Workspace
from real.files import replace_json, replacing
from real.prompts import ALL, LOW_REPEAT
from real.provenance import device_name, revision, versions
from real.record.settings import card
from simspec import Trace, load_trace


@dataclass(frozen=True)
class ResultLimits:
    """Limits of the folder of results: bytes of its largest file, and files."""

    file_bytes: int = 16_000_000
    files: int = 8


FEATURES_LEFT_OUT = ((), ("entropy",), ("entropy", "theta"))
"""Features left out of the archived recordings, the first that fits; recordings.tar is complete."""


def without_features(trace: Trace, names: tuple[str, ...]) -> Trace:
    """The recording without these features; it keeps its draw addresses and replays as before."""
    meta = trace.meta
    kept = [i for i, (feature, _) in enumerate(meta.features) if feature not in names]
    predictors = {
        feature: sha256 for feature, sha256 in meta.predictors.items() if feature not in names
    }
    meta = replace(meta, features=tuple(meta.features[i] for i in kept), predictors=predictors)
    return replace(trace, feature=trace.feature[:, :, kept], meta=meta)


DEFAULT_LIMITS = ResultLimits()


def pack(workspace: Workspace, results: Path, limits: ResultLimits = DEFAULT_LIMITS) -> list[Path]:
    """Writes bundle.tar, the report, figures and the log into `results`; the files.

    recordings.tar is added where features were left out. ValueError where a file is too large
    even so; the others are written.
    """
    results.mkdir(parents=True, exist_ok=True)
    written = []
    for path in (
        workspace.out / "REPORT.md",
        workspace.out / "report.json",
        *sorted((workspace.out / "figures").glob("*.png")),
    ):
        if path.exists():
            with replacing(results / path.name) as temporary:
                shutil.copyfile(path, temporary)
            written.append(results / path.name)
    if logs := sorted((workspace.out / "log").glob("*.txt")):
        with replacing(results / "log.txt") as temporary:
            temporary.write_text(
                "\n".join(f"== {path.stem}\n{path.read_text(encoding='utf-8')}" for path in logs),
                encoding="utf-8",
            )
        written.append(results / "log.txt")
    for names in FEATURES_LEFT_OUT:
        _write_archive(workspace, results / "bundle.tar", names)
        if (results / "bundle.tar").stat().st_size <= workspace.config.archive_bytes:
            break
    written.append(results / "bundle.tar")
    if names or any((workspace.out / "traces").glob("*-trees.parquet")):
        whole = [
            (f"traces/{p.name}", p.read_bytes())
            for p in sorted((workspace.out / "traces").glob("*"))
            if p.is_file()
        ]
        _tar(results / "recordings.tar", whole)
        written.append(results / "recordings.tar")
    if (size := (results / "bundle.tar").stat().st_size) > workspace.config.archive_bytes:
        raise ValueError(
            f"bundle.tar has {size / 1e6:.1f} MB, "
            f"expected {workspace.config.archive_bytes / 1e6:.1f} at most: record fewer prompts"
        )
    if large := [path for path in written if path.stat().st_size > limits.file_bytes]:
        raise ValueError(
            f"{large[0].name} is larger than {limits.file_bytes / 1e6:g} MB; record fewer prompts"
        )
    if len(written) > limits.files:
        raise ValueError(f"{len(written)} files to keep; expected {limits.files} at most")
    return written


def _write_archive(workspace: Workspace, path: Path, names: tuple[str, ...]) -> None:
    held, thin = [], workspace.out / "thin"
    for trace in sorted((workspace.out / "traces").glob("*.parquet")):
        if trace.stem.endswith("-trees"):
            continue
        described = trace.with_suffix(".json")
        if names:
            recorded = without_features(load_trace(trace), names)
            thin.mkdir(exist_ok=True)
            recorded.save(thin / trace.name)
            replace_json(thin / described.name, card(thin / trace.name, recorded))
            trace, described = thin / trace.name, thin / described.name
        held += [(f"traces/{p.name}", p.read_bytes()) for p in (trace, described) if p.exists()]
    shutil.rmtree(thin, ignore_errors=True)
    beside = [
        *(workspace.out / "traces").glob("*.cost.json"),
        *(workspace.out / "parts").glob("*.json"),
        *workspace.models.rglob("card.json"),
    ]
    beside += [*(workspace.out / "ladders").glob("*.json")]
    beside += [
        p
        for p in (
            workspace.out / name
            for name in ("campaign.json", "report.json", "REPORT.md", "race.json")
        )
        if p.exists()
    ]
    held += [(str(p.relative_to(workspace.out)), p.read_bytes()) for p in beside]
    _tar(path, held)


def _tar(path: Path, files: list[tuple[str, bytes]]) -> None:
    """Writes files without times and owners: the same files give the same bytes."""
    with replacing(path) as temporary, tarfile.open(temporary, "w") as tar:
        for name, held in sorted(files):
            info = tarfile.TarInfo(name)
            info.size = len(held)
            tar.addfile(info, io.BytesIO(held))


def scored(workspace: Workspace) -> Requirement:
    name = "scorecard on held-out prompts"
    wanted = (
        f"median error at most max({MEDIAN_BOUND:.0%}, {NOISE_FACTOR:g} x noise), "
        f"90th percentile at most {P90_BOUND:.0%}"
    )
    card = scorecard(workspace, DRAFTERS)
    if card is None:
        return not_measured(name, wanted)
    shown = "error", "rate_error", "acceptance", "cost", "overhead"
    parts = {
        f"{r.drafter} {r.policy}": {n: round(getattr(r, n), 5) for n in shown}
        for r in card.policies
    }
    floor = "unknown" if card.noise_floor is None else f"{card.noise_floor:.2%}"
    figure = (
        f"median {card.median_abs_error:.2%}, 90th percentile {card.p90_abs_error:.2%}, "
        f"noise {floor}, {len(card.policies)} rows"
    )
    return Requirement(name, wanted, card.good, figure, parts)


def fastest(workspace: Workspace) -> Requirement:
    name, wanted = (
        "fastest drafter and policy on the lab target",
        "faster than our own plain loop in the same run",
    )
    rows = [row for each in results_of(workspace, "score").values() for row in each["rows"]]
    speeds = {
        f"{row['drafter']} {row['policy']}": row["speedup_measured"]
        for row in rows
        if row["error"] is not None
    }
    speeds |= {
        f"{d} {each['policy']}": each["speedup_measured"]
        for d, each in results_of(workspace, "tree").items()
    }
    return _best(name, wanted, speeds)


def step(workspace: Workspace, name: str, most: float) -> Requirement:
    found = workspace.result(f"ladder-{name}") or {}
    title = f"captured plain step, {name}"
    wanted = (
        f"at most {most:g} times the floor of the copy bandwidth and the matrix rate, at batch 1"
    )
    cells = {
        at: cell
        for at, cell in found.get("plain", {}).items()
        if at.startswith("batch 1,") and cell["distance"] is not None
    }
    if not cells:
        return not_measured(title, wanted)
    worst = max(cells, key=lambda at: cells[at]["distance"])
    cell = cells[worst]
    figure = (
        f"{cell['distance']:.2f} times ({worst}: {1e3 * cell['seconds']:.3f} ms), "
        f"{found['bandwidth'] / 1e12:.2f} TB/s"
    )
    return Requirement(
        title, wanted, cells[worst]["distance"] <= most and found["graphed"], figure, cells
    )


def raced(workspace: Workspace) -> Requirement:
    name = "race against transformers on the lab target"
    wanted = (
        f"at least {ASSISTED:g}x its assisted generation with the same drafter; "
        "nothing recommended that is slower than no speculation"
    )
    found = workspace.result("race") or {}
    over = {each["group"]: each for each in found.get("over_assisted", [])}
    if ALL not in over:
        return not_measured(name, wanted)
    low = (
        f", {over[LOW_REPEAT]['ratio']:.2f}x on sequences with little repetition"
        if LOW_REPEAT in over
        else ""
    )
    best = over[ALL]
    figure = (
        f"{best['contestant']} {best['ratio']:.2f}x {best['assisted']}{low}; {found['verdict']}"
    )
    if reasons := found.get("reasons"):
        figure += f"; no measurement: {'; '.join(reasons)}"
    parts = {r["contestant"]: r["speedup"] for r in found["rows"] if r["group"] == ALL}
    return Requirement(name, wanted, over[ALL]["ratio"] >= ASSISTED, figure, parts)


def emulated(workspace: Workspace) -> Requirement:
    name = f"fastest on {workspace.config.emulation.model}, random weights, recorded acceptances"
    wanted, found = (
        f"at least {EMULATED:g}x our captured plain loop over all prompts, {ON_ONE:g}x on one task",
        results_of(workspace, "drive"),
    )
    rows = {
        f"{drafter} {row['policy']}": row
        for drafter, each in found.items()
        for row in each["rows"]
        if row["policy"] != "plain"
    }
    if not rows:
        return not_measured(name, wanted)
    best = max(rows, key=lambda key: rows[key]["speedup"])
    row = rows[best]
    tasks = {
        key: {g: x for g, x in each["groups"].items() if g.startswith("task:")}
        for key, each in rows.items()
    }
    most = max(
        ((x, g, key) for key, each in tasks.items() for g, x in each.items()),
        default=(0.0, "no task", best),
    )
    low = (
        f", {row['groups'][LOW_REPEAT]:.3f}x on sequences with little repetition"
        if LOW_REPEAT in row["groups"]
        else ""
    )
    figure = (
        f"{best}: {row['speedup']:.3f}x{low}; "
        f"most on one task {most[0]:.3f}x ({most[2]}, {most[1]})"
    )
    figure += "" if row["speedup"] > 1 else "; recommended: no speculation"
    phases = "drafting", "verification", "policy_time", "other"
    parts = {
        key: {n: round(each[n], 4) for n in ("speedup", *phases)} | {"tasks": tasks[key]}
        for key, each in rows.items()
    }
    if not all(each["replay_equal"] for each in found.values()):
        return Requirement(name, wanted, False, f"{figure}; rounds differ from the replay's", parts)
    return Requirement(
        name, wanted, row["speedup"] >= EMULATED and most[0] >= ON_ONE, figure, parts
    )


def _best(name: str, wanted: str, speeds: dict[str, float]) -> Requirement:
    if not speeds:
        return not_measured(name, wanted)
    best = max(speeds, key=speeds.__getitem__)
    passed = speeds[best] > 1
    figure = f"{best}: {speeds[best]:.3f}x" + ("" if passed else "; recommended: no speculation")
    return Requirement(
        name,
        wanted,
        passed,
        figure,
        {key: round(speed, 4) for key, speed in sorted(speeds.items(), key=lambda item: -item[1])},
    )


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
