"""Model-Optimizer: speculation_profile.json 1.0, and acceptance_rate.json.

Reference: speculation_profile.py of Model-Optimizer (#2247).
"""

import json
from dataclasses import replace
from typing import Any

import numpy as np

from simspec.engines.counts import PER_STEP, check_figure, of_emitted_lengths, origin_of
from simspec.engines.documents import (
    Fields,
    check_fields,
    check_integer,
    check_list,
    check_number,
    check_option,
    check_survival,
    check_text,
    json_rows,
    parse_json,
    shown,
)
from simspec.engines.draft_acceptance import DraftAcceptance, acceptance_at
from simspec.engines.import_kinds import PooledCounts
from simspec.engines.request import MEASURED, ExportFormat, Request, Settings
from simspec.engines.source import ImportFormat, ImportOptions, Source

KIND = "speculation_profile.json"
VERSION, TOLERANCE, DIGITS = "1.0", 0.02, 6
DRAFTERS = {"model": "draft_model", "prompt_lookup": "ngram"}
ROUNDING = 2e-6
"""The most by which two figures of one count differ after rounding."""

MODELS, VERIFICATIONS = ("chain_analytic", "measured_per_k"), ("longest_prefix", "block")
KEYS = (
    "schema_version", "measured", "method", "draft_checkpoint", "target_model",
    "num_speculative_tokens", "block_size", "max_supported_k", "verification_method",
    "conditional_accept_rates", "marginal_accept_rates", "mean_accept_length",
    "mean_accept_length_per_request", "accept_length_model", "accept_length_by_k",
    "acceptance_length_histogram", "per_category", "measurement_conditions", "validation",
)  # fmt: skip


def export(request: Request) -> str:
    """The profile at the request's draft length, with accepted lengths measured at every K."""
    traces, length = request.evidence.traces, request.length
    if length > request.evidence.K:
        raise ValueError(f"the draft length is {length}, expected at most {request.evidence.K}")
    by_length = {k: acceptance_at(traces.values(), k) for k in range(1, request.evidence.K + 1)}
    first, drafter = next(iter(traces.values())).meta, request.evidence.drafter
    conditions = {
        "source": "replay of recorded acceptance by simspec",
        "rule": first.rule,
        "temperature": first.temperature,
        "prompts": sum(trace.sequences for trace in traces.values()),
        "recorded_on": sorted({trace.meta.device for trace in traces.values()}),
        "dtype": sorted({trace.meta.dtype for trace in traces.values()}),
    }
    return profile_text(
        profile(
            by_length,
            length,
            request.settings.method or DRAFTERS.get(drafter, drafter),
            request.settings.model,
            request.evidence.target,
            conditions,
        )
    )


def profile(
    by_length: dict[int, DraftAcceptance],
    length: int,
    method: str,
    draft: str | None,
    target: str,
    conditions: dict[str, Any],
) -> dict[str, Any]:
    """The profile of the acceptance at draft length `length`, with that at all others."""
    chosen = by_length[length]
    marginals, mean = _rounded(chosen.marginals), round(chosen.mean_length, DIGITS)
    implied = round(1 + sum(marginals), DIGITS)
    tasks = {name: chosen.of_task(name) for name in sorted(set(chosen.tasks))}
    delta = round(abs(implied - mean), DIGITS)
    values = (
        VERSION, True, method, None if draft is None else {"id": draft}, {"id": target},
        length, None, max(by_length), "longest_prefix",
        _rounded(chosen.conditionals), marginals, mean,
        round(chosen.mean_length_by_sequence, DIGITS), "measured_per_k",
        {str(k): round(at.mean_length, DIGITS) for k, at in sorted(by_length.items())},
        {str(i + 1): int(n) for i, n in enumerate(chosen.histogram)},
        {
            name: {"mean_accept_length": round(of.mean_length, DIGITS)}
            for name, of in tasks.items()
            if of.counts.any()
        },
        conditions,
        {
            "mean_consistency": {
                "implied_mean_accept_length": implied, "reported_mean_accept_length": mean,
                "abs_delta": delta, "tolerance": TOLERANCE, "passed": delta <= TOLERANCE,
            },
            "marginal_monotonicity": {"passed": True, "violations": []},
        },
    )  # fmt: skip
    return dict(zip(KEYS, values))


def profile_text(data: dict[str, Any]) -> str:
    """The profile as the file's text; `read_profile` returns it again."""
    return json.dumps(data, indent=1) + "\n"


