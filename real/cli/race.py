"""The command `simspec race`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from real.cli.options import (
    Device,
    Dtype,
    Engine,
    Json,
    Models,
    Recording,
    Seed,
    TargetPath,
    Threads,
    check_recordings,
)
from real.cli.progress import show_progress
from real.cli.race_table import print_race
from simspec.cli.options import MOST_PROMPTS, MOST_REPEATS, at_most

Costs = Annotated[
    list[str] | None,
    typer.Option(
        "--cost",
        help="drafter=COST.json that its policies observe, repeatable; "
        "default: the recording's, or 0.1.",
    ),
]


def race(  # noqa: PLR0913
    trace: Recording,
    contestant: Annotated[
        list[str] | None,
        typer.Option(help="drafter=policy of ours, repeatable; default: some of `model`."),
    ] = None,
    rival: Annotated[
        list[str] | None,
        typer.Option(
            help="generate, generate_static, assisted:SCHEDULE[,tokens[,threshold]], "
            "prompt_lookup:tokens; none; default: all."
        ),
    ] = None,
    prompts: Annotated[
        int,
        typer.Option(
            callback=at_most(MOST_PROMPTS),
            help="Only so many of its prompts, spread over the tasks; 0 for all.",
        ),
    ] = 12,
    repeats: Annotated[
        int,
        typer.Option(
            callback=at_most(MOST_REPEATS), help="Times that every contestant meets every prompt."
        ),
    ] = 3,
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
            help="Write a PNG: tokens a second, on all prompts and on those that loop little."
        ),
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

    One sequence at a time. Times are end-to-end wall-clock times in shuffled order. Never
    recommends a drafter and policy that is slower than decoding without drafts.

    Example: simspec race tiny-model-greedy --contestant model=fixed:2 --out race.json
    """
    check_recordings(trace)
    from real.jobs import ModelSettings, RaceSettings, race_recording

    default = RaceSettings()
    settings = RaceSettings(
        contestant or default.contestants,
        rival or default.rivals,
        prompts,
        repeats,
        cost or (),
        seed,
    )
    models_ = ModelSettings(models, device, dtype, engine, target)
    with show_progress() as progress:
        summary, rows = race_recording(trace, models_, settings, out, plot, progress)
    print(json.dumps(summary)) if as_json else print_race(summary, rows)
