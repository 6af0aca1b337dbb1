"""Predictors of P(accepted) of a drafted token, from scalars or a head, and calibration."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simspec.numerics.compile import cached_njit
from simspec.policy.policy import Array, PolicyError
from simspec.trace.quantization import LOG_ODDS, decode, table
from simspec.trace.trace import Trace


def reliability(probability: np.ndarray, label: np.ndarray, bins: int = 10) -> np.ndarray:
    """Calibration by equal bins of [0, 1], float64[bins, 3]: (count, mean probability, share true),
    NaN where count is 0.

    A probability on an edge belongs to the upper bin, 1 to the last. ValueError for other shapes,
    bins < 1 or outside [0, 1].
    """
    probability, label = _pairs(probability, label)
    if bins < 1:
        raise ValueError(f"bins is {bins}, expected at least 1")
    bin_of = np.minimum((probability * bins).astype(np.int64), bins - 1)
    count = np.bincount(bin_of, minlength=bins).astype(np.float64)
    share = np.where(count > 0, count, np.nan)
    sums = [
        np.bincount(bin_of, weights=w, minlength=bins) / share
        for w in (probability, label.astype(np.float64))
    ]
    return np.stack((count, *sums), axis=1)


def brier(probability: np.ndarray, label: np.ndarray) -> float:
    """Mean of (probability - label)^2: 0 is perfect, 1/4 for a constant 1/2. ValueError for none
    or outside [0, 1].
    """
    probability, label = _pairs(probability, label)
    return float(np.mean((probability - label) ** 2))


def _pairs(probability: Any, label: Any) -> Any:
    probability, label = np.asarray(probability, dtype=np.float64), np.asarray(label, dtype=bool)
    if probability.ndim != 1 or probability.shape != label.shape or not len(label):
        raise ValueError(
            f"probabilities {list(probability.shape)} and labels {list(label.shape)}, expected the "
            "same one axis, not empty"
        )
    if not ((probability >= 0) & (probability <= 1)).all():
        raise ValueError("a probability lies outside [0, 1]")
    return probability, label


MAX_DEPTH = 10
"""EESD caps the depth i of W^i at 10 (Eq. 5)."""
READS = ("confidence", "entropy")
_LOWEST, _HIGHEST = (math.log(p / (1 - p)) for p in LOG_ODDS[[0, -1]])


@dataclass(frozen=True)
class ScalarPredictor:
    """sigmoid(bias + confidence * logit(c) + entropy * H + depth * min(i, 10)), a small theta_M of
    EESD Eq. 5.

    c is the drafter's top probability in the grid's range, H the entropy of q in nats, i the slot
    from 0. ValueError for a weight that is not finite.
    """

    bias: float
    confidence: float
    entropy: float
    depth: float

    def __post_init__(self) -> None:
        for name in ("bias", *READS, "depth"):
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not math.isfinite(value):
                raise ValueError(f"predictor: {name} is {value!r}, expected a finite number")
            object.__setattr__(self, name, float(value))

    @property
    def weights(self) -> tuple[float, float, float, float]:
        """(bias, confidence, entropy, depth)."""
        return self.bias, self.confidence, self.entropy, self.depth

    def probability(self, confidence: Any, entropy: Any, depth: Any) -> np.ndarray:
        """P(accepted), float64, elementwise; confidence in [0, 1], entropy in nats, depth = slot
        from 0.
        """
        z = (
            self.bias
            + self.confidence * _clipped_logit(confidence)
            + self.entropy * np.asarray(entropy)
            + self.depth * np.minimum(depth, MAX_DEPTH)
        )
        probability: np.ndarray = np.exp(-np.logaddexp(0.0, -z))
        return probability


def _clipped_logit(confidence: Any) -> np.ndarray:
    with np.errstate(divide="ignore"):
        logit = np.log(confidence) - np.log1p(-np.asarray(confidence, dtype=np.float64))
    return np.clip(logit, _LOWEST, _HIGHEST)


def examples(
    trace: Trace, names: Any = READS
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(feature float64[M, len(names)], slot int64[M], label bool[M], sequence int64[M]) of a
    recording.

    One example for each row t and slot i <= run[t] that was drafted (i < depth[t]) and has a token,
    with the label i < run[t]. Acceptance is unknown after the first rejection. TraceError for a
    feature that was not recorded.
    """
    columns = trace.features(names)
    length = np.diff(trace.offset)
    left = np.repeat(trace.offset[1:], length) - np.arange(trace.rows)
    reach = np.minimum(
        np.minimum(trace.depth.astype(np.int64), left), trace.run.astype(np.int64) + 1
    )
    row, slot = np.nonzero(np.arange(trace.K) < reach[:, None])
    grids = dict(trace.meta.features)
    parts = [
        decode(trace.feature[row, slot, column], table(grids[name]))
        for name, column in zip(names, columns)
    ]
    feature = np.stack(parts, axis=1) if parts else np.zeros((len(row), 0))
    return feature, slot, slot < trace.run[row], np.repeat(np.arange(trace.sequences), length)[row]


