"""Cali-TS's constants, and those of its sampling side, chosen on one half of the prompts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simspec.cost.model import CostModel
from simspec.policies.calibrated import READINGS, cali_ts, theta_weight
from simspec.policy.policy import Policy
from simspec.policy.predictor import fit_predictor, split_by_task
from simspec.replay.replay import replay
from simspec.reports.regimes import RATIOS
from simspec.trace.trace import Trace

FITTED = "fitted"
"""The scalar predictor that is fitted to the half that constants are chosen on."""
STEP = 4.0
"""Factor between neighbors of an axis, and of its widening."""
ROUNDS = tuple(STEP**i for i in range(-3, 4))
SIGMA_S = tuple(0.25 * STEP**i for i in (-1, 0, 1))
THETA0 = (0.0, 0.25, 0.5, 0.75, 1.0)
WIDEST = STEP**8
"""An axis is not widened beyond this factor of its middle."""

Array = NDArray[np.float64]
Prompt = tuple[bytes, int]
"""A prompt's tokens, and how many of a recording before it have the same: one cluster."""


@dataclass(frozen=True, order=True)
class Constants:
    """Constants of Cali-TS; rounds = sigma_s^2 / sigma_m^2 are what theta_M is worth.

    After n verified rounds theta_M weighs rounds / (rounds + n); 0 rounds: sampling alone.
    """

    reading: str
    rounds: float
    sigma_s: float
    theta0: float

    @property
    def sigma_m(self) -> float:
        """sigma_s / sqrt(rounds), three digits."""
        return float(f"{self.sigma_s / self.rounds**0.5:.3g}")

    def policy(self, predictor: Any) -> Policy:
        """Cali-TS with these constants, or its sampling side."""
        if not self.rounds:
            return cali_ts(self.reading, sigma_s=self.sigma_s, theta0=self.theta0, side="sampling")
        return cali_ts(self.reading, predictor, self.sigma_m, self.sigma_s, self.theta0)

    def steps(self) -> float:
        """Steps from the least committed setting: one round, sigma_s 1/4, theta_0 1/2."""
        apart = abs(np.log(self.rounds)) if self.rounds else 0.0
        apart += abs(np.log(self.sigma_s / 0.25))
        return float(apart / np.log(STEP) + abs(self.theta0 - 0.5) / 0.25)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, with sigma_m and the weight of theta_M by round."""
        named: dict[str, Any] = {
            "reading": self.reading,
            "sigma_s": self.sigma_s,
            "theta0": self.theta0,
        }
        if not self.rounds:
            return named
        return named | {
            "sigma_m": self.sigma_m,
            "rounds": self.rounds,
            "weight": weights(self.sigma_m, self.sigma_s),
        }


def weights(sigma_m: float, sigma_s: float) -> dict[int, float]:
    """{verified rounds n: weight of theta_M in mu}, Eq. 6; 1 - weight is that of theta-hat."""
    return {n: float(theta_weight(n, sigma_m**2, sigma_s**2)) for n in WEIGHT_ROUNDS}


WEIGHT_ROUNDS = (0, 1, 2, 5, 10, 20, 50, 100)


@dataclass(frozen=True)
class ConstantsSearch:
    """Constants that a search chose; speedups are geometric means over recordings and prices.

    | field | meaning |
    | --- | --- |
    | predictor | a recorded feature, FITTED, or '' for sampling alone |
    | best | the constants of the greatest speedup on the prompts chosen on |
    | chosen | the least committed of those within one standard error of the best |
    | error | that standard error of the log speedup, by prompt |
    | axes | what was searched, after widening |
    | inside | whether rounds and sigma_s lie inside their axes and theta_0 inside (0, 1) |
    | settings | how many were replayed |
    """

    predictor: str
    best: Constants
    chosen: Constants
    speedup_best: float
    speedup_chosen: float
    error: float
    axes: Mapping[str, Sequence[Any]]
    inside: bool
    settings: int

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "predictor": self.predictor,
            "best": self.best.to_dict() | {"speedup": self.speedup_best},
            "chosen": self.chosen.to_dict() | {"speedup": self.speedup_chosen},
            "standard_error": self.error,
            "axes": {name: list(values) for name, values in self.axes.items()},
            "inside": self.inside,
            "settings": self.settings,
        }


@dataclass(frozen=True)
class _Half:
    """The prompts of one recording that constants are chosen on."""

    trace: Trace
    predictor: Any
    prompts: tuple[Prompt, ...]
    prices: tuple[CostModel, ...]


def predictors(trace: Trace) -> list[str]:
    """Sources of theta_M in a recording: recorded features, and FITTED."""
    names = [name for name, _ in trace.meta.features]
    fitted = [FITTED] if {"confidence", "entropy"} <= set(names) and trace.ratio is None else []
    return [*(name for name in names if name.startswith("theta")), *fitted]


def search(
    traces: Mapping[str, Trace],
    predictor: str,
    replicates: int = 2,
    seed: int = 0,
    progress: Callable[[int], None] = lambda settings: None,
) -> ConstantsSearch:
    """The constants of one predictor on every second prompt of each task, at the papers' prices.

    Scored by the mean log speedup over the recordings and c in RATIOS, verification flat. An
    axis on whose end the choice lies is widened. Of constants within one standard error of the
    best the least committed is taken (Breiman et al. 1984, section 3.4.3), see `Constants.steps`.
    ValueError where no recording has the predictor.
    """
    halves = [_half(t, predictor) for t in traces.values() if predictor in (*predictors(t), "")]
    if not halves:
        raise ValueError(f"no recording has {predictor!r}, expected one with confidence, entropy")
    axes: dict[str, tuple[Any, ...]] = {
        "reading": READINGS,
        "rounds": ROUNDS if predictor else (0.0,),
        "sigma_s": SIGMA_S,
        "theta0": THETA0,
    }
    found: dict[Constants, tuple[float, Array]] = {}
    while True:
        for constants in (Constants(*values) for values in product(*axes.values())):
            if constants not in found:
                found[constants] = _score(constants, halves, replicates, seed)
                progress(len(found))
        best = max(found, key=lambda constants: found[constants][0])
        chosen, error = _least_committed(found, best)
        wider = _widened(axes, chosen)
        if wider == axes:
            break
        axes = wider
    return ConstantsSearch(
        predictor,
        best,
        chosen,
        float(np.exp(found[best][0])),
        float(np.exp(found[chosen][0])),
        error,
        axes,
        _inside(axes, chosen),
        len(found),
    )


def _half(trace: Trace, predictor: str) -> _Half:
    fit, _ = split_by_task(trace)
    half = trace.select(fit)
    prompts: list[Prompt] = []
    for a, b in zip(half.prompt_offset, half.prompt_offset[1:]):
        tokens = half.prompt[a:b].tobytes()
        prompts.append((tokens, sum(tokens == other for other, _ in prompts)))
    head: Any = fit_predictor(trace, fit) if predictor == FITTED else predictor
    return _Half(
        half, head, tuple(prompts), tuple(CostModel.from_ratio(c, trace.K) for c in RATIOS)
    )


def _score(
    constants: Constants, halves: Sequence[_Half], replicates: int, seed: int
) -> tuple[float, Array]:
    """(mean log speedup, its part by prompt): -log of summed seconds, linear in each prompt's."""
    total = 0.0
    parts: dict[Prompt, float] = {}
    for half in halves:
        policy = constants.policy(half.predictor)
        replays = [replay(half.trace, policy, seed + i) for i in range(replicates)]
        for cost in half.prices:
            seconds = np.mean(
                [np.add.reduceat(cost.seconds(r), r.offset[:-1]) for r in replays], axis=0
            )
            count = len(halves) * len(half.prices)
            total += float(np.log(half.trace.rows * cost.baseline / seconds.sum())) / count
            for prompt, share in zip(half.prompts, seconds / seconds.sum() / count):
                parts[prompt] = parts.get(prompt, 0.0) - float(share)
    return total, np.array(list(parts.values()))


