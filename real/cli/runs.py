"""Commands that hold runs against recordings: teacher_force, emulate, scorecard, demo."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from real.cli import (
    Device,
    Dtype,
    Engine,
    Json,
    Models,
    Seed,
    TargetPath,
    Weights,
    _pair,
    _progress,
)
from real.progress import relabel

Recording = Annotated[str, typer.Argument(help="A recording's file or bundled name.")]
Policies = Annotated[
    list[str] | None,
    typer.Option("--policy", help="name[:arg,...], as in `simspec sweep`, repeatable."),
]
Prompts = Annotated[
    int, typer.Option(help="Only so many of its prompts, spread over the tasks; 0 for all.")
]
Cost = Annotated[
    Path | None,
    typer.Option(
        help="What policies are told; default: NAME.cost.json beside it, else a ratio of 0.1."
    ),
]
SCORED = ("fixed:0", "fixed:1", "fixed:2", "fixed:4", "beta_ts", "confidence:0.5", "cost_ts")
DRIVEN = ("fixed:1", "fixed:2", "fixed:4", "beta_ts")


def _opened(name: str, prompts: int = 0):
    """(its file, the recording or some of its prompts)."""
    from real.pair import spread
    from simspec import load_trace
    from simspec.recordings import locate

    (path,) = locate([name]).values()
    trace = load_trace(path)
    if prompts < 0:
        raise ValueError(f"--prompts is {prompts}, expected a number of prompts, or 0 for all")
    return path, trace.select(spread(trace.sequences, prompts)) if prompts else trace


def _told(path: Path, cost: Path | None, K: int):
    from simspec import CostModel
    from simspec.recordings import costs_of

    told = costs_of({"": path}, None if cost is None else str(cost))[""]
    return told if isinstance(told, CostModel) else CostModel.from_ratio(told, K)


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
    from real.audit.forced_decoding import compare_forced
    from real.audit.forced_decoding import force as run
    from real.decode.engine import passes_for
    from real.pair import check_pair, rule_of, same_predictors, stepper
    from simspec import policies, replay

    path, recorded = _opened(trace, prompts)
    rule_of(recorded)  # a slip is told before models are loaded
    told = _told(path, cost, recorded.K)
    made = policies.make(policy, recorded, told)
    replayed = replay(recorded, made, seed=seed, cost=told)
    pair = _pair(
        models, recorded.meta.drafter, device, dtype, target, weights, passes_for(engine, recorded)
    )
    check_pair(recorded, pair, trace)
    same_predictors(pair.drafter, recorded, [made])
    with _progress() as progress:
        drive = stepper(made, recorded.K, seed, told)
        ran, apart = run(
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
    from real.bench.trace_driven import drive as run
    from real.bench.trace_driven import driven_passes
    from real.drafters import drafter_shapes, random_drafter
    from real.model.random_models import check_room, random_decoder, read_shape
    from real.pair import DTYPES
    from real.provenance import check_device
    from simspec.rng import check_seed

    check_device(device)
    check_seed(seed)
    if dtype not in DTYPES:
        raise ValueError(f"dtype {dtype!r} is unknown; expected one of {', '.join(DTYPES)}")
    path, recorded = _opened(trace, prompts)
    told, shape = _told(path, cost, recorded.K), read_shape(target)
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
    passes = driven_passes(engine, recorded, context)
    with _progress() as progress:
        said = relabel(progress, f"driving {shape.name}")
        found = run(
            decoder, made, recorded, policy or DRIVEN, told, seed, context, label, said, passes
        )
    if as_json:
        print(json.dumps(found.summary()))
    else:
        _print_driven(found)
    if not found.equal:
        raise typer.Exit(1)


def _table(title: str, *heads: str):
    from rich.console import Console
    from rich.table import Table

    return Table(*heads, title=title), Console(width=None if sys.stdout.isatty() else 160)


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


def scorecard(
    traces: Annotated[list[str], typer.Argument(help="Recordings: files or bundled names.")],
    policy: Policies = None,
    prompts: Annotated[
        int, typer.Option(help="Prompts to score of each recording; as many others give the costs.")
    ] = 12,
    repeats: Annotated[
        int, typer.Option(help="Runs of every policy; their spread is the noise floor.")
    ] = 3,
    plot: Annotated[
        Path | None,
        typer.Option(help="Write a PNG: predicted against measured, and seconds by phase."),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(help="Keep each recording's rows in this .json; killed, it continues there."),
    ] = None,
    cost: Cost = None,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    engine: Engine = "eager",
    models: Models = None,
    target: TargetPath = None,
    seed: Seed = 0,
    as_json: Json = False,
):
    """Predict runs from replays and from costs of other prompts, run them, and say where the predictions are wrong.

    Exits with code 1 where the median error is above max(3%, twice the noise floor) or the 90th percentile above 8%.

    Example: simspec scorecard tiny-model-greedy tiny-eagle-greedy --policy fixed:2 --policy beta_ts --repeats 5 --plot score.png
    """
    from real.bench.figures import draw
    from real.bench.scorecard import Scorecard, halves, keep, kept, score
    from real.decode.engine import passes_for
    from real.model.checkpoint import sha256
    from real.pair import check_pair, rule_of
    from real.provenance import check_device, device_name
    from simspec import policies
    from simspec.files import check_output
    from simspec.rng import check_seed

    check_device(device)
    check_seed(seed)
    if repeats < 1:
        raise ValueError(f"--repeats is {repeats}, expected at least 1")
    opened = {name: _opened(name) for name in traces}
    read = [cost or "", *(path for path, _ in opened.values())]
    if plot is not None:
        check_output(plot, save or "", *read)
    wanted: dict[str, list[str]] = {}
    for name, (_, recorded) in opened.items():
        rule_of(recorded)
        halves(recorded, prompts, seed)
        shown = {feature for feature, _ in recorded.meta.features}
        wanted[name] = [
            text for text in policy or SCORED if policy or set(policies.parse(text).reads) <= shown
        ]
        for text in wanted[name]:
            recorded.features(policies.parse(text).reads)
    held = {}
    if save is not None:
        check_output(save, *read)
        settings = {
            "device": device_name(device),
            "dtype": dtype,
            "engine": engine,
            "prompts": prompts,
            "repeats": repeats,
            "seed": seed,
        }
        settings |= {
            "cost": str(cost),
            "bundle": str(models),
            "target": str(target),
            "policies": policy,
        }
        settings |= {"recordings": {name: sha256(path) for name, (path, _) in opened.items()}}
        held = kept(save, settings)
    for name, (path, recorded) in opened.items():
        if name in held:
            continue
        pair = _pair(
            models, recorded.meta.drafter, device, dtype, target, None, passes_for(engine, recorded)
        )
        check_pair(recorded, pair, name)
        told = _told(path, cost, recorded.K)
        with _progress() as progress:
            held[name] = score(
                name,
                recorded,
                pair,
                wanted[name],
                told,
                prompts,
                repeats,
                seed,
                relabel(progress, f"running {name}"),
            )
        del pair  # a large target shall not be there twice
        if save is not None:
            keep(save, settings, held)
    found = Scorecard(
        device_name(device),
        dtype,
        repeats,
        seed,
        tuple(row for name in opened for row in held[name]),
    )
    if plot is not None:
        draw(found, plot)
    print(json.dumps(found.summary())) if as_json else _print_scorecard(found)
    if not found.good:
        raise typer.Exit(1)


def _print_scorecard(found) -> None:
    heads = (
        "recording",
        "policy",
        "predicted",
        "measured tok/s",
        "error",
        "acceptance",
        "cost",
        "overhead",
        "noise",
        "tau",
        "measured tau",
    )
    table, console = _table(f"predicted against measured, {found.device}, {found.dtype}", *heads)
    for r in found.rows:
        parts = (f"{x:+.2%}" for x in (r.error, r.acceptance, r.cost, r.overhead))
        noise = "-" if r.noise is None else f"{r.noise:.2%}"
        speeds, lengths = (
            (f"{r.predicted:.1f}", f"{r.measured:.1f}"),
            (f"{r.tau:.3f}", f"{r.tau_measured:.3f}"),
        )
        table.add_row(r.recording, r.policy, *speeds, *parts, noise, *lengths)
    console.print(table)
    floor = "unknown (one repeat)" if found.noise_floor is None else f"{found.noise_floor:.2%}"
    verdict = "within bounds" if found.good else "OUT OF BOUNDS"
    print(
        f"median error {found.median_abs_error:.2%}, 90th percentile {found.p90_abs_error:.2%}, noise floor {floor}: {verdict}"
    )


def demo(
    prompts: Annotated[int, typer.Option(help="Prompts to run for real on each recording.")] = 10,
    seed: Seed = 0,
    plot: Annotated[Path, typer.Option(help="Where the picture goes.")] = Path("out/demo.png"),
    as_json: Json = False,
):
    """Sweep the bundled recordings, pick a policy, run it on the embedded models, compare with the replay.

    Exits with code 1 if a run and its replay differ. Example: simspec demo --prompts 48 --plot demo.png
    """
    from real.demo import demo as show
    from real.demo import draw

    with _progress() as progress:
        found = show(prompts, seed, progress=progress)
    draw(found, plot)
    if as_json:
        print(json.dumps(found.summary() | {"plot": str(plot)}))
    else:
        _print_demo(found, plot)
    if not found.comparison.equal:
        raise typer.Exit(1)


def _print_demo(found, plot) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    means = found.table.groupby(["policy", "trace"], sort=False).speedup.mean().unstack(sort=False)
    table = Table("policy", *means.columns, title="modelled speedup, at costs measured here")
    for name, row in means.iterrows():
        table.add_row(name, *(f"{x:.3f}" for x in row))
    console.print(table)
    heads = (
        "recording",
        "its best policy",
        "simulated",
        "measured",
        "rounds",
        "exceptions",
        "failures",
    )
    table = Table(*heads, title="run for real, compared with the replay")
    for name, o in found.outcomes.items():
        c = o.comparison
        counts = c.rounds, len(c.exceptions), len(c.failures)
        table.add_row(name, o.policy, f"{o.simulated:.3f}", f"{o.measured:.3f}", *map(str, counts))
    console.print(table)
    best = found.outcomes[found.best]
    verdict = (
        "the runs did what the replays said"
        if found.comparison.equal
        else "RUNS AND REPLAYS DIFFER"
    )
    console.print(
        f"best: {best.policy} on {found.best}; {verdict}. Picture: {plot}. Device: {best.device}",
        highlight=False,
    )
