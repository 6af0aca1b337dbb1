"""vLLM's synthetic acceptance: measured shares of one draft length, in place of a drafter's.

Reference: vllm/config/speculative.py of vLLM, rejection_sample_method.
"""

import json
from typing import Any

from simspec.exports import vllm
from simspec.exports.documents import (
    check_fields,
    check_number,
    check_option,
    check_survival,
    parse_json,
)
from simspec.exports.draft_acceptance import acceptance_at
from simspec.exports.request import MEASURED, Format, Request, Settings
from simspec.exports.vllm import LENGTH, NGRAM

KIND = "vLLM speculative_config"
SAMPLING = "rejection_sample_method"
RATES, MEAN = "synthetic_acceptance_rates", "synthetic_acceptance_length"
DIGITS = 6


def export(request: Request) -> str:
    """The JSON of `--speculative-config` with the marginal acceptance measured at that length."""
    length = request.length
    marginals = acceptance_at(request.evidence.traces.values(), length).marginals
    config = vllm.drafter_config(request) | {
        LENGTH: length,
        SAMPLING: "synthetic",
        RATES: [round(rate, DIGITS) for rate in marginals],
    }
    return json.dumps(config) + "\n"


def validate(text: str, settings: Settings) -> None:
    """ValueError, one line, for what vLLM refuses, or changes without a word.

    | vLLM would | refused here |
    | --- | --- |
    | refuse | another number of rates than the length, shares outside [0, 1], growing shares |
    | refuse | rates and a mean length together, or neither |
    | sample as usual | another rejection_sample_method |
    | convert | true and "0.5" as shares |
    | use one length's shares at others | a schedule by batch size |
    """
    read(text)


def read(text: str) -> dict[str, Any]:
    """The configuration; ValueError as `validate`."""
    config = parse_json(text, KIND)
    required = ("method", LENGTH, SAMPLING)
    if isinstance(config, dict) and vllm.BY_BATCH in config:
        raise ValueError(
            f"{vllm.BY_BATCH} does not go with synthetic acceptance: shares hold for one length"
        )
    check_fields(config, KIND, required, ("model", *NGRAM, RATES, MEAN))
    vllm.check_drafter(config)
    check_option(config[SAMPLING], SAMPLING, ("synthetic",))
    if (RATES in config) == (MEAN in config):
        raise ValueError(f"expected exactly one of {RATES} and {MEAN}")
    if RATES in config:
        check_survival(config[RATES], RATES, config[LENGTH])
    else:
        check_number(config[MEAN], MEAN, 1, config[LENGTH] + 1)
    return dict(config)


FORMATS = (
    Format(
        "vllm-synthetic",
        export,
        validate,
        ("dependence between rounds: the engine draws each round's acceptance alone",),
        MEASURED,
    ),
)