def validate(text: str, settings: Settings) -> None:
    """ValueError, one line, for a profile that its readers refuse, or misread.

    | a reader would | refused here |
    | --- | --- |
    | refuse | other keys, versions and types |
    | take one convention for the other | conditional rates whose products are not the marginals |
    | understate the drafter | a mean that the marginals do not add up to (tolerance 0.02) |
    | shift lengths | a histogram whose mean, or whose marginals, are others |
    | draft beyond what was trained | a K above max_supported_k |
    | extrapolate | accept_length_by_k without some K, where measured_per_k is claimed |
    | trust a failed check | validation that did not pass, or that says other figures |
    """
    read(text)


def read(text: str) -> dict[str, Any]:
    """The measured profile of a file; ValueError as `validate`."""
    data = check_fields(parse_json(text, KIND), KIND, KEYS)
    check_option(data["schema_version"], "schema_version", (VERSION,))
    check_option(data["measured"], "measured", (True,))
    check_text(data["method"], "method")
    for name in ("draft_checkpoint", "target_model", "per_category", "measurement_conditions"):
        if not (data[name] is None or isinstance(data[name], dict)):
            raise ValueError(f"{name} is {shown(data[name])}, expected an object or null")
    check_option(data["verification_method"], "verification_method", VERIFICATIONS)
    length = check_integer(data["num_speculative_tokens"], "num_speculative_tokens", 1, 255)
    most = check_integer(data["max_supported_k"], "max_supported_k", length)
    if data["block_size"] is not None:
        check_integer(data["block_size"], "block_size", 1)
    mean = check_number(data["mean_accept_length"], "mean_accept_length", 1, length + 1)
    check_number(
        data["mean_accept_length_per_request"], "mean_accept_length_per_request", 1, length + 1
    )
    _check_rates(data, length, mean)
    _check_lengths(data, length, most, mean)
    _check_histogram(data, length, mean)
    _check_validation(data, mean)
    return data


def _check_rates(data: dict[str, Any], length: int, mean: float) -> None:
    marginals = check_survival(data["marginal_accept_rates"], "marginal_accept_rates", length)
    name, before = "conditional_accept_rates", 1.0
    rates = check_list(data[name], name, length)
    for i, (rate, marginal) in enumerate(zip(rates, marginals)):
        product = before * check_number(rate, f"{name}[{i}]", 0, 1)
        if abs(product - marginal) > ROUNDING:
            raise ValueError(
                f"{name}[{i}] is {rate:g}, expected {marginal:g} / {before:g}: given that all "
                "before are accepted"
            )
        before = marginal
    if abs(1 + sum(marginals) - mean) > TOLERANCE:
        raise ValueError(
            f"mean_accept_length is {mean:g}, expected 1 + the marginals, {1 + sum(marginals):g}"
        )


def _check_lengths(data: dict[str, Any], length: int, most: int, mean: float) -> None:
    model = check_option(data["accept_length_model"], "accept_length_model", MODELS)
    name, lengths = "accept_length_by_k", data["accept_length_by_k"]
    if not isinstance(lengths, dict):
        raise ValueError(f"{name} is {shown(lengths)}, expected an object")
    every = [str(k) for k in range(1, most + 1)]
    for key, value in lengths.items():
        if key not in every:
            raise ValueError(f"{name} has the key {shown(key)}, expected 1 to {most}")
        check_number(value, f"{name}[{key}]", 1, int(key) + 1)
    one = model != "measured_per_k" or set(lengths) == {str(length)}
    needed = [str(length)] if one else every  # Model-Optimizer measures one K of DFlash or n-grams
    if missing := [key for key in needed if key not in lengths]:
        raise ValueError(f"{name} lacks K = {missing[0]}, which {model} promises: measure it")
    if abs(lengths[str(length)] - mean) > ROUNDING:
        raise ValueError(
            f"{name}[{length}] is {lengths[str(length)]:g}, expected the mean, {mean:g}"
        )


