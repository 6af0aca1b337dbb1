"""The command `simspec measured-table`."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from simspec.output.files import read_json
from simspec.output.table import markdown_table

PANEL = "Benchmark"

ALL, TASK = "all", "task:"


def measured_table(
    files: Annotated[
        list[Path], typer.Argument(help="JSON of `simspec race --out` or of scorecards.")
    ],
    phases: Annotated[
        bool, typer.Option(help="Of a scorecard: measured seconds by phase, as in EESD's Table 8.")
    ] = False,
) -> None:
    """Print a race's or a scorecard's figures as a Markdown table, for documents.

    A scorecard's JSON is what `simspec scorecard` saved or printed, or what `make gpu` found.
    Several scorecards, and one of several recordings, are set side by side: predicted and measured
    speedups.

    Example: simspec measured-table race.json
    """
    if len(files) == 1 or phases:
        pages = [read_json(file, partial(_page, phases), "race or scorecard") for file in files]
        print("\n\n".join(pages))
    else:
        print(_side_by_side({f.stem: read_json(f, _speedups, "scorecard") for f in files}))


def _page(phases: bool, report: Any) -> str:
    try:
        rows = _rows(report)
        if phases:
            return _phases(rows)
        if "raw" in report:
            return _race(report, rows)
        recordings = dict.fromkeys(row["recording"] for row in rows)
        if len(recordings) < 2:
            return _scorecard(rows)
        by_recording = {r: [row for row in rows if row["recording"] == r] for r in recordings}
        return _side_by_side({r: _speedups({"rows": x}) for r, x in by_recording.items()})
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"lacks {error}; measure again with this version") from None


def _side_by_side(columns: Mapping[str, Mapping[str, str]]) -> str:
    policies = dict.fromkeys(policy for column in columns.values() for policy in column)
    rows = [(policy, *(c.get(policy, "-") for c in columns.values())) for policy in policies]
    return markdown_table(("predicted, measured [95%]", *columns), rows)


def _speedups(report: Any) -> dict[str, str]:
    """{policy: predicted and measured speedup} of a scorecard."""
    try:
        return {
            r["policy"]: f"{r['speedup']:.2f}, "
            + _figure(r["speedup_measured"], r["measured_low"], r["measured_high"])
            for r in _rows(report)
            if r["error"] is not None
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"lacks {error}; measure again with this version") from None


def _rows(report: Any) -> list[Mapping]:
    rows = report.get("found", report)["rows"]
    if isinstance(rows, dict):  # by recording, as saved
        return [row for group in rows.values() for row in group]
    return list(rows)


def _race(report: Mapping, rows: list[Mapping]) -> str:
    tasks = [g for g in dict.fromkeys(r["group"] for r in rows) if g.startswith(TASK)]
    speedups = {(r["contestant"], r["group"]): r["speedup"] for r in rows}
    shown = [r for r in rows if r["group"] == ALL and r["rate"] is not None]
    cells = [
        (
            r["contestant"],
            f"{r['rate']:.1f}",
            _figure(r["speedup"], r["low"], r["high"]),
            _figure(r["own"], r["own_low"], r["own_high"]),
            f"{r['per_pass']:.2f}",
            *(f"{speedups[r['contestant'], task]:.2f}" for task in tasks),
        )
        for r in sorted(shown, key=lambda r: -r["speedup"])
    ]
    headings = (
        "contestant", "tokens/s", "times plain [95%]", "times own plain [95%]", "tokens a pass",
        *(task.removeprefix(TASK) for task in tasks),
    )  # fmt: skip
    settings = f"{report['prompts']} prompts, {report['repeats']} repeats, {report['device']}"
    notes = [settings, report["low_repeat"], *(f"not published: {r}" for r in report["reasons"])]
    return "\n\n".join([markdown_table(headings, cells), "; ".join(filter(None, notes)) + "."])


def _scorecard(rows: list[Mapping]) -> str:
    cells = [
        (
            r["policy"],
            "-"
            if r["error"] is None
            else _figure(r["error"], r["error_low"], r["error_high"], "+.1%"),
            _figure(r["speedup"], r["speedup_low"], r["speedup_high"]),
            _figure(r["speedup_measured"], r["measured_low"], r["measured_high"]),
            f"{r['predicted']:.1f}",
            f"{r['measured']:.1f}",
            f"{r['rate_error']:+.1%}",
            f"{r['acceptance']:+.1%}",
            f"{r['cost']:+.1%}",
            f"{r['overhead']:+.1%}",
        )
        for r in rows
    ]
    headings = (
        "policy", "speedup error [95%]", "predicted times plain [95%]",
        "measured times plain [95%]", "predicted tokens/s", "measured tokens/s", "tokens/s error",
        "of acceptance", "of cost", "of overhead",
    )  # fmt: skip
    return markdown_table(headings, cells)


def _phases(rows: list[Mapping]) -> str:
    """Seconds of all scored prompts, means over repeats; drafting holds catching up."""
    cells = [
        (r["policy"], *(f"{s:.2f}" for s in (*r["phases_measured"], sum(r["phases_measured"]))))
        for r in rows
    ]
    headings = "policy", "drafting s", "verification s", "policy s", "others s", "total s"
    return markdown_table(headings, cells)


def _figure(value: float | None, low: float | None, high: float | None, form: str = ".2f") -> str:
    if value is None:
        return "-"
    interval = "" if low is None else f" [{low:{form}}, {high:{form}}]"
    return f"{value:{form}}{interval}"
