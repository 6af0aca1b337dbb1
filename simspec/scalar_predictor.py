"""Scalar: the chance that a drafted token is accepted, from what the drafter shows of it anyway;
and how to judge one.
"""

import math
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from simspec.files import check_keys, read_json, write_json
from simspec.quantization import LOG_ODDS, decode, table
from simspec.trace import Trace

DEEPEST = 10  # EESD caps the depth i of W^i at 10 (Eq. 5)
READS = ("confidence", "entropy")
_LOWEST, _HIGHEST = (math.log(p / (1 - p)) for p in LOG_ODDS[[0, -1]])


@dataclass(frozen=True)
class ScalarPredictor:
    """sigmoid(bias + confidence * logit(c) + entropy * H + depth * min(i, 10)), a small stand-in
    for theta_M of EESD Eq. 5.

    | field | type | meaning |
    | --- | --- | --- |
    | bias | float | the constant |
    | confidence | float | weight of logit(c), c the drafter's top probability, kept in the grid's range |
    | entropy | float | weight of H, the entropy of q in nats |
    | depth | float | weight of the slot, counted from 0, at most 10 |
    | source | str | what it was fitted on |

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
        """Chance of acceptance, float64, elementwise; confidence in [0, 1], entropy in nats, depth
        = slot from 0.
        """
        with np.errstate(divide="ignore"):
            odds = np.log(confidence) - np.log1p(-np.asarray(confidence, dtype=np.float64))
        odds = np.clip(odds, _LOWEST, _HIGHEST)
        z = (
            self.bias
            + self.confidence * odds
            + self.entropy * np.asarray(entropy)
            + self.depth * np.minimum(depth, DEEPEST)
        )
        return np.exp(-np.logaddexp(0.0, -z))

    def to_json(self, path: Any) -> None:
        """Write the predictor as one JSON object whose keys are the fields, whole or not at all;
        ValueError where it cannot be.
        """
        write_json(path, asdict(self))

    @classmethod
    def from_json(cls, path: Any) -> "ScalarPredictor":
        """Read what `to_json` wrote; ValueError, one line with the path, for anything else."""

        def made(data: Any) -> Any:
            check_keys(data, (f.name for f in fields(cls)))
            return cls(**data)

        return read_json(path, made, "scalar predictor")


def examples(
    trace: Trace, names: Any = READS
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """What a recording teaches: (feature float64[M, len(names)], slot int64[M], label bool[M],
    sequence int64[M]).

    One example for each row t and slot i <= run[t] that was drafted (i < depth[t]) and has text:
    label = i < run[t]. The first miss is the last that is known; of the slots behind it no one can
    say what they are worth. TraceError for a feature that was not recorded.
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

    Nothing that is tuned on the first may be reported on them. ValueError where that leaves nothing
    to report.
    """
    seen, second = {}, []
    for task in trace.meta.tasks:
        second.append(seen.get(task, 0) % 2)
        seen[task] = seen.get(task, 0) + 1
    second = np.array(second)
    if not second.any():
        raise ValueError(
            f"no task has two of the {trace.sequences} sequences, expected one to fit on and one "
            "to report: record more"
        )
    return np.flatnonzero(second == 0), np.flatnonzero(second == 1)


def fit_predictor(trace: Trace, sequences: Any = None) -> ScalarPredictor:
    """The Scalar of greatest likelihood on `examples` of these sequences (indices; default all).

    A logistic regression on (1, logit of confidence, entropy, depth) by statsmodels; examples of
    one text depend on each other, so its standard errors would flatter and are not offered.
    ValueError for fewer than 50 examples, a class of fewer than 5, or classes that a line parts
    (the weights would be infinite).
    """
    import warnings

    import statsmodels.api as sm
    from statsmodels.tools.sm_exceptions import PerfectSeparationWarning

    chosen = trace if sequences is None else trace.select(sequences)
    feature, slot, label, _ = examples(chosen)
    if len(label) < 50 or min(label.sum(), (~label).sum()) < 5:
        raise ValueError(
            f"{label.sum()} of {len(label)} examples are accepted tokens, expected 50 or more and "
            "5 of each kind: record more"
        )
    confidence, entropy = feature.T
    with np.errstate(divide="ignore"):
        odds = np.clip(np.log(confidence) - np.log1p(-confidence), _LOWEST, _HIGHEST)
    design = np.stack((np.ones(len(label)), odds, entropy, np.minimum(slot, DEEPEST)), axis=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", PerfectSeparationWarning)
        try:
            found = sm.GLM(label.astype(np.float64), design, family=sm.families.Binomial()).fit()
        except (PerfectSeparationWarning, np.linalg.LinAlgError, ValueError) as error:
            raise ValueError(
                f"the logistic fit fails ({' '.join(str(error).split())}): record more text"
            ) from None
    if not (found.converged and np.isfinite(found.params).all()):
        raise ValueError("the logistic fit does not converge: record more text")
    source = f"{len(label)} examples of {chosen.sequences} sequences, {trace.meta.target} with {trace.meta.drafter}, {trace.meta.rule}"
    return ScalarPredictor(*map(float, found.params), source)
