"""Scorecard: throughput predicted by replays, against throughput measured in runs."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from real.bench.phase_costs import PhaseCosts
from real.bench.race import PLAIN
from real.bench.race_rows import jackknife, ratio_without_each, shortcomings
from real.decode.loop import DecodeResult
from real.equality import rounds_of
from simspec import Policy, Rounds, Trace

MEDIAN_BOUND, P90_BOUND, NOISE_FACTOR = 0.03, 0.08, 2.0
"""Bounds of |error|: median <= max(MEDIAN_BOUND, NOISE_FACTOR x noise floor), 90th percentile."""


@dataclass(frozen=True)
class ScorecardRow:
    """One recording and policy, or plain decoding: predicted against measured.

    L' tokens in T' seconds were measured, means over repeats, L in T predicted. C is seconds of
    drafting and verification, O of policy and bookkeeping; C and O are predicted for the measured
    rounds. Intervals are of 95%, over scored prompts and, for predictions, over the prompts that
    give the costs; None for fewer than 8 of either.

    | field | meaning |
    | --- | --- |
    | error, error_low, error_high | predicted / measured speedup - 1; None of plain decoding |
    | speedup, speedup_low, speedup_high | predicted, over plain decoding predicted too |
    | speedup_measured, measured_low, measured_high | over plain decoding in the same blocks: \
