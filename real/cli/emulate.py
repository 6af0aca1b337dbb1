"""The command `simspec emulate`."""

import json
from typing import Annotated

import typer

from real.cli.options import (
    Cost,
    Device,
    Dtype,
    Engine,
    Json,
    Policies,
    Prompts,
    Recording,
    Seed,
    cost_of,
    open_recording,
)
from real.cli.progress import show_progress
from real.cli.tables import _table
from real.progress import relabel

DRIVEN = ("fixed:1", "fixed:2", "fixed:4", "beta_ts")


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
        int | None, typer.Option(help="Tokens of every prompt; default: as recorded.")
    ] = None,
    cost: Cost = None,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    engine: Engine = "eager",
    seed: Seed = 0,
    as_json: Json = False,
):
    """Time policies on a model of any size with random weights, each round's verdict taken from a recording.

    Real passes, recorded acceptances: what these acceptances would give on that model here, not what its own drafter would reach.
    Exits with code 1 if the rounds are not those of the replay.

    Example: simspec emulate tiny-early_exit-greedy --target llama-3-8b --drafter early_exit:4 --device cuda --dtype bfloat16
    """
    from real.bench.trace_driven import EmulationSettings, emulation_passes
    from real.bench.trace_driven import emulate as run
    from real.drafters import drafter_shapes, random_drafter
    from real.model.random_models import check_room, random_decoder, read_shape
    from real.pair import DTYPES
    from real.provenance import check_device
    from simspec.rng import check_seed

    check_device(device)
    check_seed(seed)
    if dtype not in DTYPES:
        raise ValueError(f"dtype {dtype!r} is unknown; expected one of {', '.join(DTYPES)}")
    path, recorded = open_recording(trace, prompts)
    told, shape = cost_of(path, cost, recorded.K), read_shape(target)
    room = int(
        max(recorded.prompt_offset[1:] - recorded.prompt_offset[:-1])
        if context is None
        else context
    ) + int(recorded.budget.max())
    check_room([shape, *drafter_shapes(drafter, shape)], DTYPES[dtype], room, device)
    decoder = random_decoder(shape, DTYPES[dtype], device, seed)
    made = random_drafter(drafter, decoder, shape, int(recorded.depth.max()), seed)
    label = {
        "text": "random",
        "acceptance": trace,
        "target": shape.name,
        "drafter": drafter,
        "weights": "random",
        "rule": "greedy",
    }
    label |= {
        "dtype": dtype,
        "engine": engine,
        "prompts": recorded.sequences,
        "context": context or "as recorded",
    }
    passes = emulation_passes(engine, recorded, context)
    with show_progress() as progress:
        said = relabel(progress, f"emulating {shape.name}")
        settings = EmulationSettings(seed, context, label)
        found = run(decoder, made, recorded, policy or DRIVEN, told, settings, said, passes)
    if as_json:
        print(json.dumps(found.summary()))
    else:
        _print_driven(found)
    if not found.equal:
        raise typer.Exit(1)


def _print_driven(found) -> None:
    said = found.label
    title = f"{said['target']}, drafter {said['drafter']}: random weights and text, acceptances of {said['acceptance']} ({found.device})"
    heads = (
        "policy",
        "tokens/s",
        "speedup",
        "tau",
        "drafting s",
        "verification s",
        "policy s",
        "other s",
        "replay equal",
    )
    table, console = _table(title, *heads)
    for t in found.timings:
        phases = (f"{x:.3f}" for x in (t.drafting, t.verification, t.policy_time, t.other))
        table.add_row(
            t.policy,
            f"{t.tokens_per_second:.1f}",
            f"{t.speedup:.3f}",
            f"{t.tokens / t.rounds:.2f}",
            *phases,
            str(t.equal),
        )
    console.print(table)
