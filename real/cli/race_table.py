"""The tables that `simspec race` prints."""

from collections.abc import Sequence

from real.cli.engines import describe_engines
from simspec.output.terminal import print_table, print_text


def print_race(summary: dict, rows: Sequence) -> None:
    """Prints rankings, speedups by task, engines and the recommendation."""
    from real.prompts import ALL, LOW_REPEAT

    for group in (ALL, LOW_REPEAT):
        _print_group(summary, group, [r for r in rows if r.group == group])
    tasks = [g for g in dict.fromkeys(r.group for r in rows) if g not in (ALL, LOW_REPEAT)]
    speedups = {(r.contestant, r.group): _format(r.speedup, ".2f") for r in rows}
    print_table(
        ("contestant", *(group.partition(":")[2] for group in tasks)),
        [
            (r.contestant, *(speedups[r.contestant, group] for group in tasks))
            for r in rows
            if r.group == ALL and r.rate is not None
        ],
        title="times plain by task",
    )
    for r in rows:
        if r.group == ALL and (r.error or r.remark):
            print_text(f"{r.contestant}: {r.error and 'could not run: '}{r.error or r.remark}")
    for ratio in summary["over_assisted"]:
        low, high = ratio["low"], ratio["high"]
        interval = "" if low is None else f" [{low:.2f}, {high:.2f}]"
        print_text(
            f"{ratio['contestant']} over {ratio['assisted']}, {ratio['group']} "
            f"({ratio['prompts']} prompts): {ratio['ratio']:.2f}x{interval}"
        )
    for drafter, engines in summary["engines"].items():
        print_text(f"{drafter}: {describe_engines(engines)}")
    for method, found in summary["tuning"].items():
        print_text(f"{method}: tuned to {found['chosen']} on {len(found['prompts'])} other prompts")
    if summary["low_repeat"]:
        print_text(summary["low_repeat"])
    print_text(summary["verdict"])
    if not summary["measurement"]:
        print_text(f"no measurement, not to be published: {'; '.join(summary['reasons'])}")


def _print_group(summary: dict, group: str, rows: list) -> None:
    rows = sorted(rows, key=lambda r: -(r.speedup or 0.0))
    if not rows[0].prompts:
        print_text(f"{group}: no prompts")
        return
    print_table(
        (
            "contestant", "tok/s", "x plain", "95%", "x own plain", "own 95%", "tok/pass",
            "x per tok/pass", "spread", "first token", "tok/s after", "equal to plain",
        ),
        [_cells(r) for r in rows],
        title=f"{group}: {rows[0].prompts} prompts, {summary['device']}, {summary['dtype']}, "
        f"{summary['engine']} passes of ours",
        optional=("spread", "tok/s after", "first token", "x per tok/pass"),
    )  # fmt: skip


def _cells(r) -> tuple[str, ...]:
    if r.rate is None:
        return (r.contestant, *["-"] * 11)
    return (
        r.contestant,
        f"{r.rate:.1f}",
        f"{r.speedup:.3f}",
        _interval(r.low, r.high),
        _format(r.own, ".3f"),
        _interval(r.own_low, r.own_high),
        f"{r.per_pass:.2f}",
        _format(r.pass_ratio, ".3f"),
        _format(r.spread, ".1%"),
        f"{r.first * 1e3:.2f} ms",
        _format(r.after, ".1f"),
        "-" if r.equal is None else f"{r.equal} of {r.prompts}",
    )


def _interval(low: float | None, high: float | None) -> str:
    return "-" if low is None else f"{low:.3f} to {high:.3f}"


def _format(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
