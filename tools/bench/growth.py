"""How time and memory of a sweep grow: python tools/bench/growth.py [--write] [--small]

One size at a time is varied, the others stay at BASE. Every point is a process of its own: it reads
recordings that another process wrote, and replays policies that are compiled already. `--write`
writes docs/growth.json, docs/growth.svg and docs/growth.md; else the JSON is printed.

| key | meaning |
| --- | --- |
| tokens, recordings, policies, K | tokens of each recording; settings of chains; recorded depth |
| load_s | reading the recordings and checking every invariant |
| sweep_s | one sweep, one draw, one thread: median of three |
| idle_mib | most memory of the process before, with everything imported and compiled |
| peak_mib | most memory of the process until the end |
| exponents | of a size: d log(sweep_s) / d log(size) over the last of its points, and of memory |
"""

import argparse
import json
import math
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from history import cpu_model  # noqa: E402

DOCS = Path(__file__).parents[2] / "docs"
LENGTH = 500
"""Tokens of a sequence."""
UNITS = {
    "tokens": "tokens of the recording",
    "recordings": "recordings",
    "policies": "policies",
    "K": "recorded depth K",
}
PAGE = """# Growth

How long a sweep takes, and how much memory, as one size grows while the others stay: 100,000
tokens, one recording, 10 policies, K = 8. Recordings are synthetic; those of the second row have
2,000 tokens each.

![Seconds and memory of a sweep against tokens, recordings, policies and K](growth.svg)

{table}
"Grows as" is the slope of the last two points: 1 is growth in proportion. Every point is a separate
process. Policies are compiled before the clock starts; one draw, one thread, median of three
sweeps. All points: `docs/growth.json`.

`python tools/bench/growth.py --write` measures them again and renews this page.
"""


@dataclass(frozen=True)
class Size:
    """The size of one sweep."""

    tokens: int
    recordings: int
    policies: int
    K: int


BASE = Size(tokens=100_000, recordings=1, policies=10, K=8)
AXES = {
    "tokens": (BASE, (1_000, 10_000, 100_000, 1_000_000)),
    "recordings": (replace(BASE, tokens=2_000), (1, 10, 100, 1000)),
    "policies": (BASE, (1, 10, 100, 1000)),
    "K": (BASE, (1, 4, 16, 64, 255)),
}
"""What is varied: (the other sizes, its values). K ends where a recording's format does."""
SMALL = {"tokens": (replace(BASE, policies=3, K=2), (500, 2_000))}


def policy_names(count: int) -> list[str]:
    """So many different settings of three families of chains, in turn."""
    families = (
        lambda i: f"confidence:{(i + 1) / (count + 3):.6f}",
        lambda i: f"beta_ts:acceptance,alpha0={i + 2}",
        lambda i: f"product:{(i + 1) / (count + 3):.6f}",
    )
    return [families[i % 3](i) for i in range(count)]


