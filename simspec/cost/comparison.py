"""Whether costs may be compared: same device, threads and number type."""

from collections.abc import Mapping
from itertools import combinations
from typing import Any

from simspec.cost.model import CostModel
from simspec.cost.provenance import CostOrigin

MIXED = "--mixed-costs"


def check_comparable(costs: Mapping[str, Any], mixed: bool = False) -> list[str]:
    """Notes on {file: CostModel or ratio} that are compared with each other; one line each.

    | origins | outcome |
    | --- | --- |
    | a known device, thread count or dtype differs | ValueError; with `mixed` a note |
    | one is not known | a note, with two labels of devices where they differ |

    Ratios have no origin and agree with everything.
    """
    models = {file: cost for file, cost in costs.items() if isinstance(cost, CostModel)}
    origins = {file: cost.origin or CostOrigin() for file, cost in models.items()}
    notes = []
    for (file, ours), (other, theirs) in combinations(origins.items(), 2):
        if names := ours.differences(theirs):
            values = " and ".join(
                f"{name} ({getattr(ours, name)} and {getattr(theirs, name)})" for name in names
            )
            reason = f"costs of {file} and {other} differ in {values}"
            if not mixed:
                raise ValueError(
                    f"{reason}, expected one origin: measure them in one sitting, "
                    f"or compare them as they are with {MIXED}"
                )
            notes.append(f"{reason}: their speedups do not compare")
            break
    unknown = [file for file, origin in origins.items() if not origin.known]
    if unknown and len(models) > 1:
        notes.append(_unknown_note(unknown, models))
    return notes


def warning_notes(costs: Mapping[str, Any]) -> list[str]:
    """A line for each warning of {file: CostModel or ratio}, with the files that hold it."""
    files: dict[str, list[str]] = {}
    for file, cost in costs.items():
        for warning in cost.warnings if isinstance(cost, CostModel) else ():
            files.setdefault(warning, []).append(file)
    return [
        f"{of[0]}{f' and {len(of) - 1} more' * (len(of) > 1)}: {warning}"
        for warning, of in files.items()
    ]


def _unknown_note(unknown: list[str], models: Mapping[str, CostModel]) -> str:
    labels: dict[str, str] = {}
    for file in unknown:
        labels.setdefault(models[file].device, file)
    sources = " and ".join(f"{file} ({label!r})" for label, file in list(labels.items())[:2])
    return (
        f"{len(unknown)} of {len(models)} cost files do not say device, threads and dtype, such as "
        f"{sources}: whether they compare is unknown until they are measured again"
    )
