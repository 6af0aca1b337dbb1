"""SGLang's adaptive file: one number of steps for each batch size.

Each slot has one candidate, so that nothing adapts which was not replayed.

Reference: python/sglang/srt/speculative/adaptive_spec_params.py and adaptive_step_router.py.
"""

import json
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any

from simspec.exports.choice import Schedule
from simspec.exports.documents import (
    check_fields,
    check_integer,
    check_list,
    check_number,
    check_option,
    flag_line,
    parse_json,
    shown,
)
from simspec.exports.request import Format, Request, Settings
from simspec.exports.sglang import chain_flags

KIND = "SGLang adaptive config"
STEPS, STRATEGY = "candidate_steps", "strategy"
DRAFTERS, ALGORITHMS = {"eagle": "EAGLE"}, ("EAGLE", "EAGLE3")
INTEGERS = {"update_interval": 1, "warmup_batches": 0}
NUMBERS = {
    "ema_alpha": (0.0, 1.0),
    "up_hysteresis": (-256.0, 256.0),
    "down_hysteresis": (-256.0, 256.0),
    "ceiling_coeff": (0.0, 256.0),
}
SCALARS = (*INTEGERS, *NUMBERS)


def export(request: Request) -> str:
    """The JSON of `--speculative-adaptive-config`.

    ValueError for an algorithm under which SGLang switches adaptive steps off with a warning.
    """
    check_option(request.method(DRAFTERS, "SGLang's adaptive mode"), "--method", ALGORITHMS)
    slots = {str(low): {STEPS: [steps]} for low, _, steps in request.schedule.steps}
    return json.dumps({"ema_alpha": 0.2, "update_interval": 5, "warmup_batches": 10} | slots) + "\n"


def flags(request: Request, file: str) -> str:
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


def validate(text: str, settings: Settings) -> None:
    """ValueError, one line, for what SGLang refuses, or changes without a word.

    | SGLang would | refused here |
    | --- | --- |
    | refuse | no integer key; candidate_steps that are no list of integers from 0 on |
    | ignore | unknown keys, such as steps, up, down; candidate_steps beside the integer keys |
    | sort and shorten | candidates out of order, or twice |
    | read as an integer | true among the candidates, "01" as a key |
    | give batches below the first key its slot | a first key other than 1 |
    | divide by zero | an update_interval of 0 |
    | never move | an ema_alpha of 0 |
    """
    read(text)


def read(text: str, start: int | None = None) -> dict[str, Any]:
    """The configuration; ValueError as `validate`.

    start: --speculative-num-steps, which has to be a candidate.
    """
    config = parse_json(text, KIND)
    if not isinstance(config, dict):
        raise ValueError(f"{KIND} is {shown(config)}, expected an object")
    keys = [key for key in config if key.isdecimal()]
    if not keys:
        raise ValueError(f"{KIND} has no batch size as a key, expected one such as '1'")
    if STEPS in config:
        raise ValueError(f"{STEPS} is given at the top level, where it is ignored: move it")
    check_fields(config, KIND, (), (*keys, *SCALARS, STRATEGY))
    check_option(config.get(STRATEGY, "ema"), STRATEGY, ("ema",))
    _check_scalars(config, "")
    for key in keys:
        if key != str(int(key)) or not key.isascii():
            raise ValueError(f"key {shown(key)} is no plain integer: write {int(key)}")
        slot = check_fields(config[key], f"slot {key}", (STEPS,), SCALARS)
        _check_steps(slot[STEPS], f"slot {key}: {STEPS}")
        _check_scalars(slot, f"slot {key}: ")
    if (first := min(map(int, keys))) != 1:
        raise ValueError(f"the first batch size is {first}, expected 1: smaller batches use it")
    candidates = sorted({step for key in keys for step in config[key][STEPS]})
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
    return list(config[str(key)][STEPS])


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


FORMATS = (
    Format(
        "sglang-adaptive",
        export,
        validate,
        (
            "SGLang's own adaptation: each batch size has one candidate",
            "batches between two captured graph sizes, which use the slot of the larger",
            "set-ups that switch it off with a warning: DP attention, multi-layer EAGLE and others",
        ),
        flags=flags,
    ),
)
