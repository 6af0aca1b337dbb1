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
    Threads,
    check_recordings,
)
from real.cli.progress import show_progress
from simspec.cli.options import MOST_PROMPTS, MOST_REPEATS, at_most
from simspec.terminal import print_table, print_text


def scorecard(  # noqa: PLR0913
    traces: Annotated[list[str], typer.Argument(help="Recordings: files or bundled names.")],
    policy: Policies = None,
    prompts: Annotated[
        int,
        typer.Option(
            callback=at_most(MOST_PROMPTS),
            help="Prompts to score of each recording; as many others give the costs.",
        ),
    ] = 12,
    repeats: Annotated[
        int,
        typer.Option(
            callback=at_most(MOST_REPEATS),
            help="Runs of every policy; their spread is the noise floor.",
        ),
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
    threads: Threads = 0,
    engine: Engine = "eager",
    models: Models = None,
    target: TargetPath = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Predict throughput from replays and costs of other prompts, measure it, and decompose errors.

    Exits with code 1 where the median error is above max(3%, twice the noise floor) or the 90th
    percentile above 8%.

    Example: simspec scorecard tiny-model-greedy --policy fixed:2 --policy beta_ts --repeats 5
    """
    check_recordings(*traces)
    from real.jobs import ModelSettings, ScoringSettings, score_recordings

    settings = ScoringSettings(policy, prompts, repeats, cost, seed, save)
    models_ = ModelSettings(models, device, dtype, engine, target)
    with show_progress() as progress:
        card = score_recordings(traces, models_, settings, plot, progress)
    print(json.dumps(card.summary())) if as_json else _print(card)
    if not card.good:
        raise typer.Exit(1)


def _print(card) -> None:
    rows = []
    for r in card.rows:
        errors = (f"{x:+.2%}" for x in (r.error, r.acceptance, r.cost, r.overhead))
        noise = "-" if r.noise is None else f"{r.noise:.2%}"
        rates = f"{r.predicted:.1f}", f"{r.measured:.1f}"
        lengths = f"{r.tau:.3f}", f"{r.tau_measured:.3f}"
        rows.append((r.recording, r.policy, *rates, *errors, noise, *lengths, r.drafter_engine))
    engines = ", ".join(dict.fromkeys(r.target_engine for r in card.rows))
    print_table(
        (
            "recording", "policy", "predicted", "measured tok/s", "error", "acceptance", "cost",
            "overhead", "noise", "tau", "measured tau", "drafter engine",
        ),
        rows,
        names=2,
        title=f"predicted against measured, {card.device}, {card.dtype}, target engine {engines}",
        optional=("drafter engine", "overhead", "cost", "acceptance"),
    )  # fmt: skip
    floor = "unknown (one repeat)" if card.noise_floor is None else f"{card.noise_floor:.2%}"
    print_text(
        f"median error {card.median_abs_error:.2%}, 90th percentile {card.p90_abs_error:.2%}, "
        f"noise floor {floor}: {'within bounds' if card.good else 'OUT OF BOUNDS'}"
    )
