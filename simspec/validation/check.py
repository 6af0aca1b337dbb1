"""The simulator against known distributions, recordings against Eq. 13, papers against formulas."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simspec.trace.trace import Trace, load_trace
from simspec.validation import implied_costs, paper_cells
from simspec.validation.optimal_length_checks import optimal_length_checks
from simspec.validation.recording_checks import recording_checks
from simspec.validation.synthetic_checks import plan

FALSE_ALARM = 1e-4


def check(recordings: Mapping[str, Trace | Path | str], seed: int = 0) -> dict[str, Any]:
    """Every check, as plain data: {ok, checks, recordings, papers, false_alarm}.

    | part | what is compared |
    | --- | --- |
    | synthetic sequences | replays with intervals; all hold with probability 1 - false_alarm |
    | recordings | rounds with their rules, time with Eq. 13, see `recording_checks` |
    | papers | printed tables with formulas; misfits are no failures |

    ValueError for a recording that cannot be read, or an invalid seed.
    """
    traces = {
        name: trace if isinstance(trace, Trace) else load_trace(trace)
        for name, trace in recordings.items()
    }
    checks = plan(seed).evaluate(FALSE_ALARM)
    checks += optimal_length_checks(checks)
    facts = []
    for name, trace in traces.items():
        of_recording, of_trace = recording_checks(name, trace, seed)
        checks += of_recording
        facts.append(of_trace)
    return {
        "ok": all(check.ok for check in checks),
        "checks": [check.to_dict() for check in checks],
        "recordings": facts,
        "papers": _papers(),
        "false_alarm": FALSE_ALARM,
    }


def _papers() -> dict[str, Any]:
    costs = []
    for (target, method, drafter), tables in implied_costs.implied_costs().items():
        shared = implied_costs.shared_cost(tables)
        costs.append(
            {
                "target": target,
                "method": method,
                "drafter": drafter,
                "tables": {table: list(span) for table, span in tables.items()},
                "shared": None if shared is None else list(shared),
            }
        )
    return {
        "cells": len(paper_cells.cells()),
        "misfits": [cell.name for cell in paper_cells.misfits()],
        "eq_14_cost": costs,
    }
