"""The command `simspec race`, and the tables that it prints."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from real.commands.options import (
    Budget,
    Device,
    Dtype,
    Engine,
    Json,
    Models,
    Prompts,
    Recording,
    Seed,
    TargetPath,
    Threads,
    check_recordings,
    describe_engines,
    show_progress,
)
from simspec.cli.options import MOST_PROMPTS, MOST_REPEATS, at_most
from simspec.output.table import print_table
from simspec.output.terminal import print_text


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


PANEL = "Run and verify"

Costs = Annotated[
    list[str] | None,
    typer.Option(
        "--cost",
        help="drafter=COST.json that its policies observe, repeatable; "
        "default: the recording's, or 0.1.",
    ),
]


def race(
    trace: Recording,
    contestant: Annotated[
        list[str] | None,
        typer.Option(help="drafter=policy of ours, repeatable; default: some of `model`."),
    ] = None,
    rival: Annotated[
        list[str] | None,
        typer.Option(
            help="generate, generate_static, assisted:SCHEDULE[,tokens[,threshold]], "
            "prompt_lookup:tokens[,ngram], early_exit:layers[,tokens[,threshold]]; tokens may be "
            "`tuned`; none; default: all but early_exit."
        ),
    ] = None,
    prompts: Prompts = 20,
    repeats: Annotated[
        int,
        typer.Option(
            callback=at_most(MOST_REPEATS), help="Times that every contestant meets every prompt."
        ),
    ] = 5,
    budget: Budget = 0,
    tune_prompts: Annotated[
        int,
        typer.Option(
            callback=at_most(MOST_PROMPTS),
            help="Other prompts on which transformers' `tuned` draft lengths are chosen.",
        ),
    ] = 5,
    control: Annotated[
        bool,
        typer.Option(
            "--control",
            help="Race plain decoding twice: the interval of `plain_again` shows the noise.",
        ),
    ] = False,
    cost: Costs = None,
    engine: Engine = "eager",
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write the rows, the seconds of every call, device and versions as JSON."
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Write a PNG: times plain, on all prompts and on those that loop little."
        ),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(help="Keep finished repeats in this .json; killed, it continues there."),
    ] = None,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    threads: Threads = 0,
    models: Models = None,
    target: TargetPath = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Race the decode loop against transformers on a recording's prompts, under its rule.

    One sequence at a time. For each prompt all contestants run back to back in shuffled order.
    Speedups are means over repeats with intervals over prompts. Fewer than 5 repeats, an even
    number, or fewer than 20 prompts are no measurement to publish. Exits with code 1 where a
    contestant is faster than its tokens a pass allow. Never recommends a drafter and policy that
    is slower than decoding without drafts.

    Example: simspec race tiny-model-greedy --contestant model=fixed:2 --out race.json
    """
    check_recordings(trace)
    from real.jobs import ModelSettings, RaceOutputs, RaceSettings, race_recording

    default = RaceSettings()
    settings = RaceSettings(
        contestant or default.contestants,
        rival or default.rivals,
        prompts,
        repeats,
        cost or (),
        seed,
        budget,
        tune_prompts,
        control,
    )
    models_ = ModelSettings(models, device, dtype, engine, target)
    outputs = RaceOutputs(out, plot, save)
    with show_progress() as progress:
        summary, rows = race_recording(trace, models_, settings, outputs, progress)
    print(json.dumps(summary)) if as_json else print_race(summary, rows)
    if summary["impossible"]:
        raise typer.Exit(1)
