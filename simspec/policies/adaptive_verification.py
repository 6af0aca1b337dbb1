"""vLLM's adaptive verification: which drafted tokens of a whole batch are verified."""

from functools import partial
from typing import Annotated, Any

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from simspec.policy.batch import (
    BatchPolicy,
    BatchRule,
    BatchStart,
    BatchStep,
    Lagged,
    admit,
    best_budget,
    survival,
)
from simspec.policy.policy import Count, Draft, checked, policy_name
from simspec.policy_kind import PolicyKind

Array = NDArray[np.floating]
Integers = NDArray[np.int64]
_MOST_LOG_ODDS = 40.0
Weight = Annotated[float, Meta(ge=1e-9, le=1e9)]


class AcceptanceEstimator:
    """Acceptance of draft token k from the drafter's log-odds f: p = sigmoid(slope f + bias[k]).

    Sums of `interval` steps make one damped Newton step of the log-likelihood with a ridge:

    | sums | over the observed tokens |
    | --- | --- |
    | a, B[k], c[k] | v f^2, v f, v with v = p (1 - p) |
    | g, h[k], n[k] | (y - p) f, y - p, 1 with y = 1 if the token was accepted |

    Observed are the accepted tokens and the first rejected one, of those that were verified. With
    N = sum of n: slope moves by (g - sum(B h / c)) / (a - sum(B^2 / c)) N / (N + damping), not at
    all where it would fall below 0; then bias[k] by (h - B dslope) / c n / (n + damping).

    Source: vLLM 0.32, v1/worker/gpu/spec_decode/acceptance_estimator.py. f and p are rounded to
    float32 as there. The released f takes 1 - q from the float32 sum over all tokens minus 1, which
    a recorded confidence does not tell: it is 40 where q > 1 - 6e-8, and never 16.6 to 40. Recorded
    confidences end at f = 12.
    """

    def __init__(self, K: int, interval: int = 100, damping: float = 50.0, ridge: float = 1e-3):
        self.slope, self.bias = 0.5, np.full(K, -0.2)
        self.interval, self.damping, self.ridge = interval, damping, ridge
        self._steps, self._sums = 0, np.zeros((6, K))

    def predict(self, feature: Array) -> Array:
        """float64[n, K]: the probability that each token is accepted if all before it are."""
        from scipy.special import expit  # its import is a fifth of that of simspec

        predicted: Array = expit(self.slope * feature + self.bias).astype(np.float32)
        return predicted.astype(np.float64)

    def step(
        self, feature: Array, predicted: Array, accepted: Integers, verified: Integers
    ) -> None:
        """One step's outcomes, by request; every `interval` steps the coefficients move."""
        k = np.arange(len(self.bias))
        observed = (k <= accepted[:, None]) & (k < verified[:, None])
        f, p = np.where(observed, feature, 0.0), np.where(observed, predicted, 0.0)
        v, residual = p * (1.0 - p), np.where(observed, (k < accepted[:, None]) - p, 0.0)
        parts = (v * f * f, v * f, v, residual * f, residual, observed)
        self._sums += np.array([part.sum(axis=0) for part in parts])
        self._steps += 1
        if self._steps == self.interval:
            self._refit()
            self._steps, self._sums = 0, np.zeros_like(self._sums)

    def _refit(self) -> None:
        a, B, c, g, h, n = self._sums
        c, total = c + self.ridge, n.sum()
        curvature = a.sum() + self.ridge - (B * B / c).sum()
        moved = (g.sum() - (B * h / c).sum()) / curvature * total / (total + self.damping)
        if not self.slope + moved >= 0.0:
            moved = 0.0
        self.slope = float(self.slope + moved)
        self.bias = self.bias + (h - B * moved) / c * n / (n + self.damping)


class _Adaptive(BatchRule):
    def __init__(self, settings: dict[str, Any], start: BatchStart) -> None:
        super().__init__(start)
        fit = {key: settings[key] for key in ("interval", "damping", "ridge")}
        self.estimator = AcceptanceEstimator(start.K, **fit)
        self.stale = Lagged(start.batch, start.K, settings["lag"])
        self.overhead = start.seconds.overhead if settings["overhead"] else 0.0

    def submit(self, step: BatchStep) -> Integers:
        self.feature = log_odds(step.confidence)
        self.predicted = self.estimator.predict(self.feature)
        stale = self.stale.replace(step, self.predicted)
        requests, most = len(step.slot), int(step.computed.sum())
        scores = survival(stale, step.computed)
        scores = -np.sort(-scores[np.isfinite(scores)])
        table = self.start.seconds
        draft = table.draft[self.start.K, requests] + self.overhead
        seconds = draft + np.maximum(table.verify[requests : requests + most + 1], 1e-9)
        budget = best_budget(scores, requests, seconds)
        if budget == most:
            return step.computed
        return admit(survival(self.predicted.astype(np.float32), step.computed), budget)

    def observe(
        self, step: BatchStep, drafted: Integers, accepted: Integers, seconds: float
    ) -> None:
        self.estimator.step(self.feature, self.predicted, accepted, drafted)


def log_odds(confidence: Array) -> Array:
    """ln(q / (1 - q)) within [-40, 40], rounded to float32."""
    with np.errstate(divide="ignore"):
        odds = np.log(confidence) - np.log1p(-confidence)
    return np.clip(odds, -_MOST_LOG_ODDS, _MOST_LOG_ODDS).astype(np.float32).astype(np.float64)


@checked
def adaptive_verification(
    k: Draft | None = None,
    lag: Annotated[int, Meta(ge=0, le=16)] = 1,
    interval: Count = 100,
    damping: Weight = 50.0,
    ridge: Weight = 1e-3,
    overhead: bool = False,
) -> BatchPolicy:
    """vLLM's adaptive verification: k tokens are drafted always, and fewer verified.

    | part | rule |
    | --- | --- |
    | acceptance | AcceptanceEstimator of max q, `interval`, `damping`, `ridge` |
    | survival | S = the product of the acceptances of a token and all before it |
    | budget | first argmax over x of (R + the x largest S) / (draft(R) + verify(R + x)) |
    | allocation | the tokens of the `budget` largest S |

    R requests. The budget reads each request's acceptances of `lag` drafts ago (as released 1), 1
    for a request's first; the allocation reads today's. draft and verify are tables of seconds, as
    profiled; `overhead` adds the rest of a step, which is not profiled there. k: default the
    recording's. The limit of one chunk of logits and requests in prefill are left out.

    Source: vLLM 0.32, v1/worker/gpu/spec_decode/adaptive_verification.py, pull requests 47808 and
    52228, `enable_adaptive_verification`. Compared by execution: tests/engines.
    """
    settings = dict(locals())
    name = policy_name("adaptive_verification", settings, adaptive_verification)
    return BatchPolicy(name, partial(_Adaptive, settings), k, ("confidence",))


BATCH_POLICIES = (
    PolicyKind(
        adaptive_verification, "batches", "vLLM 0.32", "max q of all drafts, and a table of costs",
        "verify the tokens of most expected tokens a second",
        "all K drafted; confidences one draft old", "as released, but requests in prefill",
        examples=("adaptive_verification", "adaptive_verification:k=2,interval=3,overhead=true"),
    ),
)  # fmt: skip
