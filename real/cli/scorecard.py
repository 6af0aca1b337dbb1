"""The command `simspec scorecard`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from real.cli.options import (
    Cost,
    Device,
    Dtype,
    Engine,
    Json,
    Models,
    Policies,
    Seed,
    TargetPath,
    cost_of,
    load_models,
    open_recording,
)
from real.cli.progress import show_progress
from real.cli.tables import _table
from real.progress import relabel

SCORED = ("fixed:0", "fixed:1", "fixed:2", "fixed:4", "beta_ts", "confidence:0.5", "cost_ts")


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
    from real.bench.scorecard import Scorecard
    from real.bench.scorecard_file import load_rows, save_rows
    from real.bench.scoring import ScoreSettings, score, split_prompts
    from real.decode.engine import passes_for_trace
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
    opened = {name: open_recording(name) for name in traces}
    read = [cost or "", *(path for path, _ in opened.values())]
    if plot is not None:
        check_output(plot, save or "", *read)
    wanted: dict[str, list[str]] = {}
    for name, (_, recorded) in opened.items():
        rule_of(recorded)
        split_prompts(recorded, prompts, seed)
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
        held = load_rows(save, settings)
    for name, (path, recorded) in opened.items():
        if name in held:
            continue
        pair = load_models(
            models,
            recorded.meta.drafter,
            device,
            dtype,
            target,
            None,
            passes_for_trace(engine, recorded),
        )
        check_pair(recorded, pair, name)
        told = cost_of(path, cost, recorded.K)
        with show_progress() as progress:
            held[name] = score(
                name,
                recorded,
                pair,
                wanted[name],
                told,
                ScoreSettings(prompts, repeats, seed),
                relabel(progress, f"running {name}"),
            )
        del pair  # a large target shall not be there twice
        if save is not None:
            save_rows(save, settings, held)
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
