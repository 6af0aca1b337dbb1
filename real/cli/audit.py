"""The command `simspec audit`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from real.cli.options import Device, Json, Models, TargetPath, Weights, load_models
from real.cli.progress import show_progress
from real.progress import relabel


def audit(
    run: Annotated[
        str,
        typer.Argument(
            help="What `simspec run --save` wrote, .jsonl; or a recording's file or bundled name."
        ),
    ],
    against: Annotated[
        str | None,
        typer.Option(help="A recording of the same prompts: tells target flips from draft flips."),
    ] = None,
    models: Models = None,
    target: TargetPath = None,
    device: Device = "cpu",
    dtype: Annotated[
        str | None, typer.Option(help="float32, float64 or bfloat16; default: the run's own.")
    ] = None,
    weights: Weights = None,
    risk: Annotated[
        float, typer.Option(help="Chance of a false alarm that the tests of sampled text may have.")
    ] = 1e-4,
    as_json: Json = False,
):
    """Force an emitted run through the target and report which of its tokens the target would not have written.

    Greedy and coupled texts: how far each token is from the target's pick, in nats and units in the last place; what rounding explains is
    excused. Sampled texts: tokens of probability 0, and tests of the law, with both error rates; whether a text leans to its drafter is
    tested where that lies in the model folder. Exits with code 1 where something is wrong.

    Example: simspec run tiny-model-greedy --prompts 20 --save run.jsonl; simspec audit run.jsonl --against tiny-model-greedy
    """
    from real.audit import audit as audit_run
    from real.audit.engine_runs import recorded_run
    from real.audit.report import print_report
    from real.audit.run_file import load_run
    from real.drafters import BUILTIN
    from real.pair import TINY
    from simspec import load_trace
    from simspec.recordings import locate

    def recording(name: str):
        (path,) = locate([name]).values()
        return load_trace(path)

    emitted = load_run(Path(run)) if run.endswith(".jsonl") else recorded_run(recording(run))
    reference = None if against is None else recording(against)
    name = emitted.header.drafter
    leans = (
        emitted.header.rule == "rejection"
        and name in BUILTIN
        and (weights or (models or TINY) / name).is_dir()
    )
    pair = load_models(
        models,
        name if leans else "prompt_lookup",
        device,
        dtype or emitted.header.dtype,
        target,
        weights if leans else None,
    )
    wrote = emitted.header.target
    if not 0 < risk < 1:
        raise ValueError(f"--risk is {risk}; expected a chance in (0, 1) such as 1e-4")
    if wrote and wrote.split("/")[-1] != pair.name.split("/")[-1]:
        raise ValueError(
            f"{run} was made with target {wrote}, this is {pair.name}; name that one by --models or --target"
        )
    with show_progress() as progress:
        found = audit_run(
            pair.target,
            emitted,
            reference,
            pair.drafter if leans else None,
            risk,
            relabel(progress, "auditing"),
        )
    if as_json:
        print(json.dumps(found.summary()))
    else:
        print_report(run, emitted.header, found, pair.tokenizer)
    if not found.clean:
        raise typer.Exit(1)
