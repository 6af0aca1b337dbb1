"""The command `simspec run`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from real.commands.options import (
    Device,
    Dtype,
    Engine,
    Json,
    Models,
    Prompts,
    Seed,
    TargetPath,
    Threads,
    Weights,
    check_recordings,
    describe_engines,
    show_progress,
)
from simspec.output.terminal import print_text

PANEL = "Run and verify"


def run(
    trace: Annotated[
        str,
        typer.Argument(
            help="A recording's file or bundled name; its prompts, rule and seed are run again."
        ),
    ],
    policy: Annotated[
        str,
        typer.Option(
            help="name[:arg,...], as in `simspec sweep`, trees too; or beam:width,k=levels."
        ),
    ] = "beta_ts",
    cost: Annotated[
        Path | None, typer.Option(help="Cost model's JSON; default: measured now.")
    ] = None,
    prompts: Prompts = 0,
    drafter: Annotated[
        str,
        typer.Option(
            help="Another drafter than the recording's: only its tokens are compared. The way to "
            "run lookahead, which is never recorded."
        ),
    ] = "",
    device: Device = "cpu",
    dtype: Dtype = "float32",
    threads: Threads = 0,
    engine: Engine = "eager",
    models: Models = None,
    target: TargetPath = None,
    weights: Weights = None,
    seed: Seed = 0,
    text: Annotated[bool, typer.Option(help="Print the texts too.")] = False,
    save: Annotated[
        Path | None,
        typer.Option(help="Write the texts and rounds to this .jsonl, for `simspec audit`."),
    ] = None,
    risk: Annotated[
        float,
        typer.Option(help="Rejection rule: probability of a false alarm in the tests of rounds."),
    ] = 1e-3,
    as_json: Json = False,
) -> None:
    """Run a policy for real on a recording's prompts and compare every round with the replay.

    Exits with code 1 if they differ.

    Under the rejection rule the run draws its own tokens, and its rounds are compared with replays
    in distribution: on the run's own tokens, and prompt by prompt with the recording's.

    Example: simspec run tiny-model-greedy --policy fixed:3 --prompts 20

    Lookahead decoding: simspec run tiny-model-greedy --drafter lookahead --policy fixed:4
    """
    check_recordings(trace)
    from real.jobs import ModelSettings, RunSettings, run_recording

    settings = RunSettings(policy, cost, prompts, seed, save, drafter, risk)
    models_ = ModelSettings(models, device, dtype, engine, target, weights)
    with show_progress() as progress:
        outcome, run_trace, pair = run_recording(trace, models_, settings, progress)
    if as_json:
        print(json.dumps(outcome.summary()))
    else:
        if text:
            for name, token in zip(run_trace.meta.ids, outcome.texts):
                print_text(f"--- {name}\n{pair.tokenizer.decode(token.tolist())}")
        print_text(f"{outcome.describe()}; {describe_engines(outcome.engines)}")
    if not outcome.equal:
        raise typer.Exit(1)
