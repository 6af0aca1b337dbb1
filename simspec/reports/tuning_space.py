"""Which arguments of which policies are tuned, and between which values."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simspec.policies.thompson import READINGS
from simspec.policy import PolicyError

DIGITS = 3
"""Significant digits of tuned numbers: what a user would type."""


@dataclass(frozen=True)
class Real:
    """A number between two others, by its logarithm where `log`."""

    low: float
    high: float
    log: bool = False

    @property
    def bounds(self) -> tuple[float, float]:
        """Of the optimizer's coordinate."""
        return (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)

    whole = False

    def value(self, x: float) -> float:
        """The argument at this coordinate, rounded to DIGITS."""
        number = float(f"{math.exp(x) if self.log else x:.{DIGITS}g}")
        return min(max(number, self.low), self.high)

    def coordinate(self, value: Any) -> float:
        """The inverse of `value`."""
        return math.log(value) if self.log else float(value)


@dataclass(frozen=True)
class Option:
    """One of a few values, in an order of their own."""

    values: tuple[Any, ...]
    whole = True

    @property
    def bounds(self) -> tuple[float, float]:
        """Of the optimizer's coordinate, a place in `values`."""
        return 0.0, len(self.values) - 1.0

    def value(self, x: float) -> Any:
        """The argument at this coordinate."""
        return self.values[int(round(x))]

    def coordinate(self, value: Any) -> float:
        """The inverse of `value`."""
        return float(self.values.index(value))


Argument = Real | Option
_SHARE = Real(0.01, 0.99)
_PRIOR = Real(0.05, 20, log=True)
_FLAG = Option((False, True))
_SCOPE = Option(("sequence", "stream"))
_LENGTHS = Option(("1/2", "1/2/3/4", "1/3", "1/3/5", "1/3/5/7", "0/1/2/4", "2/4/6", "2/4/8"))
_ROUNDS = Option((1, 2, 5, 10, 20, 50))

SPACES: Mapping[str, Mapping[str, Argument]] = {
    "fixed": {"k": Option(tuple(range(17)))},
    "beta_ts": {"reading": Option(READINGS), "alpha0": _PRIOR, "beta0": _PRIOR, "scope": _SCOPE},
    "cali_ts": {
        "reading": Option(("draft_share", "validated", "literal")),
        "sigma_m": Real(0.01, 10, log=True), "sigma_s": Real(0.01, 10, log=True), "theta0": _SHARE,
    },
    "sampling_only": {
        "reading": Option(("draft_share", "validated", "literal")),
        "sigma_s": Real(0.01, 10, log=True), "theta0": _SHARE,
    },
    "cost_ts": {
        "variant": Option(("shared", "depth")), "alpha0": _PRIOR, "beta0": _PRIOR,
        "decay": Real(0.3, 1.0), "greedy": _FLAG, "scope": _SCOPE,
    },
    "confidence": {"threshold": _SHARE, "inclusive": _FLAG},
    "entropy": {"threshold": Real(0.02, 6, log=True), "inclusive": _FLAG},
    "product": {
        "threshold": _SHARE, "shortest": Option((1, 2, 3, 4)), "inclusive": _FLAG,
    },
    "specdec_pp": {
        "threshold": _SHARE, "variant": Option(("paper", "released")),
        "shortest": Option((1, 2, 3, 4)),
    },
    "draft_verify": {
        "threshold": _SHARE, "target": _SHARE, "step": Real(0.001, 0.3, log=True), "scope": _SCOPE,
    },
    "adaedl": {
        "threshold": _SHARE, "target": _SHARE, "step": Real(0.001, 0.3, log=True),
        "g": Real(0.02, 1, log=True), "scope": _SCOPE,
    },
    "hf_heuristic": {"start": Option(tuple(range(1, 21))), "transient": _FLAG},
    "adaptive_confidence": {
        "threshold": _SHARE, "weight": Real(0.1, 10, log=True), "samples": _ROUNDS,
        "scope": _SCOPE,
    },
    "ema_tiers": {
        "tiers": _LENGTHS, "weight": Real(0.02, 1, log=True), "interval": _ROUNDS,
        "warmup": Option((0, 5, 10, 20)), "down": Real(-0.5, 0.5), "up": Real(-0.5, 0.5),
        "scope": _SCOPE,
    },
    "throughput_aware": {
        "variant": Option(("released", "geometric")), "lengths": Option(_LENGTHS.values[:5]),
        "window": _ROUNDS, "interval": _ROUNDS, "scope": _SCOPE,
    },
    "goodput": {
        "price": Option(("measured", "released")), "weight": Real(0.02, 1, log=True),
        "prior": _SHARE, "window": _ROUNDS, "cooldown": Option((0, 2, 5, 10)),
        "shortest": Option((0, 1)), "scope": _SCOPE,
    },
    "kill_switch": {
        "k": Option(tuple(range(1, 9))), "window": Option((5, 10, 20, 50, 100)),
        "threshold": _SHARE, "scope": _SCOPE,
    },
    "in_a_row": {
        "n": Option((1, 2, 3, 5, 8, 11, 16)), "shortest": Option((0, 1, 2)),
        "longest": Option((2, 3, 4, 6, 8, 255)), "bias": Option((0, 1, 2)), "scope": _SCOPE,
    },
    "ucb": {"arms": _LENGTHS, "exploration": Real(0.001, 8, log=True), "scope": _SCOPE},
    "exp3": {"arms": _LENGTHS, "rate": Real(0.05, 20, log=True), "scope": _SCOPE},
    "tapout": {
        "confidence": _SHARE, "exploration": Real(0.001, 8, log=True), "blend": _SHARE,
        "scope": _SCOPE,
    },
}  # fmt: skip
"""{policy: {argument: where it is looked for}}; arguments that name features or caps are kept."""

REQUIRED: Mapping[str, Mapping[str, Any]] = {"fixed": {"k": 3}, "confidence": {"threshold": 0.4}}
"""What stands for the default of arguments that have none."""


def space_of(name: str) -> Mapping[str, Argument]:
    """What is tuned of the policy of this name; PolicyError, one line, where there is nothing."""
    if name not in SPACES:
        raise PolicyError(
            f"policy {name!r} has nothing to tune, expected one of {', '.join(SPACES)}"
        )
    return SPACES[name]
