"""vLLM's settings: speculative_config, its lengths by batch size, its synthetic acceptance.

Reference: vllm/config/speculative.py and vllm/v1/spec_decode/dynamic/utils.py of vLLM.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from simspec.engines.choice import CAPTURED, Schedule
from simspec.engines.counts import of_marginals, of_mean, origin_of
from simspec.engines.documents import (
    check_fields,
    check_integer,
    check_list,
    check_number,
    check_option,
    check_survival,
    check_text,
    parse_json,
    shown,
)
from simspec.engines.draft_acceptance import acceptance_at
from simspec.engines.import_kinds import EngineSettings, PooledCounts, fixed_tier
from simspec.engines.request import MEASURED, ExportFormat, Request, Settings
from simspec.engines.source import ImportFormat, ImportOptions, Source

KIND = "vLLM speculative_config"
LENGTH, BY_BATCH = "num_speculative_tokens", "num_speculative_tokens_per_batch_size"
NGRAM = ("prompt_lookup_min", "prompt_lookup_max")
DRAFTERS = {"model": "draft_model", "eagle": "eagle", "medusa": "medusa", "prompt_lookup": "ngram"}
WITH_MODEL = (
    "draft_model", "eagle", "eagle3", "medusa", "mlp_speculator", "dflash", "custom_class",
)  # fmt: skip
TARGETS_OWN = ("mtp", "dspark")
"""Methods whose weights may be part of the target; they take a model too."""

PROMPT_LOOKUP = ("ngram", "ngram_gpu")
METHODS = (*WITH_MODEL, *TARGETS_OWN, *PROMPT_LOOKUP, "suffix")
SAMPLING = "rejection_sample_method"
RATES, MEAN = "synthetic_acceptance_rates", "synthetic_acceptance_length"
DIGITS = 6
TRIMS = "enable_adaptive_verification"
FREE = (TRIMS, "draft_sample_method", "draft_tensor_parallel_size", "parallel_drafting", "revision")
"""Optional keys that leave the draft length as it is, or are named in the import's notes."""


def export(request: Request) -> str:
    """The JSON of `--speculative-config`; ValueError for a drafter that vLLM has no method for."""
    schedule = request.schedule
    config = drafter_config(request) | {LENGTH: schedule.longest}
    if not schedule.single:
        config[BY_BATCH] = batch_ranges(schedule)
    return json.dumps(config) + "\n"


def drafter_config(request: Request) -> dict[str, Any]:
    """The keys that name the drafter."""
    method = request.method(DRAFTERS, "vLLM")
    config: dict[str, Any] = {"method": method}
    if method in WITH_MODEL:
        config["model"] = request.model(method)
    elif method in TARGETS_OWN and request.settings.model:
        config["model"] = request.settings.model
    if method in PROMPT_LOOKUP:
        config |= dict(zip(NGRAM, (request.settings.least_ngram, request.settings.ngram)))
    return config


def batch_ranges(schedule: Schedule) -> list[list[int]]:
    """[[first batch size, last, draft length]], without gaps."""
    return [list(step) for step in schedule.steps]


def validate(text: str, settings: Settings) -> None:
    """ValueError, one line, for what vLLM refuses, or changes without a word.

    | vLLM would | refused here |
    | --- | --- |
    | refuse | ranges that are empty, overlap, do not start at 1; lengths below 0; unknown keys |
    | clamp | a length above num_speculative_tokens |
    | let a gap inherit the range before it | a gap |
    | sort | ranges out of order |
    | convert | true, "3" and 3.7 as integers |
    | run without a CUDA graph | a range whose last size x (length + 1) exceeds the captured rows |
    """
    read(text, settings.captured)


