"""speculation_profile.json 1.0: acceptance at one draft length, accepted lengths at others."""

from dataclasses import replace

import numpy as np

from simspec.imports.kinds import PooledCounts
from simspec.imports.options import ImportFormat, ImportOptions
from simspec.imports.source import Fields, Source, json_rows
from simspec.imports.totals import PER_STEP, check_figure, of_emitted_lengths, origin_of

VERSION = "1.0"
CONSISTENT = 0.02
"""Largest difference of 1 + sum of marginals from the mean length, as the profile's own check."""

LENGTHS, HISTOGRAM = "accept_length_by_k", "acceptance_length_histogram"
MEAN, MARGINALS = "mean_accept_length", "marginal_accept_rates"
DERIVED = (
    "accept_length_model is chain_analytic: accepted lengths of other K are computed from the "
    "acceptance at one K, not measured"
)


def read_profile(source: Source, options: ImportOptions) -> PooledCounts:
    """The counts of the profile's histogram, else its rates, and the lengths measured at other K.

    Accepted lengths by K count where accept_length_model is measured_per_k.
    """
    rows = json_rows(source.text)
    if len(rows) != 1:
        raise ValueError(f"{len(rows)} objects, expected the one of a speculation profile")
    return of_profile(source, options, rows[0])


def of_profile(source: Source, options: ImportOptions, row: Fields) -> PooledCounts:
    """The content of a profile's object; ValueError for figures that contradict each other."""
    if row.name("schema_version") != VERSION:
        raise row.error("schema_version", row.values["schema_version"], VERSION)
    if row.values.get("measured") is not True:
        raise ValueError("the profile says that it was not measured: it holds a stub's figures")
    _check_validation(row)
    K = row.whole("num_speculative_tokens", 1)
    if options.drafted not in (None, K):
        raise ValueError(f"--drafted is {options.drafted}, the profile's K is {K}: leave it out")
    block = ""
    if row.values.get("verification_method") == "block":
        block = "blocks are accepted as a whole: acceptance has no depth"
    result = _acceptance(source, row, K, block)
    measured, withheld = _lengths(row, K)
    per_request = f"{MEAN}_per_request"
    if type(row.values.get("per_category")) is dict and row.values["per_category"]:
        notes = (*result.notes, "left out: means of each category")
    else:
        notes = result.notes
    return replace(
        result,
        length_per_request=row.number(per_request) if per_request in row else None,
        draft_length=K,
        withheld={**result.withheld, **withheld},
        lengths=measured,
        notes=notes,
    )


def _acceptance(source: Source, row: Fields, K: int, block: str) -> PooledCounts:
    if HISTOGRAM in row:
        result = of_emitted_lengths(source, ImportOptions(drafted=K), row, HISTOGRAM, block)
        assert result.length is not None
        check_figure(row, MEAN, result.length)
        if MARGINALS in row and not block:
            (counts,) = result.by_depth.values()
            rates, rounds = row.numbers(MARGINALS), counts.tried[0, 0]
            given = counts.accepted[0] / rounds
            if len(rates) != K or np.abs(given - rates).max() > CONSISTENT:
                raise row.error(MARGINALS, rates, f"{given.round(4).tolist()} by the histogram")
        return result
    length = row.number(MEAN)
    withheld, marginals = {"rounds": "the profile gives rates without counts: no intervals"}, {}
    if block:
        withheld["acceptance by depth"] = block
    else:
        marginals[K] = _marginals(row, K, length)
    return PooledCounts(
        origin_of(source), length=length, length_means=PER_STEP, withheld=withheld,
        marginals=marginals,
    )  # fmt: skip


def _marginals(row: Fields, K: int, length: float) -> tuple[float, ...]:
    rates = np.array(row.numbers(MARGINALS))
    if len(rates) != K or (np.diff(rates, prepend=1) > 1e-6).any():
        raise row.error(MARGINALS, rates.tolist(), f"{K} shares that never rise")
    if abs(1 + rates.sum() - length) > CONSISTENT * length:
        raise ValueError(
            f"1 + the marginals is {1 + rates.sum():.4f}, mean_accept_length {length:.4f}: "
            "expected them equal within 2%; conditional rates or a shorter K may be there"
        )
    return tuple(map(float, rates))


def _lengths(row: Fields, K: int) -> tuple[dict[int, float], dict[str, str]]:
    """({K: accepted length that was measured}, what is withheld)."""
    if LENGTHS not in row:
        return {}, {}
    table = row.inner(LENGTHS)
    if not all(key.isascii() and key.isdigit() and len(key) < 4 for key in table.values):
        raise row.error(LENGTHS, table.values, "accepted lengths keyed by K")
    lengths = {int(key): table.number(key) for key in table.values}
    if K in lengths:
        check_figure(row, MEAN, lengths[K])
    model = row.name("accept_length_model")
    if model == "measured_per_k":
        return lengths, {}
    if model != "chain_analytic":
        raise row.error("accept_length_model", model, "measured_per_k or chain_analytic")
    return {}, {"accepted lengths of other K": DERIVED} if {*lengths} - {K} else {}


def _check_validation(row: Fields) -> None:
    """ValueError where the profile's own check did not pass."""
    checks = row.values.get("validation")
    for name, found in checks.items() if type(checks) is dict else ():
        if type(found) is dict and found.get("passed") is False:
            raise ValueError(
                f"the profile's own check {str(name)[:40]!r} did not pass: its figures contradict "
                "each other"
            )


FORMATS = (ImportFormat("speculation-profile", read_profile),)
