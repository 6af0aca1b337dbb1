"""Model-Optimizer: acceptance_rate.json, and speculation_profile.json 1.0."""

import numpy as np

from simspec.imports.fields import Fields
from simspec.imports.histograms import by_length, dense
from simspec.imports.kinds import PooledCounts
from simspec.imports.options import ImportOptions
from simspec.imports.round_lists import origin_of
from simspec.imports.source import Source, json_rows
from simspec.imports.totals import mean_of

PER_STEP = "mean over steps of the emitted tokens (bonus token included)"
CONSISTENT = 0.02
"""Largest difference of 1 + sum of marginals from the mean length, as the profile's own check."""


def read_model_optimizer(source: Source, options: ImportOptions) -> PooledCounts:
    """Either file; their rates are not read where there is a histogram of emitted lengths.

    Conditional_Acceptance_Rate skips lengths that never occur, and its first entry is the bonus.
    """
    rows = json_rows(source.text)
    if len(rows) != 1:
        raise ValueError(f"{len(rows)} objects, expected the one of a Model-Optimizer file")
    (row,) = rows
    if "schema_version" in row:
        return _profile(source, options, row)
    requests = row.inner("Request_AL").values
    turns = sum(len(value) if type(value) is dict else 1 for value in requests.values())
    mean = row.number("Average_AL")
    notes = ["the histogram may hold the prefill's step of 1 token for each turn"]
    return _histogram(source, options, row, "Acceptance_Length_Histogram", turns, mean, notes)


def _profile(source: Source, options: ImportOptions, row: Fields) -> PooledCounts:
    if row.name("schema_version") != "1.0":
        raise row.error("schema_version", row.values["schema_version"], "1.0")
    if row.values.get("measured") is not True:
        raise ValueError("the profile says that it was not measured: it holds a stub's figures")
    K = row.whole("num_speculative_tokens", 1)
    if options.drafted not in (None, K):
        raise ValueError(f"--drafted is {options.drafted}, the profile's K is {K}: leave it out")
    options = ImportOptions(drafted=K)
    mean = "mean_accept_length_per_request"
    per_request = row.number(mean) if mean in row else None
    reason = ""
    if row.values.get("verification_method") == "block":
        reason = "blocks are accepted as a whole: acceptance has no depth"
    if "acceptance_length_histogram" in row:
        key = "acceptance_length_histogram"
        return _histogram(source, options, row, key, None, per_request, [], reason)
    length = row.number("mean_accept_length")
    withheld, marginals = {"rounds": "the profile gives rates without counts: no intervals"}, {}
    if reason:
        withheld["acceptance by depth"] = reason
    else:
        marginals[K] = _marginals(row, K, length)
    return PooledCounts(
        origin_of(source), length=length, length_means=PER_STEP, length_per_request=per_request,
        draft_length=K, withheld=withheld, marginals=marginals,
    )  # fmt: skip


def _marginals(row: Fields, K: int, length: float) -> tuple[float, ...]:
    rates = np.array(row.numbers("marginal_accept_rates"))
    if len(rates) != K or (np.diff(rates, prepend=1) > 1e-6).any():
        raise row.error("marginal_accept_rates", rates.tolist(), f"{K} shares that never rise")
    if abs(1 + rates.sum() - length) > CONSISTENT * length:
        raise ValueError(
            f"1 + the marginals is {1 + rates.sum():.4f}, mean_accept_length {length:.4f}: "
            "expected them equal within 2%; conditional rates or a shorter K may be there"
        )
    return tuple(map(float, rates))


def _histogram(
    source: Source, options: ImportOptions, row: Fields, key: str, requests: int | None,
    per_request: float | None, notes: list[str], block: str = "",
) -> PooledCounts:  # fmt: skip
    emitted = dense(row, key)
    if emitted[:1].any():
        raise ValueError(f"{key} counts steps of 0 tokens, expected lengths with the bonus token")
    counts = emitted[1:]
    if not counts.any():
        raise ValueError(f"{key} is empty: nothing can be concluded")
    K = options.drafted or max(len(counts) - 1, 1)
    if counts[K + 1 :].any():
        raise ValueError(f"{key} holds steps of {len(counts)} tokens, over K + 1 = {K + 1}")
    if options.drafted is None:
        notes = [*notes, f"the file gives no draft length: K = {K} is its most accepted"]
    rounds, accepted = int(counts.sum()), int(counts @ np.arange(len(counts)))
    padded = np.pad(counts, (0, K + 1))[: K + 1]
    by_depth = {} if block else by_length([(0, K, padded)], 1)
    return PooledCounts(
        origin_of(source), requests, rounds, None, accepted, mean_of(rounds, accepted), PER_STEP,
        per_request, by_depth, max(by_depth, default=None),
        {"acceptance by depth": block} if block else {}, notes=tuple(notes),
    )  # fmt: skip
