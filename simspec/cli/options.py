"""Limits of options, checked before anything is read or allocated."""

from collections.abc import Callable
from typing import Any

import typer

LONGEST_DRAFT = 255
"""Tokens of a draft: recordings hold lengths in a byte."""
MOST_REPLICATES = 10_000
MOST_THREADS = 256
MOST_BATCH = 1 << 16
MOST_CONTEXT = 1 << 24
MOST_PROMPTS = 1_000_000
MOST_REPEATS = 10_000
MOST_ROWS = 1 << 40


def at_most(most: int, advice: str = "give a smaller number") -> Callable[..., Any]:
    """An option's check, before anything is read or allocated: ValueError for a number above."""

    def check(param: typer.CallbackParam, value: Any) -> Any:
        for number in value if isinstance(value, list | tuple) else [value]:
            if isinstance(number, int) and number > most:
                raise ValueError(
                    f"{param.opts[0]} is {str(number)[:40]}, expected at most {most}: {advice}"
                )
        return value

    return check


def check_seed(seed: int) -> int:
    """An option's check: ValueError for a seed that no draw can have."""
    from simspec.numerics import rng

    rng.check_seed(seed)
    return seed
