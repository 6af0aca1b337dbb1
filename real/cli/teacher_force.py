"""The command `simspec teacher-force`."""

import json
from typing import Annotated

import typer

from real.cli.options import (
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
    cost_of,
    load_models,
    open_recording,
)
from real.cli.progress import show_progress
from real.progress import relabel


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
):
    """Run a policy with the recording's own text forced: rounds compare in any dtype, and tokens not the target's pick are judged.

    Exits with code 1 unless 97% of rounds accept as recorded and every divergence is within rounding of the dtype.

    Example: simspec teacher-force tiny-model-greedy --policy fixed:3 --dtype bfloat16
    """
    from real.audit.forced_comparison import compare_forced
    from real.audit.forced_decoding import decode_forced
    from real.decode.engine import passes_for_trace
    from real.decode.plan import chain_plan
    from real.pair import check_pair, rule_of, same_predictors
    from simspec import policies, replay

    path, recorded = open_recording(trace, prompts)
    rule_of(recorded)  # a slip is told before models are loaded
    told = cost_of(path, cost, recorded.K)
    made = policies.make(policy, recorded, told)
    replayed = replay(recorded, made, seed=seed, cost=told)
    pair = load_models(
        models,
        recorded.meta.drafter,
        device,
        dtype,
        target,
        weights,
        passes_for_trace(engine, recorded),
    )
    check_pair(recorded, pair, trace)
    same_predictors(pair.drafter, recorded, [made])
    with show_progress() as progress:
        drive = chain_plan(made, recorded.K, seed, told)
        ran, apart = decode_forced(
            pair.target, pair.drafter, drive, recorded, relabel(progress, f"forcing {made.name}")
        )
    found = compare_forced(recorded, replayed, ran, apart)
    if as_json:
        print(json.dumps({"policy": made.name, "dtype": dtype} | found.summary()))
    else:
        print(
            f"{made.name} in {dtype}: {found.equal} of {found.rounds} rounds accept as recorded ({found.share:.2%}), "
            f"{found.replayed} are the replay's; {len(found.divergences)} of {found.tokens} tokens are not the target's pick, "
            f"{len(found.failures)} beyond rounding"
        )
    if not found.sound:
        raise typer.Exit(1)
