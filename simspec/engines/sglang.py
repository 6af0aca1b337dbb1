"""SGLang's settings: flags of a chain of drafts, and the adaptive file of steps by batch size.

Reference: python/sglang/srt/server_args.py and speculative/adaptive_spec_params.py of SGLang.
"""

import json
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from simspec.engines.choice import Schedule
from simspec.engines.counts import origin_of
from simspec.engines.documents import (
    check_fields,
    check_integer,
    check_list,
    check_number,
    check_option,
    check_text,
    parse_json,
    shown,
)
from simspec.engines.flags import flag_integer, flag_line, read_flags
from simspec.engines.import_kinds import BatchTier, EngineSettings, constant_length, fixed_tier
from simspec.engines.request import ExportFormat, Request, Settings
from simspec.engines.source import ImportFormat, ImportOptions, Source
from simspec.policies.engines import ema_tiers

KIND = "SGLang flags"
ALGORITHM = "--speculative-algorithm"
MODEL = "--speculative-draft-model-path"
STEPS, TOPK, TOKENS = (
    "--speculative-num-steps",
    "--speculative-eagle-topk",
    "--speculative-num-draft-tokens",
)
BREADTH, LORA = "--speculative-ngram-max-bfs-breadth", "--uno-lora-path"
ALIASES = {"--speculative-draft-model": MODEL}
DRAFTERS = {"eagle": "EAGLE", "model": "STANDALONE", "prompt_lookup": "NGRAM"}
WITH_MODEL = ("EAGLE3", "STANDALONE", "DFLASH")
TARGETS_OWN = ("EAGLE", "NEXTN", "FROZEN_KV_MTP", "DSPARK")
"""Algorithms whose weights may be part of the target; they take a model too."""

BLOCKS = ("DFLASH", "DSPARK")
"""Algorithms that draft a block in one step."""

ALGORITHMS = (*WITH_MODEL, *TARGETS_OWN, "NGRAM", "UNO")

ADAPTIVE_KIND = "SGLang adaptive config"
CANDIDATES, STRATEGY = "candidate_steps", "strategy"
ADAPTIVE_DRAFTERS, ADAPTIVE_ALGORITHMS = {"eagle": "EAGLE"}, ("EAGLE", "EAGLE3")
INTEGERS = {"update_interval": 1, "warmup_batches": 0}
NUMBERS = {
    "ema_alpha": (0.0, 1.0),
    "up_hysteresis": (-256.0, 256.0),
    "down_hysteresis": (-256.0, 256.0),
    "ceiling_coeff": (0.0, 256.0),
}
SCALARS = (*INTEGERS, *NUMBERS)


def export(request: Request) -> str:
    """The flags, on one line; ValueError for a drafter that SGLang has no algorithm for."""
    return flag_line(chain_flags(request, request.length))


def chain_flags(request: Request, steps: int) -> dict[str, object]:
    """{flag: value} of a chain of `steps` drafted tokens; SGLang counts the root as a token."""
    algorithm = request.method(DRAFTERS, "SGLang")
    flags: dict[str, object] = {ALGORITHM: algorithm}
    if algorithm in (*WITH_MODEL, "EAGLE"):
        flags[MODEL] = request.model(algorithm)
    elif algorithm in TARGETS_OWN and request.settings.model:
        flags[MODEL] = request.settings.model
    if algorithm == "NGRAM":
        return flags | {TOKENS: steps + 1, BREADTH: 1}
    if algorithm in BLOCKS:
        return flags | {TOKENS: steps + 1}
    if algorithm == "UNO":
        raise ValueError("UNO needs --uno-lora-path, which no option here names: write it by hand")
    return flags | {STEPS: steps, TOPK: 1, TOKENS: steps + 1}


def validate(text: str, settings: Settings) -> None:
    """ValueError, one line, for what SGLang refuses, or changes without a word.

    | SGLang would | refused here |
    | --- | --- |
    | refuse | unknown flags and algorithms, values that are no integers, no draft model |
    | overwrite | draft tokens of a chain other than steps + 1 |
    | cut | a tree's tokens above topk + (steps - 1) topk^2 + 1 |
    | keep the last | a flag that comes twice |
    | choose its own | one of steps, topk and draft tokens left out where the algorithm reads it |
    | draft a tree 10 wide | NGRAM without a breadth |
    | overwrite by 1 | steps and topk of an algorithm that drafts a block |
    | never load | a draft model of NGRAM and UNO |
    """
    read(text)


