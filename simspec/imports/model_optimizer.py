"""Model-Optimizer: acceptance_rate.json, or its speculation_profile.json."""

from dataclasses import replace

from simspec.imports.kinds import PooledCounts
from simspec.imports.options import ImportFormat, ImportOptions
from simspec.imports.source import Source, json_rows
from simspec.imports.speculation_profile import of_profile
from simspec.imports.totals import of_emitted_lengths


def read_model_optimizer(source: Source, options: ImportOptions) -> PooledCounts:
    """Either file; the rates of acceptance_rate.json are not read, its histogram is.

    Conditional_Acceptance_Rate skips lengths that never occur, and its first entry is the bonus.
    """
    rows = json_rows(source.text)
    if len(rows) != 1:
        raise ValueError(f"{len(rows)} objects, expected the one of a Model-Optimizer file")
    (row,) = rows
    if "schema_version" in row:
        return of_profile(source, options, row)
    requests = row.inner("Request_AL").values
    turns = sum(len(value) if type(value) is dict else 1 for value in requests.values())
    result = of_emitted_lengths(source, options, row, "Acceptance_Length_Histogram")
    note = "the histogram may hold the prefill's step of 1 token for each turn"
    return replace(
        result,
        requests=turns,
        length_per_request=row.number("Average_AL"),
        notes=(note, *result.notes),
    )


FORMATS = (ImportFormat("model-optimizer", read_model_optimizer, ("drafted",)),)
