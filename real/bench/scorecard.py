"""Scorecard: throughput predicted by replays, against throughput measured in runs."""

from dataclasses import asdict, dataclass

import numpy as np

MEDIAN_BOUND, P90_BOUND, NOISE_FACTOR = 0.03, 0.08, 2.0
"""Bounds of |error|: median <= max(MEDIAN_BOUND, NOISE_FACTOR x noise floor), 90th percentile."""


@dataclass(frozen=True)
class ScorecardRow:
    """One recording and policy: predicted against measured.

    L' tokens in T' seconds were measured, L in T predicted. C is seconds of drafting and
    verification, O of policy and bookkeeping; C and O are predicted for the measured rounds.

    | field | meaning |
    | --- | --- |
    | predicted, measured | tokens a second; measured is the repeat with the (lower) median time |
    | error | predicted / measured - 1 |
    | acceptance | log(L / T) - log(L' / (C + O)): other rounds than replayed |
    | cost | log((C' + O) / (C + O)) |
    | overhead | log((C' + O') / (C' + O)) |
    | noise | sample deviation of the repeats' tokens a second over their mean; None of one repeat |
    | tau, tau_measured | committed tokens a round |
    | speedup, speedup_measured | over plain decoding |
    | phases, phases_measured | seconds of drafting, verification, policy, other |
    | prompts, tokens, rounds | of the measured run |
    | target_engine, drafter_engine | that the passes ran on |

    acceptance + cost + overhead = log(1 + error) exactly.
    """

    recording: str
    drafter: str
    policy: str
    predicted: float
    measured: float
    error: float
    acceptance: float
    cost: float
    overhead: float
    noise: float | None
    tau: float
    tau_measured: float
    speedup: float
    speedup_measured: float
    phases: tuple
    phases_measured: tuple
    prompts: int
    tokens: int
    rounds: int
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
    def median_abs_error(self) -> float:
        """Median of |error| over rows."""
        return float(np.median([abs(r.error) for r in self.rows]))

    @property
    def p90_abs_error(self) -> float:
        """90th percentile of |error| over rows."""
        return float(np.quantile([abs(r.error) for r in self.rows], 0.9))

    @property
    def noise_floor(self) -> float | None:
        """Median noise over rows; None of a single repeat."""
        return None if self.repeats < 2 else float(np.median([r.noise for r in self.rows]))

    @property
    def good(self) -> bool:
        """Whether the errors are within the bounds."""
        return (
            self.median_abs_error <= max(MEDIAN_BOUND, NOISE_FACTOR * (self.noise_floor or 0.0))
            and self.p90_abs_error <= P90_BOUND
        )

    def summary(self) -> dict:
        """The object that `simspec scorecard --json` prints."""
        errors = {
            name: getattr(self, name)
            for name in ("device", "median_abs_error", "p90_abs_error", "noise_floor", "good")
        }
        return (
            errors
            | {name: getattr(self, name) for name in ("dtype", "repeats", "seed")}
            | {"rows": [asdict(r) for r in self.rows]}
        )
