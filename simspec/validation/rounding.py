"""Printed numbers as intervals, and functions of them."""

from collections.abc import Callable
from itertools import product
from typing import Any

Range = tuple[float, float]


def rounding(text: str) -> Range:
    """The closed interval of numbers that print as this text: half a unit of its last digit."""
    half = 0.5 * 10.0 ** -len(text.partition(".")[2])
    return float(text) - half, float(text) + half


def range_of(function: Callable[..., Any], *texts: str) -> Range:
    """(least, greatest) value of a function of printed numbers.

    The function must be monotone in each argument whatever the others are: its extremes lie at
    corners of the box.
    """
    values = [float(function(*corner)) for corner in product(*map(rounding, texts))]
    return min(values), max(values)