def read(text: str, captured: int = CAPTURED) -> dict[str, Any]:
    """The configuration; ValueError as `validate`."""
    config = parse_json(text, KIND)
    check_fields(config, KIND, (LENGTH,), ("method", "model", BY_BATCH, SAMPLING, *NGRAM, *FREE))
    check_option(config.get(SAMPLING, "standard"), SAMPLING, ("standard", "block"))
    check_drafter(config)
    if BY_BATCH in config:
        if method_of(config) == "suffix":
            raise ValueError(f"{BY_BATCH} does not go with method suffix, which has no fixed K")
        _check_ranges(config[BY_BATCH], config[LENGTH], captured)
    return dict(config)


def check_drafter(config: dict[str, Any]) -> None:
    """ValueError unless the keys that name the drafter, and its longest draft, agree."""
    check_integer(config[LENGTH], LENGTH, 1)
    method = check_option(method_of(config), "method", METHODS)
    if method in WITH_MODEL or method in TARGETS_OWN and "model" in config:
        check_text(config.get("model"), "model")
    elif "model" in config:
        raise ValueError(f"model is {shown(config['model'])}, but method {method} loads none")
    _check_free(config, method)
    if method in PROMPT_LOOKUP:
        given = [check_integer(config[name], name, 1) for name in NGRAM if name in config]
        low, high = given[0] if given else 5, given[-1] if given else 5  # as vLLM fills them up
        if low > high:
            raise ValueError(f"{NGRAM[0]} is {low}, expected at most {NGRAM[1]}, {high}")
    elif names := [name for name in NGRAM if name in config]:
        raise ValueError(f"{names[0]} belongs to method ngram, and {method} ignores it")


def method_of(config: Mapping[str, Any]) -> Any:
    """The method; vLLM takes a missing one as draft_model."""
    return config.get("method", "draft_model")


def _check_free(config: Mapping[str, Any], method: str) -> None:
    for name in (TRIMS, "parallel_drafting"):
        check_option(config.get(name, False), name, (False, True))
    check_option(
        config.get("draft_sample_method", "greedy"), "draft_sample_method",
        ("greedy", "probabilistic"),
    )  # fmt: skip
    check_integer(config.get("draft_tensor_parallel_size", 1), "draft_tensor_parallel_size", 1)
    check_text(config.get("revision", "main"), "revision")
    if config.get(TRIMS) and method in (*PROMPT_LOOKUP, "suffix", "custom_class"):
        raise ValueError(f"{TRIMS} needs a drafter with logits, and method {method} has none")


def length_at(config: dict[str, Any], batch: int) -> int:
    """The draft length that vLLM uses at that batch size: larger batches inherit the last range."""
    ranges = config.get(BY_BATCH)
    if ranges is None:
        return int(config[LENGTH])
    started = [length for low, _, length in ranges if low <= batch]
    return int(min(config[LENGTH], started[-1]))


def lengths_by_batch(ranges: Any, longest: int, batch: int) -> list[int]:
    """[0, draft length of 1 request, .., of `batch` requests]; beyond the ranges as in the last.

    ValueError, one line, for ranges that `validate` refuses.
    """
    _check_ranges(ranges, longest, captured=0)
    lengths = [0]
    for _, last, length in ranges:
        lengths += [length] * (min(last, batch) + 1 - len(lengths))
    return lengths + [lengths[-1]] * (batch + 1 - len(lengths))


def _check_ranges(ranges: Any, longest: int, captured: int) -> None:
    end = 0
    for i, entry in enumerate(check_list(ranges, BY_BATCH)):
        name = f"{BY_BATCH}[{i}]"
        low, high, length = (
            check_integer(value, f"{name}[{j}]", least)
            for j, (value, least) in enumerate(zip(check_list(entry, name, 3), (1, 1, 0)))
        )
        if low > high:
            raise ValueError(f"{name} starts at {low}, after its end {high}")
        if low != end + 1:
            was = "a gap takes the length before it" if low > end + 1 else "ranges must not overlap"
            raise ValueError(f"{name} starts at {low}, expected {end + 1}: {was}")
        if length > longest:
            raise ValueError(
                f"{name} drafts {length}, and vLLM would clamp it to {LENGTH}, {longest}"
            )
        if captured and length and high * (length + 1) > captured:
            raise ValueError(
                f"{name} needs {high} x {length + 1} rows, and graphs are captured up to "
                f"{captured}: shorten it"
            )
        end = high