def write_recordings(size: Size, folder: Path) -> None:
    """The recordings of a point, and a tiny one to warm up with."""
    from simspec import synthetic

    synthetic.iid(0.7, 1, 8, size.K, confidence=True).save(folder / "warm_up")
    sequences = max(1, size.tokens // LENGTH)
    rows = size.tokens // sequences
    for i in range(size.recordings):
        trace = synthetic.iid(0.7, sequences, rows, size.K, seed=i, confidence=True)
        trace.save(folder / f"{i}.parquet")


def measured(size: Size, folder: Path) -> dict:
    """The figures of a point, in this process."""
    from simspec import load_trace
    from simspec.replay.sweep import sweep_rows

    names = policy_names(size.policies)
    list(sweep_rows(load_trace(folder / "warm_up"), names[:3], replicates=1))
    idle = _memory("VmHWM")
    start = time.perf_counter()
    traces = {file.stem: load_trace(file) for file in sorted(folder.glob("*.parquet"))}
    load = time.perf_counter() - start
    times, rows = [], 0
    for _ in range(3):
        start = time.perf_counter()
        rows = sum(1 for _ in sweep_rows(traces, names, replicates=1))
        times.append(time.perf_counter() - start)
    figures = {"load_s": load, "sweep_s": statistics.median(times)}
    figures |= {"idle_mib": idle, "peak_mib": _memory("VmHWM")}
    return asdict(size) | {"rows": rows} | {key: round(x, 6) for key, x in figures.items()}


def _memory(field: str) -> float:
    """MiB of this process: VmHWM is the most so far, of this program alone."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(re.search(rf"{field}:\s+(\d+) kB", status)[1]) / 1024


def point(size: Size) -> dict:
    """The figures of a point, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        write_recordings(size, Path(folder))
        command = [sys.executable, __file__, "--point", json.dumps(asdict(size)), "--in", folder]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def exponent(points: list[dict], axis: str, figure: str) -> float | None:
    """The slope between the last two points on logarithmic axes; None where a figure is not > 0."""
    (x0, y0), (x1, y1) = ((row[axis], _figure(row, figure)) for row in points[-2:])
    if min(y0, y1) <= 0:
        return None
    return round(math.log(y1 / y0) / math.log(x1 / x0), 2)


def _figure(row: dict, name: str) -> float:
    return row["peak_mib"] - row["idle_mib"] if name == "more_mib" else row[name]


def report(axes: dict) -> dict:
    """All points and exponents, with the machine."""
    from importlib.metadata import version

    found: dict = {
        "device": cpu_model(),
        "cores": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "numba": version("numba"),
        "numpy": version("numpy"),
        "axes": {},
        "exponents": {},
    }
    for axis, (base, values) in axes.items():
        points = [point(replace(base, **{axis: value})) for value in values]
        found["axes"][axis] = points
        found["exponents"][axis] = {
            figure: exponent(points, axis, figure) for figure in ("load_s", "sweep_s", "more_mib")
        }
    return found


def table(found: dict) -> str:
    """The machine, and a row for each size."""
    lines = [
        f"{found['device']}, {found['cores']} cores, one thread; Python {found['python']}, numba "
        f"{found['numba']}, numpy {found['numpy']}; load average before: "
        f"{found['load_before']}.\n",
        "| size | from | to | reading s | sweep s | MiB beyond an idle process | sweep grows as | "
        "memory grows as |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for axis, points in found["axes"].items():
        ends = points[0], points[-1]
        cells = [UNITS[axis], *(f"{row[axis]:,}" for row in ends)]
        for figure in ("load_s", "sweep_s", "more_mib"):
            cells.append(" to ".join(f"{_figure(row, figure):.3g}" for row in ends))
        for figure in ("sweep_s", "more_mib"):
            slope = found["exponents"][axis][figure]
            cells.append("no growth seen" if slope is None else f"{axis}^{slope:.2f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def plot(found: dict, path: Path) -> None:
    """Time, logarithmic, and memory against each size."""
    import matplotlib
    from matplotlib.figure import Figure

    axes = found["axes"]
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "growth"}):
        figure = Figure(figsize=(3.2 * len(axes), 5.6), layout="constrained")
        grid = figure.subplots(2, len(axes), sharex="col", sharey="row", squeeze=False)
        for (time_of, memory_of), (axis, points) in zip(grid.T, axes.items()):
            x = [row[axis] for row in points]
            for key, label in (("sweep_s", "sweep"), ("load_s", "reading")):
                time_of.loglog(x, [row[key] for row in points], "o-", label=label)
            middle = points[-1]
            guide = [middle["sweep_s"] * value / middle[axis] for value in x]
            time_of.loglog(x, guide, ":", color="grey", label="in proportion")
            memory_of.semilogx(x, [row["peak_mib"] for row in points], "o-", label="peak")
            memory_of.semilogx(x, [row["idle_mib"] for row in points], ":", label="idle process")
            memory_of.set_xlabel(UNITS[axis])
            for panel in (time_of, memory_of):
                panel.minorticks_off()
        grid[0][0].set_ylabel("seconds")
        grid[1][0].set_ylabel("memory, MiB")
        grid[1][0].set_ylim(bottom=0)
        grid[0][0].legend(frameon=False, fontsize="small")
        grid[1][0].legend(frameon=False, fontsize="small")
        figure.savefig(path, metadata={"Date": None})
    # hundredths of a point draw the same picture in fewer bytes
    text = re.sub(r"\d+\.\d{3,}", lambda m: f"{float(m[0]):.2f}", path.read_text())
    path.write_text(text)


def page(found: dict) -> str:
    """The text of docs/growth.md."""
    return PAGE.format(table=table(found))


def write(found: dict, folder: Path) -> None:
    """The JSON, the figure and the page."""
    (folder / "growth.md").write_text(page(found), encoding="utf-8")
    (folder / "growth.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    plot(found, folder / "growth.svg")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--small", action="store_true", help="two points, to see that it runs")
    parser.add_argument("--write", action="store_true", help="write the page in docs/")
    parser.add_argument("--point", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--in", dest="folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.point:
        print(json.dumps(measured(Size(**options.point), options.folder)))
        return
    found = report(SMALL if options.small else AXES)
    if options.write and not options.small:
        write(found, DOCS)
    else:
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
