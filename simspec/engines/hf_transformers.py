"""HuggingFace transformers: keys of a GenerationConfig, the assistant's or the target's.

Reference: generation/configuration_utils.py and candidate_generator.py of transformers.
"""

import json
from typing import Any

from simspec.engines.counts import origin_of
from simspec.engines.documents import (
    check_fields,
    check_integer,
    check_number,
    check_option,
    parse_json,
    shown,
)
from simspec.engines.import_kinds import BatchTier, EngineSettings, adaptive_tier, constant_length
from simspec.engines.request import ExportFormat, Request, Settings, confidence_threshold
from simspec.engines.source import ImportFormat, ImportOptions, Source
from simspec.policies import parse
from simspec.policies.engines import hf_heuristic
from simspec.policies.thresholds import confidence
from simspec.policy.policy import Policy

KIND = "GenerationConfig"
TOKENS, SCHEDULE, THRESHOLD = (
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "assistant_confidence_threshold",
)
LOOKUP, NGRAM = "prompt_lookup_num_tokens", "max_matching_ngram_size"
SCHEDULES = ("constant", "heuristic", "heuristic_transient")
DRAFTERS = {"model": "assistant", "prompt_lookup": "prompt_lookup"}
METHODS = ("assistant", "prompt_lookup")


def export(request: Request) -> str:
    """The JSON of generation_config.json: of the assistant, or of the target for prompt lookup.

    | policy | key |
    | --- | --- |
    | fixed:K | num_assistant_tokens, or prompt_lookup_num_tokens |
    | confidence:P | assistant_confidence_threshold: the token below it is submitted |
    | hf_heuristic:N | num_assistant_tokens_schedule |

    ValueError for another policy, or a drafter that is neither.
    """
    method = request.method(DRAFTERS, "transformers")
    check_option(method, "--method", METHODS)
    if method == "prompt_lookup":
        return _json({LOOKUP: request.length, NGRAM: request.settings.ngram})
    if (heuristic := _heuristic(request)) is not None:
        start, schedule = heuristic
        return _json({TOKENS: start, SCHEDULE: schedule, THRESHOLD: 0.0})
    limit = confidence_threshold(request, inclusive=True, engine="transformers")
    threshold, length = (0.0, request.length) if limit is None else limit
    return _json({TOKENS: length, SCHEDULE: "constant", THRESHOLD: threshold})


def validate(text: str, settings: Settings) -> None:
    """ValueError, one line, for what transformers refuses, or changes without a word.

    | transformers would | refused here |
    | --- | --- |
    | use its default, 0.4 | no assistant_confidence_threshold |
    | use its default, which changed between versions | no num_assistant_tokens, no schedule |
    | keep without effect | unknown keys |
    | run as constant | an unknown schedule |
    | ignore the assistant | keys of prompt lookup next to those of an assistant |
    | refuse when it decodes | lengths and n-gram sizes below 1 |
    | convert | 4.9 tokens |
    """
    read(text)


def read(text: str) -> dict[str, Any]:
    """The keys; ValueError as `validate`."""
    config = parse_json(text, KIND)
    if not isinstance(config, dict):
        raise ValueError(f"{KIND} is {shown(config)}, expected an object")
    assistant, lookup = (TOKENS, SCHEDULE, THRESHOLD), (LOOKUP, NGRAM)
    if set(config) & set(assistant) and set(config) & set(lookup):
        raise ValueError(
            f"{LOOKUP} or {NGRAM} is given with keys of an assistant, which are ignored: "
            "write two files"
        )
    if set(config) & set(lookup):
        check_fields(config, KIND, lookup)
        for name in lookup:
            check_integer(config[name], name, 1)
        return config
    check_fields(config, KIND, assistant)
    check_integer(config[TOKENS], TOKENS, 1)
    check_option(config[SCHEDULE], SCHEDULE, SCHEDULES)
    check_number(config[THRESHOLD], THRESHOLD, 0, 1)
    return config


def _heuristic(request: Request) -> tuple[int, str] | None:
    name = request.choice.policies[0]
    if not name.startswith("hf_heuristic:"):
        return None
    policy = parse(name)
    assert isinstance(policy, Policy)
    kind = "heuristic" if policy.scope == "stream" else "heuristic_transient"
    return int(policy.state0[0]), kind


def _json(config: dict[str, Any]) -> str:
    return json.dumps(config, indent=1) + "\n"


def import_settings(source: Source, options: ImportOptions) -> EngineSettings:
    """Keys of a GenerationConfig: a fixed length, a threshold, or the heuristic."""
    config = read(source.text)
    if LOOKUP in config:
        return constant_length(origin_of(source), "prompt_lookup", config[LOOKUP])
    length, threshold = config[TOKENS], config[THRESHOLD]
    schedule, policy = config[SCHEDULE], ""
    notes: tuple[str, ...] = ()
    if schedule == "constant":
        if not threshold:
            return constant_length(origin_of(source), "assistant", length)
        policy = confidence(threshold, K=length).name
    elif not threshold:
        policy = hf_heuristic(length, transient=schedule == "heuristic_transient").name
    else:
        notes = (f"{schedule} and a threshold at once: no policy here does both",)
    tier = adaptive_tier(length, policy) if policy else BatchTier(1, None, (length,))
    return EngineSettings(origin_of(source), "assistant", (tier,), notes)


EXPORTS = (
    ExportFormat(
        "transformers",
        export,
        validate,
        ("the threshold's own adaptation: with scikit-learn transformers moves it as it decodes",),
        engine="transformers",
    ),
)
IMPORTS = (ImportFormat("transformers", import_settings),)