def read(text: str) -> tuple[str, int, int, int]:
    """(algorithm, drafted levels, topk, draft tokens); ValueError as `validate`."""
    optional = (STEPS, TOPK, MODEL, BREADTH, LORA)
    flags = read_flags(text, KIND, (ALGORITHM, TOKENS), optional, aliases=ALIASES)
    algorithm = check_option(flags[ALGORITHM], ALGORITHM, ALGORITHMS)
    _check_drafter(flags, algorithm)
    if algorithm in (*BLOCKS, "NGRAM") or algorithm == "UNO" and flags.get(TOPK, "1") == "1":
        return _read_block(flags, algorithm)
    if missing := [name for name in (STEPS, TOPK) if name not in flags]:
        raise ValueError(f"{KIND}: {missing[0]} is missing: add it")
    steps, topk, tokens = (flag_integer(flags, name, 1) for name in (STEPS, TOPK, TOKENS))
    if topk == 1 and tokens != steps + 1:
        raise ValueError(
            f"{TOKENS} is {tokens} and {STEPS} {steps}, expected {steps + 1}: the root counts, "
            "and SGLang would overwrite it"
        )
    most = topk + (steps - 1) * topk**2 + 1
    if tokens > most:
        raise ValueError(
            f"{TOKENS} is {tokens}, expected at most {most}: topk {topk} and {steps} steps have "
            "no more nodes"
        )
    return algorithm, steps, topk, tokens


def _check_drafter(flags: Mapping[str, str], algorithm: str) -> None:
    if algorithm in WITH_MODEL or algorithm in TARGETS_OWN and MODEL in flags:
        check_text(flags.get(MODEL), MODEL)
    elif MODEL in flags:
        raise ValueError(f"{MODEL} is {shown(flags[MODEL])}, but {algorithm} loads none: drop it")
    for name, owner in ((BREADTH, "NGRAM"), (LORA, "UNO")):
        if name in flags and algorithm != owner:
            raise ValueError(f"{name} belongs to {owner}, and {algorithm} ignores it: drop it")
    if algorithm == "UNO":
        check_text(flags.get(LORA), LORA)


