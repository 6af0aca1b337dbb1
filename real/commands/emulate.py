"""The command `simspec emulate`."""

import json
from typing import Annotated

import typer

from real.commands.options import (
    MOST_TOKENS,
    Cost,
    Device,
    Dtype,
    Engine,
    Json,
    Policies,
    Prompts,
    Recording,
    Seed,
    describe_engines,
    show_progress,
)
from simspec.cli.options import at_most
from simspec.output.table import print_table

PANEL = "Benchmark"


def emulate(
    trace: Recording,
    target: Annotated[
        str,
        typer.Option(
            help="A model's name such as llama-3-8b, SHAPE.json, or LAYERSxWIDTHxHEADS[xVOCAB]."
        ),
    ],
    drafter: Annotated[
        str, typer.Option(help="early_exit[:LAYERS], model:SHAPE, eagle, medusa or prompt_lookup.")
    ] = "early_exit",
    policy: Policies = None,
    prompts: Prompts = 12,
    context: Annotated[
        int | None,
        typer.Option(
            callback=at_most(MOST_TOKENS), help="Tokens of every prompt; default: as recorded."
        ),
    ] = None,
    cost: Cost = None,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    engine: Engine = "eager",
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Time policies on a model of any size with random weights and recorded acceptances.

    Passes are real, acceptances are the recording's: the throughput of these acceptances on that
    model here, not what its own drafter would reach. Exits with code 1 if rounds differ from the
    replay.

    Example: simspec emulate tiny-early_exit-greedy --target llama-3-8b --drafter early_exit:4
    """
    from real.jobs import EmulationSettings, ModelSettings, emulate_recording
    from real.jobs.emulate import POLICIES

    settings = EmulationSettings(drafter, policy or POLICIES, prompts, context, cost, seed)
    models = ModelSettings(device=device, dtype=dtype, engine=engine)
    with show_progress() as progress:
        emulated = emulate_recording(trace, target, models, settings, progress)
    print(json.dumps(emulated.summary())) if as_json else _print(emulated)
    if not emulated.equal:
        raise typer.Exit(1)


def _print(emulated) -> None:
    label = emulated.label
    title = (
        f"{label['target']}, drafter {label['drafter']}: random weights and tokens, acceptances of "
        f"{label['acceptance']} ({emulated.device}, {describe_engines(label['engines'])})"
    )
    rows = []
    for t in emulated.timings:
        phases = (f"{x:.3f}" for x in (t.drafting, t.verification, t.policy_time, t.other))
        figures = f"{t.tokens_per_second:.1f}", f"{t.speedup:.3f}", f"{t.tokens / t.rounds:.2f}"
        rows.append((t.policy, *figures, *phases, str(t.equal)))
    print_table(
        (
            "policy", "tokens/s", "speedup", "tau", "drafting s", "verification s", "policy s",
            "other s", "replay equal",
        ),
        rows,
        title=title,
        optional=("other s", "policy s"),
    )  # fmt: skip
