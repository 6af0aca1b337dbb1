"""Dynamo: conditional acceptance of a draft for its simulated engine.

Reference: --aic-nextn and --aic-nextn-accept-rates of Dynamo's mocker.
"""

import numpy as np

from simspec.engines.choice import Limits
from simspec.engines.counts import of_marginals
from simspec.engines.documents import shown
from simspec.engines.draft_acceptance import acceptance_at
from simspec.engines.flags import flag_integer, flag_line, number_of, read_flags
from simspec.engines.import_kinds import PooledCounts
from simspec.engines.request import ExportFormat, Request, Settings
from simspec.engines.source import ImportFormat, ImportOptions, Source

KIND = "Dynamo flags"
LENGTH, RATES = "--aic-nextn", "--aic-nextn-accept-rates"
ALIASES = {"--ais-nextn": LENGTH, "--ais-nextn-accept-rates": RATES}
"""The spelling of Dynamo's main, where the older one, which releases read too, still counts."""

LONGEST = 5
"""The longest draft that Dynamo simulates."""


def export(request: Request) -> str:
    """The flags, on one line, with the conditional acceptance measured at that length."""
    length = request.length
    if length > LONGEST:
        raise ValueError(f"the draft length is {length}, and Dynamo simulates at most {LONGEST}")
    rates = acceptance_at(request.evidence.traces.values(), length).conditionals
    return flag_line({LENGTH: length, RATES: ",".join(f"{rate:.6f}" for rate in rates)})


def validate(text: str, settings: Settings) -> None:
    """ValueError, one line, for what Dynamo refuses, or changes without a word.

    | Dynamo would | refused here |
    | --- | --- |
    | refuse | lengths outside 1 to 5, rates outside [0, 1] or that are no numbers |
    | fill up with zeros | fewer rates than drafted tokens |
    | cut | more rates |
    | use its defaults | no rates |
    | skip | an empty place between two commas |
    | keep the last | a flag that comes twice |
    """
    read(text)


def read(text: str) -> tuple[int, list[float]]:
    """(draft length, conditional acceptance of each token); ValueError as `validate`."""
    flags = read_flags(text, KIND, (LENGTH, RATES), aliases=ALIASES)
    length = flag_integer(flags, LENGTH, 1)
    if length > LONGEST:
        raise ValueError(f"{LENGTH} is {length}, expected 1 to {LONGEST}")
    words = flags[RATES].split(",")
    if len(words) != length:
        raise ValueError(
            f"{RATES} has {len(words)} rates, expected {length}: {shown(flags[RATES])}, and "
            "others are filled up or cut"
        )
    rates = [number_of(word, f"{RATES}[{i}]", 0, 1) for i, word in enumerate(words)]
    return length, rates


def import_rates(source: Source, options: ImportOptions) -> PooledCounts:
    """Conditional rates of `--aic-nextn-accept-rates`; marginals are their products."""
    K, rates = read(source.text)
    return of_marginals(source, K, np.cumprod(rates).tolist())


EXPORTS = (
    ExportFormat(
        "dynamo",
        export,
        validate,
        ("dependence between rounds: the mocker draws each round's acceptance alone",),
        Limits(shortest=1, longest=LONGEST),
    ),
)
IMPORTS = (ImportFormat("dynamo", import_rates),)