`mean_of_ratios` |
    | predicted, measured | tokens a second: L / T, L' / T' |
    | rate_error | predicted / measured - 1 |
    | acceptance | log(L / T) - log(L' / (C + O)): other rounds than replayed |
    | cost | log((C' + O) / (C + O)) |
    | overhead | log((C' + O') / (C' + O)) |
    | noise | sample deviation of the repeats' speedups, or of plain decoding's tokens a second, \
over their mean; None of one repeat |
    | tau, tau_measured | committed tokens a round |
    | phases, phases_measured | seconds of drafting, verification, policy, other |
    | prompts, cost_prompts | scored, and those that give the costs |
    | tokens, rounds | of a measured repeat, mean over repeats |
    | target_engine, drafter_engine | that the passes ran on |

    acceptance + cost + overhead = log(1 + rate_error) exactly.
    """

    recording: str
    drafter: str
    policy: str
    error: float | None
    error_low: float | None
    error_high: float | None
    speedup: float
    speedup_low: float | None
    speedup_high: float | None
    speedup_measured: float
    measured_low: float | None
    measured_high: float | None
    predicted: float
    measured: float
    rate_error: float
    acceptance: float
    cost: float
    overhead: float
    noise: float | None
    tau: float
    tau_measured: float
    phases: tuple
    phases_measured: tuple
    prompts: int
    cost_prompts: int
    tokens: float
    rounds: float
    target_engine: str = ""
    drafter_engine: str = ""


@dataclass(frozen=True)
class Scorecard:
    """Rows of all recordings, with the settings of the runs."""

    device: str
    dtype: str
    repeats: int
    seed: int
    rows: tuple[ScorecardRow, ...]

    @property
    def policies(self) -> tuple[ScorecardRow, ...]:
        """Rows of policies, without plain decoding."""
        return tuple(r for r in self.rows if r.error is not None)

    @property
    def median_abs_error(self) -> float:
        """Median of |error| of the speedup over policies."""
        return float(np.median([abs(r.error or 0.0) for r in self.policies]))

    @property
    def p90_abs_error(self) -> float:
        """90th percentile of |error| of the speedup over policies."""
        return float(np.quantile([abs(r.error or 0.0) for r in self.policies], 0.9))

    @property
    def noise_floor(self) -> float | None:
        """Median noise over policies; None of a single repeat."""
        return None if self.repeats < 2 else float(np.median([r.noise for r in self.policies]))

    @property
    def good(self) -> bool:
        """Whether the errors are within the bounds."""
        return (
            self.median_abs_error <= max(MEDIAN_BOUND, NOISE_FACTOR * (self.noise_floor or 0.0))
            and self.p90_abs_error <= P90_BOUND
        )

    @property
    def reasons(self) -> list[str]:
        """Reasons why it is no measurement to publish; [] where it is."""
        prompts = min(min(r.prompts, r.cost_prompts) for r in self.rows)
        return shortcomings(self.repeats, prompts)

    def summary(self) -> dict:
        """The object that `simspec scorecard --json` prints."""
        errors = {
            name: getattr(self, name)
            for name in ("device", "median_abs_error", "p90_abs_error", "noise_floor", "good")
        }
        return (
            errors
            | {"measurement": not self.reasons, "reasons": self.reasons}
            | {name: getattr(self, name) for name in ("dtype", "repeats", "seed")}
            | {"rows": [asdict(r) for r in self.rows]}
        )


Run = Sequence[DecodeResult]
"""One repeat of a policy: a result for every sequence."""

Predict = Callable[[PhaseCosts], np.ndarray]
"""Predicted seconds by prompt and phase, float64 `[S, 4]`."""


@dataclass(frozen=True)
class Prices:
    """Costs from some prompts, and without each of them; `without` is empty for too few."""

    costs: PhaseCosts
    without: Sequence[PhaseCosts]
    prompts: int


@dataclass(frozen=True)
class Measured:
    """The runs of a policy, by repeat and prompt.

    | field | shape, dtype | meaning |
    | --- | --- | --- |
    | tokens, seconds | float64 `[R, S]` | new tokens, and the sum of all phases |
    | phases | float64 `[4]` | seconds of all prompts, mean over repeats |
    """

    tokens: np.ndarray
    seconds: np.ndarray
    phases: np.ndarray

    @classmethod
    def of(cls, repeats: Sequence[Run]) -> "Measured":
        """The runs of one policy."""
        tokens = np.array([[len(r.token) for r in run] for run in repeats], np.float64)
        phases = np.array([[r.seconds.sum(0) for r in run] for run in repeats])
        return cls(tokens, phases.sum(2), phases.sum(1).mean(0))


def scorecard_rows(
    name: str,
    trace: Trace,
    drafter: str,
    replays: Sequence[tuple[Policy, Sequence[Rounds]]],
    prices: Prices,
    runs: Sequence[Sequence[Run]],
) -> list[ScorecardRow]:
    """A row for plain decoding and for each replayed policy of runs[repeat][policy] on `trace`.

    Predictions are means of a policy's replays. The last policy of `runs` is plain decoding.
    `prices` come from other prompts.
    """
    lengths = np.diff(trace.offset)
    plain = Measured.of([repeat[-1] for repeat in runs])

    def predict_plain(costs: PhaseCosts) -> np.ndarray:
        return np.outer(lengths, costs.plain)

    labels: dict[str, Any] = {"recording": name, "drafter": drafter, "prompts": trace.sequences}
    labels["cost_prompts"] = prices.prompts
    tokens = plain.tokens.sum(1).mean()
    rows = [
        ScorecardRow(
            **labels,
            policy=PLAIN,
            **_compare(None, predict_plain, plain, plain, prices),
            **_rates(trace.rows, predict_plain(prices.costs), tokens * prices.costs.plain, plain),
            tau=1.0,
            tau_measured=1.0,
            rounds=float(tokens),
        )
    ]
    for i, (policy, replayed) in enumerate(replays):
        repeats = [repeat[i] for repeat in runs]
        measured = Measured.of(repeats)
        ran = [rounds_of(trace, run) for run in repeats]
        predict = _prediction(policy, replayed)
        same_rounds = _prediction(policy, ran)(prices.costs).sum(0)
        rounds = float(np.mean([len(r) for r in ran]))
        rows.append(
            ScorecardRow(
                **labels,
                policy=policy.name,
                **_compare(predict, predict_plain, measured, plain, prices),
                **_rates(trace.rows, predict(prices.costs), same_rounds, measured),
                tau=trace.rows / float(np.mean([len(r) for r in replayed])),
                tau_measured=float(measured.tokens.sum(1).mean()) / rounds,
                rounds=rounds,
            )
        )
    return rows


def _prediction(policy: Policy, rounds: Sequence[Rounds]) -> Predict:
    """Seconds of these rounds of the policy, mean over replays or repeats."""

    def predict(costs: PhaseCosts) -> np.ndarray:
        return np.mean([_by_prompt(costs.seconds(r, policy.reads), r.offset) for r in rounds], 0)

    return predict


def _by_prompt(seconds: np.ndarray, offset: np.ndarray) -> np.ndarray:
    """float64 `[S, 4]`: sums over each prompt's rounds."""
    return np.diff(np.concatenate([np.zeros((1, 4)), seconds.cumsum(0)])[offset], axis=0)


def _compare(
    predict: Predict | None,
    predict_plain: Predict,
    measured: Measured,
    plain: Measured,
    prices: Prices,
) -> dict[str, Any]:
    """Fields of the speedup, its error, intervals and noise; without `predict` of plain decoding.

    The error's interval leaves out each scored prompt, from prediction and measurement alike, and
    each prompt that the costs come from.
    """
    if predict is None:
        bounds = "error error_low error_high speedup_low speedup_high measured_low measured_high"
        alone = dict.fromkeys(bounds.split()) | {"speedup": 1.0, "speedup_measured": 1.0}
        return alone | {"noise": _deviation(plain.tokens.sum(1) / plain.seconds.sum(1))}
    columns = (measured.tokens, measured.seconds, plain.tokens, plain.seconds)
    ratio, ratio_without = ratio_without_each(*columns)
    seconds, of_plain = (p(prices.costs).sum(1) for p in (predict, predict_plain))
    speedup = of_plain.sum() / seconds.sum()
    few = not len(ratio_without)  # prompts, which have no intervals
    by_prompt = ratio_without if few else (of_plain.sum() - of_plain) / (seconds.sum() - seconds)
    by_price = np.array([predict_plain(c).sum() / predict(c).sum() for c in prices.without])
    error = jackknife(speedup / ratio - 1, by_prompt / ratio_without - 1, by_price / ratio - 1)
    predicted = jackknife(speedup, by_prompt, by_price)
    found = jackknife(ratio, ratio_without)
    repeats = [
        ratio_without_each(*(c[r : r + 1] for c in columns))[0] for r in range(len(columns[0]))
    ]
    return {
        "error": float(error.value),
        "error_low": error.low,
        "error_high": error.high,
        "speedup": float(predicted.value),
        "speedup_low": predicted.low,
        "speedup_high": predicted.high,
        "speedup_measured": found.value,
        "measured_low": found.low,
        "measured_high": found.high,
        "noise": _deviation(np.array(repeats)),
    }


def _rates(
    tokens: int, predicted: np.ndarray, same_rounds: np.ndarray, measured: Measured
) -> dict[str, Any]:
    """Fields of tokens a second, of the parts of their error, and of seconds by phase."""
    phases = predicted.sum(0)
    ran = float(measured.tokens.sum(1).mean())
    rate, measured_rate = tokens / phases.sum(), ran / measured.phases.sum()
    core, rest = _core_and_rest(same_rounds)
    core_measured, rest_measured = _core_and_rest(measured.phases)
    return {
        "predicted": float(rate),
        "measured": float(measured_rate),
        "rate_error": float(rate / measured_rate - 1),
        "acceptance": math.log(rate) - math.log(ran / same_rounds.sum()),
        "cost": math.log((core_measured + rest) / (core + rest)),
        "overhead": math.log((core_measured + rest_measured) / (core_measured + rest)),
        "phases": tuple(phases.tolist()),
        "phases_measured": tuple(measured.phases.tolist()),
        "tokens": ran,
    }


def _deviation(figures: np.ndarray) -> float | None:
    """Sample deviation over the mean; None of a single repeat."""
    return float(figures.std(ddof=1) / figures.mean()) if len(figures) > 1 else None


def _core_and_rest(phases: np.ndarray) -> tuple[float, float]:
    """Seconds of drafting and verification; of policy and other."""
    return float(phases[:2].sum()), float(phases[2:].sum())
