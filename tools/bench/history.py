"""The benchmark's history: one line of JSON a run, as ratios, which compare across machines.

| ratio | over |
| --- | --- |
| limit:POLICY | the hand-written loop of the same rounds, in the same run |
| chase:POLICY | the hand-written loop of fixed:3: for policies without a limit of their own |
| beta_draw | the same loop: nanoseconds of one draw over those of one round |
| sweep | the same loop: seconds for each simulated token of the whole sweep over those of a round |
| first_result | seconds of `import numba` in a process of its own |
"""

import json
import platform
import statistics
import subprocess
from pathlib import Path

SLOWER = 1.3
"""Times its usual ratio from which a figure is reported as a regression."""
USUAL = 8
"""Runs of which the median is what is usual."""


def ratios(report: dict) -> dict[str, float]:
    """{name: ratio} of a report of `make bench`; the table above says over what."""
    rows = {row["policy"]: row for row in report["policies"]}
    unit = rows["fixed:3"]["ns_per_round"] / rows["fixed:3"]["over_limit"]
    found = {f"limit:{name}": row["over_limit"] for name, row in rows.items() if row["over_limit"]}
    found |= {
        f"chase:{name}": row["ns_per_round"] / unit
        for name, row in rows.items()
        if not row["over_limit"]
    }
    sweep = report["sweep"]
    found["beta_draw"] = report["profile"]["beta_draw_of_cost_ts_ns"] / unit
    found["sweep"] = sweep["bundled"]["ns_per_token"] / unit
    return {name: round(value, 3) for name, value in found.items()}


def read(path: Path) -> list[dict]:
    """The earlier runs, oldest first; none where there is no file. ValueError for another file."""
    if not path.exists():
        return []
    runs = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            run = json.loads(line)
            runs.append({**run, "ratios": {key: float(x) for key, x in run["ratios"].items()}})
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ValueError(
                f"{path}, line {number}: no run of this benchmark: remove it"
            ) from None
    return runs


def compared(now: dict[str, float], earlier: list[dict]) -> list[dict]:
    """One row a ratio: now, usual (median of the last runs that have it), times, slower."""
    rows = []
    for name, value in now.items():
        known = [run["ratios"][name] for run in earlier if name in run["ratios"]][-USUAL:]
        usual = statistics.median(known) if known else None
        times = round(value / usual, 3) if usual else None
        slower = times is not None and times > SLOWER
        rows.append({"ratio": name, "now": value, "usual": usual, "times": times, "slower": slower})
    return rows


def table(rows: list[dict]) -> str:
    """The rows as text; a regression says so."""
    lines = [f"{'ratio':<44} {'now':>8} {'usual':>8} {'times':>7}"]
    for row in rows:
        cells = (f"{row[key]:.2f}" if row[key] is not None else "-" for key in ("now", "usual"))
        times = f"{row['times']:.2f}" if row["times"] is not None else "-"
        mark = "  slower" if row["slower"] else ""
        lines.append(f"{row['ratio']:<44} {' '.join(f'{c:>8}' for c in cells)} {times:>7}{mark}")
    return "\n".join(lines)


def append(path: Path, report: dict, now: dict[str, float]) -> None:
    """Adds this run as the last line."""
    revision = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=path.parent, capture_output=True, text=True
    ).stdout.strip()
    run = {
        "revision": revision or None,
        "cpu": cpu_model(),
        "python": report["python"],
        "ratios": now,
    }
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(run) + "\n")


def cpu_model() -> str:
    """The processor's name, as far as the system tells it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
