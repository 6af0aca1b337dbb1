"""Scorecard: throughput predicted by replays, against throughput measured in runs."""

from dataclasses import asdict, dataclass

import numpy as np

from real.bench.publication import shortcomings

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
