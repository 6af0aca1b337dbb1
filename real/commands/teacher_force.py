"""The command `simspec teacher-force`."""

import json
from typing import Annotated

import typer

from real.commands.options import (
    Cost,
    Device,
    Dtype,
    Engine,
    Json,
    Models,
    Prompts,
    Recording,
    Seed,
    TargetPath,
    Weights,
    check_recordings,
    describe_engines,
    show_progress,
)
from simspec.output.terminal import print_text

PANEL = "Run and verify"


def teacher_force(
    trace: Recording,
    policy: Annotated[str, typer.Option(help="name[:arg,...], as in `simspec sweep`.")] = "fixed:3",
    prompts: Prompts = 0,
    cost: Cost = None,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    engine: Engine = "eager",
    models: Models = None,
    target: TargetPath = None,
    weights: Weights = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Run a policy with the recorded tokens forced, so that rounds compare in any dtype.

    Tokens that are not the target's pick are evaluated. Exits with code 1 unless 97% of rounds
    accept as recorded and every divergence is within rounding of the dtype.

    Under the rejection rule a drafted token is accepted with its probability given the recorded
    tokens, by the replay's own draws: 97% of rounds must be as replayed, and 97% of probabilities
    as recorded up to rounding.

    Example: simspec teacher-force tiny-model-greedy --policy fixed:3 --dtype bfloat16
    """
    check_recordings(trace)
    from real.jobs import ModelSettings, force_recording

    models_ = ModelSettings(models, device, dtype, engine, target, weights)
    with show_progress() as progress:
        run = force_recording(trace, models_, policy, prompts, cost, seed, progress)
    compared = run.comparison
    if as_json:
        print(json.dumps(run.summary()))
    else:
        engines = describe_engines(run.engines)
        print_text(f"{run.policy} in {dtype}: {compared.describe()}; {engines}")
    if not compared.sound:
        raise typer.Exit(1)
