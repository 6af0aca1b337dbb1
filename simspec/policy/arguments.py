"""Arguments of built-in policies: their checks, and the name that reads back as the policy."""

from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any

from simspec.policy.policy import PolicyError


def check_number(policy: str, name: str, value: Any, low: float, high: float) -> None:
    """PolicyError, one line, unless the value is a number in [low, high]."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not low <= value <= high:
        raise PolicyError(f"{policy}: {name} is {value!r}, expected a number in [{low}, {high}]")


def check_integer(policy: str, name: str, value: Any, low: int, high: int) -> None:
    """PolicyError, one line, unless the value is an integer in low..high."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise PolicyError(f"{policy}: {name} is {value!r}, expected an integer in {low}..{high}")


def check_flag(policy: str, name: str, value: Any) -> None:
    """PolicyError, one line, unless the value is a bool."""
    if not isinstance(value, bool):
        raise PolicyError(f"{policy}: {name} is {value!r}, expected true or false")


def check_option(policy: str, name: str, value: Any, options: Sequence[str]) -> None:
    """PolicyError, one line, unless the value is one of the options."""
    if value not in options:
        raise PolicyError(f"{policy}: {name} is {value!r}, expected one of {', '.join(options)}")


def check_lengths(policy: str, name: str, value: Any, low: int = 0) -> tuple[int, ...]:
    """Draft lengths from a string such as 1/3/5/7; PolicyError unless they ascend in low..255."""
    parts = str(value).split("/")
    lengths = tuple(int(part) for part in parts if part.isascii() and part.isdigit())
    ascending = all(a < b for a, b in zip(lengths, lengths[1:]))
    if len(lengths) < len(parts) or not ascending or lengths[0] < low or lengths[-1] > 255:
        raise PolicyError(
            f"{policy}: {name} is {value!r}, expected ascending lengths in {low}..255 such as 1/3/5"
        )
    return lengths


def check_scope(policy: str, value: Any) -> None:
    """PolicyError, one line, unless the value is a policy's scope."""
    check_option(policy, "scope", value, ("sequence", "stream"))


def policy_name(policy: str, settings: dict[str, Any], factory: Callable[..., Any]) -> str:
    """policy:key=value,... of the settings that differ from the factory's defaults."""
    changed = changed_settings(settings, factory)
    return f"{policy}:{','.join(changed)}" if changed else policy


def changed_settings(settings: dict[str, Any], factory: Callable[..., Any]) -> list[str]:
    """key=value of each setting that differs from the factory's default."""
    defaults = signature(factory).parameters
    return [
        f"{key}={str(value).lower() if isinstance(value, bool) else value}"
        for key, value in settings.items()
        if value != defaults[key].default
    ]


def threshold_name(policy: str, threshold: float, changed: Sequence[str]) -> str:
    """policy:threshold,key=value,...; the threshold in its shortest exact form."""
    short = f"{threshold:g}" if float(f"{threshold:g}") == threshold else repr(threshold)
    return ",".join([f"{policy}:{short}", *changed])
