"""The command `simspec audit`."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Meta

from real.commands.options import check_recordings, show_progress
from real.model_settings import ModelSettings, open_recording
from real.progress import Progress, quiet
from simspec.settings import Settings, argument, command, option

if TYPE_CHECKING:
    from real.audit.auditor import AuditResult
    from real.audit.runs import EmittedRun
    from real.pair import Pair

PANEL = "Run and verify"


@dataclass(frozen=True)
class Audit(Settings):
    """Which run is audited, and by which models."""

    run: Annotated[
        str,
        argument("What `simspec run --save` wrote, .jsonl; or a recording's file or bundled name."),
    ]
    models: Annotated[
        Path | None,
        option("Folder with target/ and the drafters' folders; default: the embedded models."),
    ] = None
    target: Annotated[
        str | None, option("A transformers checkpoint in place of <models>/target.")
    ] = None
    device: Annotated[str, option("cpu, cuda or cuda:1.")] = "cpu"
    dtype: Annotated[
        str | None, option("float32, float64 or bfloat16; default: the run's own.")
    ] = None
    weights: Annotated[
        Path | None, option("The drafter's folder, in place of <models>/<drafter>.")
    ] = None
    risk: Annotated[float, Meta(gt=0, lt=1)] = 1e-4
    """Probability of a false alarm in the tests of sampled text."""
    as_json: Annotated[bool, option("Print one JSON object on stdout.", "--json")] = False


@command
def audit(settings: Audit) -> None:
    """Verify every token of an emitted run against the target's own predictions.

    Greedy and coupled output: the gap of each token to the target's pick, in nats and units in the
    last place; gaps that rounding explains are excused. Sampled output: tokens of probability 0,
    and tests of the distribution with both error rates. Exits with code 1 on a failure.

    Example: simspec run tiny-model-greedy --save run.jsonl; simspec audit run.jsonl
    """
    check_recordings(*([] if settings.run.endswith(".jsonl") else [settings.run]))
    with show_progress() as progress:
        result, emitted, pair = audit_run(settings, progress)
    if settings.as_json:
        print(json.dumps(result.summary()))
    else:
        from real.audit.auditor import print_report

        print_report(settings.run, emitted.header, result, pair.tokenizer)
    if not result.clean:
        raise typer.Exit(1)


def audit_run(
    settings: Audit, progress: Progress = quiet
) -> "tuple[AuditResult, EmittedRun, Pair]":
    """(findings, what was audited, models).

    The drafter's bias is tested for runs under the rejection rule whose drafter is in the model
    folder.
    """
    from real.audit import audit as audit_tokens
    from real.audit.runs import load_run, recorded_run
    from real.drafters import BUILTIN

    name = settings.run
    if name.endswith(".jsonl"):
        emitted = load_run(Path(name))
    else:
        emitted = recorded_run(open_recording(name)[1])
    header = emitted.header
    models = ModelSettings(
        settings.models, settings.device, settings.dtype or header.dtype, target=settings.target
    )
    folder = settings.weights or models.folder / header.drafter
    sampled = header.sampling_rule.sampled
    biased = sampled and header.drafter in BUILTIN and folder.is_dir()
    if biased:
        models = replace(models, weights=settings.weights)
    pair = models.load(header.drafter if biased else "prompt_lookup")
    if header.target and header.target.split("/")[-1] != pair.name.split("/")[-1]:
        raise ValueError(
            f"{name} was made with target {header.target}, this is {pair.name}; "
            "name that one by --models or --target"
        )
    drafter = pair.drafter if biased else None
    audited = audit_tokens(pair.target, emitted, drafter, settings.risk, progress)
    return audited, emitted, pair
