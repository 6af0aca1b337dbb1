"""The command `simspec scorecard`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from real.commands.options import (
    Budget,
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
    show_progress,
)
from simspec.cli.options import MOST_PROMPTS, MOST_REPEATS, at_most
from simspec.output.table import print_table
from simspec.output.terminal import print_text

PANEL = "Run and verify"


def scorecard(
    traces: Annotated[list[str], typer.Argument(help="Recordings: files or bundled names.")],
    policy: Policies = None,
    prompts: Annotated[
        int,
        typer.Option(
            callback=at_most(MOST_PROMPTS),
            help="Prompts to score of each recording; as many others give the costs.",
        ),
    ] = 20,
    repeats: Annotated[
        int,
        typer.Option(
            callback=at_most(MOST_REPEATS),
            help="Runs of every policy; their spread is the noise floor.",
        ),
    ] = 5,
    budget: Budget = 0,
    plot: Annotated[
        Path | None,
        typer.Option(help="Write a PNG: speedups predicted and measured, and seconds by phase."),
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
    """Predict speedups from replays and costs of other prompts, measure them, and decompose errors.

    For each scored prompt plain decoding and all policies run back to back; blocks of the other
    prompts are spread among these. The error is of the speedup, its interval over both sets of
    prompts. Exits with code 1 where the median error is above max(3%, twice the noise floor) or
    the 90th percentile above 8%. Fewer than 5 repeats, an even number, or fewer than 20 prompts are
    no measurement to publish.

    Example: simspec scorecard tiny-model-greedy --policy fixed:2 --policy beta_ts --repeats 5
    """
    check_recordings(*traces)
    from real.jobs import ModelSettings, ScoringSettings, score_recordings

    settings = ScoringSettings(policy, prompts, repeats, cost, seed, save, budget)
    models_ = ModelSettings(models, device, dtype, engine, target)
    with show_progress() as progress:
        card = score_recordings(traces, models_, settings, plot, progress)
    print(json.dumps(card.summary())) if as_json else _print(card)
    if not card.good:
        raise typer.Exit(1)


def _print(card) -> None:
    rows = []
    for r in card.rows:
        figures = (
            ("-", "-", "-", "-", "-", "-")
            if r.error is None
            else (
                f"{r.error:+.2%}",
                _interval(r.error_low, r.error_high, "+.1%"),
                f"{r.speedup:.3f}",
                _interval(r.speedup_low, r.speedup_high, ".3f"),
                f"{r.speedup_measured:.3f}",
                _interval(r.measured_low, r.measured_high, ".3f"),
            )
        )
        parts = (f"{x:+.2%}" for x in (r.rate_error, r.acceptance, r.cost, r.overhead))
        noise = "-" if r.noise is None else f"{r.noise:.2%}"
        rates = f"{r.predicted:.1f}", f"{r.measured:.1f}"
        lengths = f"{r.tau:.3f}", f"{r.tau_measured:.3f}"
        names = r.recording, r.policy
        rows.append((*names, *figures, *rates, *parts, noise, *lengths, r.drafter_engine))
    engines = ", ".join(dict.fromkeys(r.target_engine for r in card.rows))
    print_table(
        (
            "recording", "policy", "speedup error", "95%", "predicted x plain", "95%",
            "measured x plain", "95%", "predicted", "measured tok/s", "tok/s error", "acceptance",
            "cost", "overhead", "noise", "tau", "measured tau", "drafter engine",
        ),
        rows,
        names=2,
        title=f"predicted against measured, {card.device}, {card.dtype}, target engine {engines}",
        optional=("drafter engine", "overhead", "cost", "acceptance", "tok/s error"),
    )  # fmt: skip
    floor = "unknown (one repeat)" if card.noise_floor is None else f"{card.noise_floor:.2%}"
    print_text(
        f"speedup: median error {card.median_abs_error:.2%}, 90th percentile "
        f"{card.p90_abs_error:.2%}, noise floor {floor}: "
        f"{'within bounds' if card.good else 'OUT OF BOUNDS'}"
    )
    if card.reasons:
        print_text(f"no measurement, not to be published: {'; '.join(card.reasons)}")


def _interval(low: float | None, high: float | None, form: str) -> str:
    return "-" if low is None else f"{low:{form}} to {high:{form}}"