def _least_committed(
    found: Mapping[Constants, tuple[float, Array]], best: Constants
) -> tuple[Constants, float]:
    """(the constants nearest the middle within one standard error of the best, their error)."""
    top, parts = found[best]
    within = [(best.steps(), -top, best, 0.0)]
    for constants, (score, own) in found.items():
        apart = own - parts
        error = float(np.sqrt(len(apart) * apart.var(ddof=1)))
        if constants != best and top - score <= error:
            within.append((constants.steps(), -score, constants, error))
    *_, chosen, error = min(within)
    return chosen, error


def _widened(axes: Mapping[str, tuple[Any, ...]], chosen: Constants) -> dict[str, tuple[Any, ...]]:
    """The axes, with a further step where the choice lies on the end of one."""
    wider = dict(axes)
    for name, middle in (("rounds", 1.0), ("sigma_s", 0.25)):
        values = axes[name]
        low, high = values[0] / STEP, values[-1] * STEP
        at = getattr(chosen, name)
        if at and at == values[0] and low >= middle / WIDEST:
            wider[name] = (low, *values)
        elif at and at == values[-1] and high <= middle * WIDEST:
            wider[name] = (*values, high)
    return wider


def _inside(axes: Mapping[str, Sequence[Any]], chosen: Constants) -> bool:
    """Whether every constant that was searched lies between the ends of its axis."""
    return all(
        len(axes[name]) == 1 or axes[name][0] < getattr(chosen, name) < axes[name][-1]
        for name in ("rounds", "sigma_s", "theta0")
    )