def _check_histogram(data: dict[str, Any], length: int, mean: float) -> None:
    name, histogram = "acceptance_length_histogram", data["acceptance_length_histogram"]
    if not isinstance(histogram, dict):
        raise ValueError(f"{name} is {shown(histogram)}, expected an object")
    every = [str(k) for k in range(1, length + 2)]
    for key, count in histogram.items():
        if key not in every:
            raise ValueError(f"{name} has the key {shown(key)}, expected 1 to {length + 1}")
        check_integer(count, f"{name}[{key}]", 0)
    rounds = sum(histogram.values())
    if not rounds:
        raise ValueError(f"{name} counts no round, expected those that were measured")
    counted = sum(int(key) * count for key, count in histogram.items()) / rounds
    if abs(counted - mean) > ROUNDING:
        raise ValueError(f"{name} has the mean {counted:g}, expected {mean:g}")
    for i, marginal in enumerate(data["marginal_accept_rates"]):
        share = sum(n for key, n in histogram.items() if int(key) >= i + 2) / rounds
        if abs(share - marginal) > ROUNDING:
            raise ValueError(
                f"{name} has {share:g} of rounds of length {i + 2} or more, expected "
                f"marginal_accept_rates[{i}], {marginal:g}"
            )


def _check_validation(data: dict[str, Any], mean: float) -> None:
    held = check_fields(
        data["validation"], "validation", ("mean_consistency", "marginal_monotonicity")
    )
    names = ("implied_mean_accept_length", "reported_mean_accept_length", "abs_delta", "tolerance")
    where = "validation.mean_consistency"
    found = check_fields(held["mean_consistency"], where, (*names, "passed"))
    implied = 1 + sum(data["marginal_accept_rates"])
    for name, value in zip(names, (implied, mean, abs(implied - mean), TOLERANCE)):
        if abs(check_number(found[name], f"{where}.{name}", 0) - value) > ROUNDING:
            raise ValueError(f"{where}.{name} is {found[name]:g}, expected {value:g}")
    check_option(found["passed"], f"{where}.passed", (True,))
    where = "validation.marginal_monotonicity"
    monotone = check_fields(held["marginal_monotonicity"], where, ("passed", "violations"))
    check_option(monotone["passed"], f"{where}.passed", (True,))
    check_list(monotone["violations"], f"{where}.violations", 0)


def _rounded(rates: list[float]) -> list[float]:
    return [round(rate, DIGITS) for rate in rates]


LENGTHS, HISTOGRAM = "accept_length_by_k", "acceptance_length_histogram"
MEAN, MARGINALS = "mean_accept_length", "marginal_accept_rates"
DERIVED = (
    "accept_length_model is chain_analytic: accepted lengths of other K are computed from the "
    "acceptance at one K, not measured"
)


def import_profile(source: Source, options: ImportOptions) -> PooledCounts:
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
    _check_passed(row)
    K = row.whole("num_speculative_tokens", 1)
    if options.drafted not in (None, K):
        raise ValueError(f"--drafted is {options.drafted}, the profile's K is {K}: leave it out")
    block = ""
    if row.values.get("verification_method") == "block":
        block = "blocks are accepted as a whole: acceptance has no depth"
    result = _acceptance(source, row, K, block)
    measured, withheld = _measured_lengths(row, K)
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
            if len(rates) != K or np.abs(given - rates).max() > TOLERANCE:
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
    if abs(1 + rates.sum() - length) > TOLERANCE * length:
        raise ValueError(
            f"1 + the marginals is {1 + rates.sum():.4f}, mean_accept_length {length:.4f}: "
            "expected them equal within 2%; conditional rates or a shorter K may be there"
        )
    return tuple(map(float, rates))


def _measured_lengths(row: Fields, K: int) -> tuple[dict[int, float], dict[str, str]]:
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


def _check_passed(row: Fields) -> None:
    """ValueError where the profile's own check did not pass."""
    checks = row.values.get("validation")
    for name, found in checks.items() if type(checks) is dict else ():
        if type(found) is dict and found.get("passed") is False:
            raise ValueError(
                f"the profile's own check {str(name)[:40]!r} did not pass: its figures contradict "
                "each other"
            )


def read_model_optimizer(source: Source, options: ImportOptions) -> PooledCounts:
    """Either file; the rates of acceptance_rate.json are not read, its histogram is.

    Conditional_Acceptance_Rate skips lengths that never occur, and its first entry is the bonus.
    """
    rows = json_rows(source.text)
    if len(rows) != 1:
        raise ValueError(
            f"{len(rows)} objects, expected one: Model-Optimizer appends each run to "
            "the file, keep the lines of one"
        )
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


EXPORTS = (ExportFormat("speculation-profile", export, validate, limits=MEASURED),)
IMPORTS = (
    ImportFormat("model-optimizer", read_model_optimizer, ("drafted",)),
    ImportFormat("speculation-profile", import_profile),
)
