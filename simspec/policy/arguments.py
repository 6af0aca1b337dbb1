"""Arguments of built-in policies: their checks, and the name that reads back as the policy."""

from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any

from simspec.cost.model import CostModel
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


def planned_seconds(policy: str, cost: CostModel, K: int) -> list[float]:
    """Seconds of a round that drafts 0..K tokens, without a backlog: a table of one cost a length.

    seconds[k] = overhead + draft[k] + verify[k]. PolicyError where the costs end before K or a
    round is free.
    """
    if K > cost.K:
        raise PolicyError(
            f"cost {cost.name!r} prices drafts up to {cost.K}, {policy} plans up to {K}: "
            "measure further"
        )
    seconds = [cost.overhead + float(cost.draft[k] + cost.verify[k]) for k in range(K + 1)]
    if min(seconds) <= 0:
        raise PolicyError(
            f"cost {cost.name!r}: a round of {seconds.index(min(seconds))} drafted tokens is free, "
            f"{policy} divides by its seconds: measure verification"
        )
    return seconds


def within_depth(policy: str, lengths: Sequence[int], K: int) -> list[int]:
    """The lengths that drafts reach; PolicyError if none is left."""
    kept = [length for length in lengths if length <= K]
    if not kept:
        raise PolicyError(
            f"{policy} drafts {lengths[0]} tokens or more, here drafts reach {K}: "
            "take shorter lengths"
        )
    return kept
