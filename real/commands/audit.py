"""The command `simspec audit`."""

import json
from typing import Annotated

import typer

from real.commands.options import (
    Device,
    Json,
    Models,
    TargetPath,
    Weights,
    check_recordings,
    show_progress,
)

PANEL = "Run and verify"


def audit(
    run: Annotated[
        str,
        typer.Argument(
            help="What `simspec run --save` wrote, .jsonl; or a recording's file or bundled name."
        ),
    ],
    against: Annotated[
        str | None,
        typer.Option(
            help="A recording of the same prompts: separates target flips from draft flips."
        ),
    ] = None,
    models: Models = None,
    target: TargetPath = None,
    device: Device = "cpu",
    dtype: Annotated[
        str | None, typer.Option(help="float32, float64 or bfloat16; default: the run's own.")
    ] = None,
    weights: Weights = None,
    risk: Annotated[
        float, typer.Option(help="Probability of a false alarm in the tests of sampled text.")
    ] = 1e-4,
    as_json: Json = False,
) -> None:
    """Verify every token of an emitted run against the target's own predictions.

    Greedy and coupled output: the gap of each token to the target's pick, in nats and units in the
    last place; gaps that rounding explains are excused. Sampled output: tokens of probability 0,
    and tests of the distribution with both error rates. Exits with code 1 on a failure.

    Example: simspec run tiny-model-greedy --save run.jsonl; simspec audit run.jsonl
    """
    recordings = [] if run.endswith(".jsonl") else [run]
    check_recordings(*recordings, *([] if against is None else [against]))
    from real.audit.report import print_report
    from real.jobs import ModelSettings, audit_run

    models_ = ModelSettings(models, device, target=target, weights=weights)
    with show_progress() as progress:
        result, emitted, pair = audit_run(run, models_, against, dtype, risk, progress)
    if as_json:
        print(json.dumps(result.summary()))
    else:
        print_report(run, emitted.header, result, pair.tokenizer)
    if not result.clean:
        raise typer.Exit(1)