def export_synthetic(request: Request) -> str:
    """The JSON of `--speculative-config` with the marginal acceptance measured at that length."""
    length = request.length
    marginals = acceptance_at(request.evidence.traces.values(), length).marginals
    config = drafter_config(request) | {
        LENGTH: length,
        SAMPLING: "synthetic",
        RATES: [round(rate, DIGITS) for rate in marginals],
    }
    return json.dumps(config) + "\n"


def validate_synthetic(text: str, settings: Settings) -> None:
    """ValueError, one line, for what vLLM refuses, or changes without a word.

    | vLLM would | refused here |
    | --- | --- |
    | refuse | another number of rates than the length, shares outside [0, 1], growing shares |
    | refuse | rates and a mean length together, or neither |
    | sample as usual | another rejection_sample_method |
    | convert | true and "0.5" as shares |
    | use one length's shares at others | a schedule by batch size |
    """
    read_synthetic(text)


def read_synthetic(text: str) -> dict[str, Any]:
    """The configuration; ValueError as `validate_synthetic`."""
    config = parse_json(text, KIND)
    if isinstance(config, dict) and BY_BATCH in config:
        raise ValueError(
            f"{BY_BATCH} does not go with synthetic acceptance: shares hold for one length"
        )
    check_fields(config, KIND, (LENGTH, SAMPLING), ("method", "model", *NGRAM, *FREE, RATES, MEAN))
    check_drafter(config)
    check_option(config[SAMPLING], SAMPLING, ("synthetic",))
    if (RATES in config) == (MEAN in config):
        raise ValueError(f"expected exactly one of {RATES} and {MEAN}")
    if RATES in config:
        check_survival(config[RATES], RATES, config[LENGTH])
    else:
        check_number(config[MEAN], MEAN, 1, config[LENGTH] + 1)
    return dict(config)


def import_settings(source: Source, options: ImportOptions) -> EngineSettings:
    """The draft length of `--speculative-config`, by batch size where it has a list."""
    config = read(source.text, captured=0)
    ranges, method = config.get(BY_BATCH), method_of(config)
    notes = [] if ranges is None else ["vLLM keeps the last range's length at larger batch sizes"]
    ranges = ranges or [(1, None, config[LENGTH])]
    tiers = tuple(fixed_tier(low, high, length) for low, high, length in ranges)
    if config.get(TRIMS):
        tiers = tuple(replace(tier, policy="") for tier in tiers)
        notes.append(f"{TRIMS} verifies a part of each draft: no policy here does so")
    return EngineSettings(origin_of(source), method, tiers, tuple(notes))


def import_synthetic(source: Source, options: ImportOptions) -> PooledCounts:
    """Marginal rates of `rejection_sample_method: synthetic`, or the mean length alone."""
    config = read_synthetic(source.text)
    K = int(config[LENGTH])
    if RATES in config:
        return of_marginals(source, K, config[RATES])
    return of_mean(source, K, float(config[MEAN]), MEAN)


EXPORTS = (
    ExportFormat(
        "vllm",
        export,
        validate,
        (
            "batches larger than the last range: vLLM uses the last range's length",
            "data parallel sizes above 1, where vLLM ignores the batch sizes",
            "piecewise CUDA graphs: a schedule by batch size forces them under the V1 model runner",
            "devices of compute capability 10.x, whose largest graph holds 1024 rows: --captured",
            "what a length of 0 costs in vLLM (vllm#49548 reports a collapse)",
        ),
        engine="vllm",
    ),
    ExportFormat(
        "vllm-synthetic",
        export_synthetic,
        validate_synthetic,
        ("dependence between rounds: the engine draws each round's acceptance alone",),
        MEASURED,
    ),
)
IMPORTS = (
    ImportFormat("vllm", import_settings), ImportFormat("vllm-synthetic", import_synthetic),
)  # fmt: skip