def _read_block(flags: Mapping[str, str], algorithm: str) -> tuple[str, int, int, int]:
    """The result of `read` for algorithms without steps: the root is one of the draft tokens."""
    tokens = flag_integer(flags, TOKENS, 2)
    for name in (STEPS, TOPK):
        if name in flags and (algorithm == "NGRAM" or flags[name] != "1"):
            raise ValueError(
                f"{name} is {shown(flags[name])}, and {algorithm} reads its length from {TOKENS}: "
                "drop it"
            )
    if algorithm == "NGRAM":
        if BREADTH not in flags:
            raise ValueError(f"{BREADTH} is missing, and SGLang would draft a tree 10 wide: add 1")
        if (breadth := flag_integer(flags, BREADTH, 1)) > 1:
            return algorithm, -(-tokens // breadth), breadth, tokens
    return algorithm, tokens - 1, 1, tokens


def export_adaptive(request: Request) -> str:
    """The JSON of `--speculative-adaptive-config`.

    ValueError for an algorithm under which SGLang switches adaptive steps off with a warning.
    """
    check_option(
        request.method(ADAPTIVE_DRAFTERS, "SGLang's adaptive mode"), "--method", ADAPTIVE_ALGORITHMS
    )
    slots = {str(low): {CANDIDATES: [steps]} for low, _, steps in request.schedule.steps}
    return json.dumps({"ema_alpha": 0.2, "update_interval": 5, "warmup_batches": 10} | slots) + "\n"


def adaptive_flags(request: Request, file: str) -> str:
    """The flags that go with the file."""
    steps = start_steps(request.schedule)
    switch: dict[str, object] = {
        "--speculative-adaptive": True,
        "--speculative-adaptive-config": file,
    }
    return flag_line(chain_flags(request, steps) | switch).strip()


def start_steps(schedule: Schedule) -> int:
    """--speculative-num-steps: the longest candidate, which SGLang sizes its buffers for."""
    return schedule.longest


def validate_adaptive(text: str, settings: Settings) -> None:
    """ValueError, one line, for what SGLang refuses, or changes without a word.

    | SGLang would | refused here |
    | --- | --- |
    | refuse | no integer key; candidate_steps that are no list of integers from 0 on |
    | ignore | unknown keys, such as steps, up, down; candidate_steps next to the integer keys |
    | sort and shorten | candidates out of order, or twice |
    | read as an integer | true among the candidates, "01" as a key |
    | give batches below the first key its slot | a first key other than 1 |
    | divide by zero | an update_interval of 0 |
    | never move | an ema_alpha of 0 |
    """
    read_adaptive(text)


def read_adaptive(text: str, start: int | None = None) -> dict[str, Any]:
    """The configuration; ValueError as `validate_adaptive`.

    start: --speculative-num-steps, which has to be a candidate.
    """
    config = parse_json(text, ADAPTIVE_KIND)
    if not isinstance(config, dict):
        raise ValueError(f"{ADAPTIVE_KIND} is {shown(config)}, expected an object")
    keys = [key for key in config if key.isdecimal()]
    if not keys:
        raise ValueError(f"{ADAPTIVE_KIND} has no batch size as a key, expected one such as '1'")
    if CANDIDATES in config:
        raise ValueError(f"{CANDIDATES} is given at the top level, where it is ignored: move it")
    check_fields(config, ADAPTIVE_KIND, (), (*keys, *SCALARS, STRATEGY))
    check_option(config.get(STRATEGY, "ema"), STRATEGY, ("ema",))
    _check_scalars(config, "")
    for key in keys:
        if key != str(int(key)) or not key.isascii():
            raise ValueError(f"key {shown(key)} is no plain integer: write {int(key)}")
        slot = check_fields(config[key], f"slot {key}", (CANDIDATES,), SCALARS)
        _check_steps(slot[CANDIDATES], f"slot {key}: {CANDIDATES}")
        _check_scalars(slot, f"slot {key}: ")
    if (first := min(map(int, keys))) != 1:
        raise ValueError(f"the first batch size is {first}, expected 1: smaller batches use it")
    candidates = sorted({step for key in keys for step in config[key][CANDIDATES]})
    if start is not None and start not in candidates:
        raise ValueError(
            f"--speculative-num-steps is {start}, expected one of the candidates {candidates}"
        )
    return config


def steps_at(
    config: dict[str, Any], batch: int, captured: Sequence[int] | None = None
) -> list[int]:
    """The candidates at that batch size, padded up to the next captured graph size.

    Keys are lower bounds.
    """
    sizes = sorted(captured or ())
    place = bisect_left(sizes, batch)
    padded = sizes[place] if place < len(sizes) else batch
    keys = sorted(int(key) for key in config if key.isdecimal())
    key = keys[max(0, bisect_right(keys, padded) - 1)]
    return list(config[str(key)][CANDIDATES])


def _check_scalars(held: dict[str, Any], where: str) -> None:
    for name, least in INTEGERS.items():
        if name in held:
            check_integer(held[name], where + name, least)
    for name, (low, high) in NUMBERS.items():
        if name in held:
            check_number(held[name], where + name, low, high)
    if held.get("ema_alpha") == 0:
        raise ValueError(f"{where}ema_alpha is 0, expected more: the mean would never move")


def _check_steps(steps: Any, name: str) -> None:
    values = [
        check_integer(step, f"{name}[{i}]", 0) for i, step in enumerate(check_list(steps, name))
    ]
    if any(a >= b for a, b in zip(values, values[1:])):
        raise ValueError(f"{name} is {shown(values)}, expected growing integers")


START = (
    "--speculative-num-steps is not in the file: ema_tiers starts at the middle candidate, where "
    "SGLang does unless that flag names another"
)


def import_flags(source: Source, options: ImportOptions) -> EngineSettings:
    """Steps of a chain; of a tree, the steps, and no policy."""
    if options.drafted is not None:
        raise ValueError(f"--drafted is {options.drafted}, but flags say their steps: leave it out")
    algorithm, steps, topk, tokens = read(source.text)
    if topk == 1:
        return constant_length(origin_of(source), algorithm, steps)
    note = f"a tree of {tokens - 1} nodes, {topk} wide: simspec trees compares trees"
    return EngineSettings(origin_of(source), algorithm, (BatchTier(1, None, (steps,)),), (note,))


def import_adaptive(source: Source, options: ImportOptions) -> EngineSettings:
    """Candidate steps by batch size; several of them are the policy `ema_tiers`."""
    config = read_adaptive(source.text)
    firsts = sorted(int(key) for key in config if key.isdecimal())
    tiers = tuple(
        _slot(first, last, config | config[str(first)])
        for first, last in zip(firsts, [*(first - 1 for first in firsts[1:]), None])
    )
    notes = ["batch sizes are padded to the next captured graph size before the slot is chosen"]
    if any(len(tier.lengths) > 1 for tier in tiers):
        notes.append(START)
    if any(not tier.policy for tier in tiers):
        notes.append("ceiling_coeff is on: no policy here has that limit")
    return EngineSettings(origin_of(source), "", tiers, tuple(notes))


def _slot(first: int, last: int | None, slot: Mapping[str, Any]) -> BatchTier:
    steps = slot[CANDIDATES]
    if len(steps) == 1:
        return fixed_tier(first, last, steps[0])
    policy = ""
    if not slot.get("ceiling_coeff"):
        policy = ema_tiers(
            "/".join(map(str, steps)),
            weight=slot.get("ema_alpha", 0.2),
            interval=slot.get("update_interval", 5),
            warmup=slot.get("warmup_batches", 10),
            down=slot.get("down_hysteresis", -0.25),
            up=slot.get("up_hysteresis", 0.0),
        ).name
    return BatchTier(first, last, tuple(steps), policy)


EXPORTS = (
    ExportFormat(
        "sglang",
        export,
        validate,
        ("NGRAM matches the text of all requests, where a recording's lookup reads its own alone",),
        engine="sglang",
    ),
    ExportFormat(
        "sglang-adaptive",
        export_adaptive,
        validate_adaptive,
        (
            "SGLang's own adaptation: each batch size has one candidate",
            "batches between two captured graph sizes, which use the slot of the larger",
            "set-ups that switch it off with a warning: DP attention, multi-layer EAGLE, two-batch "
            "overlap, pdmux, platform workers",
            "the overlap scheduler, SGLang's default: a decision comes one round later",
        ),
        flags=adaptive_flags,
        engine="sglang",
    ),
)
IMPORTS = (ImportFormat("sglang-adaptive", import_adaptive),)
