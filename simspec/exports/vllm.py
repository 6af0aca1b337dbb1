"""vLLM: speculative_config with one draft length, or one for each range of batch sizes.

Reference: vllm/config/speculative.py and vllm/v1/spec_decode/dynamic/utils.py of vLLM.
"""

import json
from typing import Any

from simspec.exports.choice import CAPTURED, Schedule
from simspec.exports.documents import (
    check_fields,
    check_integer,
    check_list,
    check_option,
    check_text,
    parse_json,
    shown,
)
from simspec.exports.request import Format, Request, Settings

KIND = "vLLM speculative_config"
LENGTH, BY_BATCH = "num_speculative_tokens", "num_speculative_tokens_per_batch_size"
NGRAM = ("prompt_lookup_min", "prompt_lookup_max")
DRAFTERS = {"model": "draft_model", "eagle": "eagle", "medusa": "medusa", "prompt_lookup": "ngram"}
WITH_MODEL = ("draft_model", "eagle", "eagle3", "medusa", "mlp_speculator", "dflash", "dspark")
METHODS = (*WITH_MODEL, "ngram", "mtp", "suffix")


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
    if method == "ngram":
        config |= dict(zip(NGRAM, (1, request.settings.ngram)))
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
    check_fields(config, KIND, ("method", LENGTH), ("model", BY_BATCH, *NGRAM))
    check_drafter(config)
    if BY_BATCH in config:
        if config["method"] == "suffix":
            raise ValueError(f"{BY_BATCH} does not go with method suffix, which has no fixed K")
        _check_ranges(config[BY_BATCH], config[LENGTH], captured)
    return dict(config)


def check_drafter(config: dict[str, Any]) -> None:
    """ValueError unless the keys that name the drafter, and its longest draft, agree."""
    check_integer(config[LENGTH], LENGTH, 1)
    method = check_option(config["method"], "method", METHODS)
    if method in WITH_MODEL:
        check_text(config.get("model"), "model")
    elif "model" in config:
        raise ValueError(f"model is {shown(config['model'])}, but method {method} loads none")
    if method == "ngram":
        low, high = (check_integer(config.get(name), name, 1) for name in NGRAM)
        if low > high:
            raise ValueError(f"{NGRAM[0]} is {low}, expected at most {NGRAM[1]}, {high}")
    elif given := [name for name in NGRAM if name in config]:
        raise ValueError(f"{given[0]} belongs to method ngram, and {method} ignores it")


def length_at(config: dict[str, Any], batch: int) -> int:
    """The draft length that vLLM uses at that batch size: larger batches inherit the last range."""
    ranges = config.get(BY_BATCH)
    if ranges is None:
        return int(config[LENGTH])
    started = [length for low, _, length in ranges if low <= batch]
    return int(min(config[LENGTH], started[-1]))


def _check_ranges(ranges: Any, longest: int, captured: int) -> None:
    end = 0
    for i, entry in enumerate(check_list(ranges, BY_BATCH)):
        name = f"{BY_BATCH}[{i}]"
        low, high, length = (
            check_integer(value, f"{name}[{j}]", least)
            for j, (value, least) in enumerate(zip(check_list(entry, name, 3), (1, 1, 0)))
        )
        if low > high:
            raise ValueError(f"{name} starts at {low}, behind its end {high}")
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


FORMATS = (
    Format(
        "vllm",
        export,
        validate,
        (
            "batches larger than the last range: vLLM uses the last range's length",
            "data parallel sizes above 1, where vLLM ignores the batch sizes",
            "what a length of 0 costs in vLLM (vllm#49548 reports a collapse)",
        ),
    ),
)
