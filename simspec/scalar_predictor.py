"""ScalarPredictor: P(accepted) from confidence, entropy and depth."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from os import PathLike
from typing import Any

import numpy as np

from simspec.files import check_keys, read_json, write_json
from simspec.quantization import LOG_ODDS, decode, table
from simspec.trace import Trace

MAX_DEPTH = 10
"""EESD caps the depth i of W^i at 10 (Eq. 5)."""
READS = ("confidence", "entropy")
_LOWEST, _HIGHEST = (math.log(p / (1 - p)) for p in LOG_ODDS[[0, -1]])


@dataclass(frozen=True)
class ScalarPredictor:
    """sigmoid(bias + confidence * logit(c) + entropy * H + depth * min(i, 10)), a small theta_M of
    EESD Eq. 5.

    | field      | type  | meaning                                                                 |
    | ---------- | ----- | ----------------------------------------------------------------------- |
    | bias       | float | the constant                                                            |
    | confidence | float | weight of logit(c), c the drafter's top probability in the grid's range |
    | entropy    | float | weight of H, the entropy of q in nats                                   |
    | depth      | float | weight of the slot, counted from 0, at most 10                          |
    | source     | str   | the data it was fitted on                                               |

    ValueError for a weight that is not finite.
    """

    bias: float
    confidence: float
    entropy: float
    depth: float
    source: str = ""

    def __post_init__(self) -> None:
        for name in ("bias", *READS, "depth"):
            value = getattr(self, name)
            if (
                isinstance(value, bool)
                or not isinstance(value, (int, float))
                or not math.isfinite(value)
            ):
                raise ValueError(f"predictor: {name} is {value!r}, expected a finite number")
            object.__setattr__(self, name, float(value))
        if not isinstance(self.source, str):
            raise ValueError(f"predictor: source is {self.source!r}, expected text")

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

    def to_json(self, path: str | PathLike[str]) -> None:
        """Writes the predictor as one JSON object, completely or not at all; ValueError where it
        cannot.
        """
        write_json(path, asdict(self))

    @classmethod
    def from_json(cls, path: str | PathLike[str]) -> "ScalarPredictor":
        """Reads what `to_json` wrote; ValueError, one line with the path, for anything else."""

        def make(data: Any) -> "ScalarPredictor":
            check_keys(data, (field.name for field in fields(cls)))
            return cls(**data)

        return read_json(path, make, "scalar predictor")


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
    with the label i < run[t]. Acceptance is unknown behind the first rejection. TraceError for a
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
    bias, by_confidence, by_entropy, by_depth = _logistic_fit(design, label)
    source = (
        f"{len(label)} examples of {chosen.sequences} sequences, "
        f"{trace.meta.target} with {trace.meta.drafter}, {trace.meta.rule}"
    )
    return ScalarPredictor(bias, by_confidence, by_entropy, by_depth, source)


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
