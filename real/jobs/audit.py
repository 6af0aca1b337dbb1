"""Auditing an emitted run against its target, and running with the recorded tokens forced."""

from dataclasses import replace
from pathlib import Path

from real.audit import audit as audit_tokens
from real.audit.result import AuditResult
from real.audit.runs import EmittedRun, load_run, recorded_run
from real.drafters import BUILTIN
from real.model_settings import ModelSettings, open_recording
from real.pair import Pair
from real.progress import Progress, quiet


def audit_run(
    name: str,
    models: ModelSettings,
    against: str | None = None,
    dtype: str | None = None,
    risk: float = 1e-4,
    progress: Progress = quiet,
) -> tuple[AuditResult, EmittedRun, Pair]:
    """Audits a saved run (.jsonl) or a recording: (findings, what was audited, models).

    against: a recording of the same prompts. dtype: the run's own where None. risk: largest
    probability of a false alarm of the tests of sampled sequences. The drafter's bias is tested for
    runs under the rejection rule whose drafter is in the model folder.
    """
    if not 0 < risk < 1:
        raise ValueError(f"--risk is {risk}; expected a probability in (0, 1) such as 1e-4")
    if name.endswith(".jsonl"):
        emitted = load_run(Path(name))
    else:
        emitted = recorded_run(open_recording(name)[1])
    reference = None if against is None else open_recording(against)[1]
    header = emitted.header
    biased = (
        header.rule == "rejection"
        and header.drafter in BUILTIN
        and (models.weights or models.folder / header.drafter).is_dir()
    )
    models = replace(
        models, dtype=dtype or header.dtype, weights=models.weights if biased else None
    )
    pair = models.load(header.drafter if biased else "prompt_lookup")
    if header.target and header.target.split("/")[-1] != pair.name.split("/")[-1]:
        raise ValueError(
            f"{name} was made with target {header.target}, this is {pair.name}; "
            "name that one by --models or --target"
        )
    drafter = pair.drafter if biased else None
    return audit_tokens(pair.target, emitted, reference, drafter, risk, progress), emitted, pair
