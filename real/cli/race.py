"""The command `simspec race`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from real.cli.options import (
    MOST_TOKENS,
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

PANEL = "Benchmark"

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
            "prompt_lookup:tokens[,ngram], early_exit:layers[,tokens[,threshold]]; tokens may be "
            "`tuned`; none; default: all but early_exit."
        ),
    ] = None,
    prompts: Annotated[
        int,
        typer.Option(
            callback=at_most(MOST_PROMPTS),
            help="Only so many of its prompts, spread over the tasks; 0 for all.",
        ),
    ] = 20,
    repeats: Annotated[
        int,
        typer.Option(
            callback=at_most(MOST_REPEATS), help="Times that every contestant meets every prompt."
        ),
    ] = 5,
    budget: Annotated[
        int,
        typer.Option(
            callback=at_most(MOST_TOKENS), help="Most new tokens of a prompt; 0: as recorded."
        ),
    ] = 0,
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