def split_by_task(trace: Trace) -> tuple[np.ndarray, np.ndarray]:
    """(indices to fit on, indices to report on), int64: alternate sequences within each task, in
    file order.

    ValueError where that leaves nothing to report on.
    """
    count: dict[str, int] = {}
    odd = []
    for task in trace.meta.tasks:
        odd.append(count.get(task, 0) % 2)
        count[task] = count.get(task, 0) + 1
    report = np.array(odd)
    if not report.any():
        raise ValueError(
            f"no task has two of the {trace.sequences} sequences, "
            "expected one to fit on and one to report: record more"
        )
    return np.flatnonzero(report == 0), np.flatnonzero(report == 1)


def fit_predictor(
    trace: Trace, sequences: Sequence[int] | np.ndarray | None = None
) -> ScalarPredictor:
    """The ScalarPredictor of the largest likelihood on `examples` of these sequences (indices;
    default all).

    A logistic regression on (1, logit of confidence, entropy, depth) by statsmodels. Standard
    errors are omitted, since examples of one sequence are dependent. ValueError for fewer than 50
    examples, a class of fewer than 5, or linearly separable classes (the weights would be
    infinite).
    """
    chosen = trace if sequences is None else trace.select(sequences)
    feature, slot, label, _ = examples(chosen)
    if len(label) < 50 or min(label.sum(), (~label).sum()) < 5:
        raise ValueError(
            f"{label.sum()} of {len(label)} examples are accepted tokens, "
            "expected 50 or more and 5 of each kind: record more"
        )
    confidence, entropy = feature.T
    constant, depth = np.ones(len(label)), np.minimum(slot, MAX_DEPTH)
    design = np.stack((constant, _clipped_logit(confidence), entropy, depth), axis=1)
    return ScalarPredictor(*_logistic_fit(design, label))


def _logistic_fit(design: np.ndarray, label: np.ndarray) -> list[float]:
    import warnings

    import statsmodels.api as sm
    from statsmodels.tools.sm_exceptions import PerfectSeparationWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", PerfectSeparationWarning)
        try:
            family = sm.families.Binomial()
            result = sm.GLM(label.astype(np.float64), design, family=family).fit()
        except (PerfectSeparationWarning, np.linalg.LinAlgError, ValueError) as error:
            raise ValueError(
                f"the logistic fit fails ({' '.join(str(error).split())}): record more text"
            ) from None
    if not (result.converged and np.isfinite(result.params).all()):
        raise ValueError("the logistic fit does not converge: record more text")
    return [float(weight) for weight in result.params]


@cached_njit
def predicted(params: Array, features: Array, i: int) -> float:
    """theta_M of slot i: the recorded feature, or the Scalar's value from (confidence, entropy,
    depth).

    params[4] is 1 for a scalar predictor, params[5:9] its weights: the last of `head_arguments`.
    """
    if params[4] == 0.0:
        return features[i, 0]
    confidence = features[i, 0]
    # The range of the log-odds grid; a confidence of 0 or 1 on another grid stays finite.
    odds = (
        -8.0
        if confidence <= 0.0
        else 12.0
        if confidence >= 1.0
        else math.log(confidence) - math.log1p(-confidence)
    )
    z = (
        params[5]
        + params[6] * min(max(odds, -8.0), 12.0)
        + params[7] * features[i, 1]
        + params[8] * min(i, 10)
    )
    return 1.0 / (1.0 + math.exp(-z)) if z >= 0.0 else math.exp(z) / (1.0 + math.exp(z))


def head_arguments(
    policy: str, predictor: str | ScalarPredictor
) -> tuple[str, tuple[str, ...], tuple[float, ...]]:
    """(label that reads back as the predictor, features it reads, its five parameters)."""
    if isinstance(predictor, str) and predictor.isidentifier():
        return predictor, (predictor,), (0.0,) * 5
    try:
        if isinstance(predictor, ScalarPredictor):
            scalar, label = predictor, "/".join(("scalar", *map(repr, predictor.weights)))
        elif isinstance(predictor, str) and predictor.startswith("scalar/"):
            scalar, label = ScalarPredictor(*map(float, predictor.split("/")[1:])), predictor
        else:
            raise ValueError(
                "expected a feature's name, a ScalarPredictor, or "
                "scalar/bias/confidence/entropy/depth"
            )
    except (TypeError, ValueError) as error:
        raise PolicyError(f"{policy}: predictor is {predictor!r}: {error}") from None
    return label, READS, (1.0, *scalar.weights)
