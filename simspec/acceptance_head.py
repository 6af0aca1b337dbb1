"""Acceptance heads: where a policy takes P(accepted) of a drafted token from."""

import math
import os

from simspec.compile_cache import cached_njit
from simspec.policy_functions import Array, PolicyError
from simspec.scalar_predictor import READS, ScalarPredictor


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
    policy: str, predictor: str | os.PathLike[str] | ScalarPredictor
) -> tuple[str, tuple[str, ...], tuple[float, ...]]:
    """(label that reads back as the predictor, features it reads, its five parameters)."""
    try:
        scalar, label = _read_predictor(predictor)
    except (TypeError, ValueError) as error:
        raise PolicyError(f"{policy}: predictor is {predictor!r}: {error}") from None
    if any(mark in label for mark in ",=\n"):
        raise PolicyError(
            f"{policy}: predictor is {label!r}, "
            "expected a path without comma, equals sign or line break"
        )
    if scalar is None:
        return label, (label,), (0.0,) * 5
    return label, READS, (1.0, *scalar.weights)


def _read_predictor(
    predictor: str | os.PathLike[str] | ScalarPredictor,
) -> tuple[ScalarPredictor | None, str]:
    """(the scalar predictor, None for a recorded feature; its label)."""
    if isinstance(predictor, ScalarPredictor):
        return predictor, "/".join(("scalar", *map(repr, predictor.weights)))
    path = isinstance(predictor, os.PathLike)
    if path or isinstance(predictor, str) and predictor.endswith(".json"):
        return ScalarPredictor.from_json(predictor), os.fspath(predictor)
    if isinstance(predictor, str) and predictor.startswith("scalar/"):
        weights = [float(weight) for weight in predictor.split("/")[1:]]
        return ScalarPredictor(*weights), predictor  # type: ignore[arg-type]
    if not isinstance(predictor, str) or not predictor.isidentifier():
        raise ValueError(
            "expected a feature's name, a ScalarPredictor, its .json file, "
            "or scalar/bias/confidence/entropy/depth"
        )
    return None, predictor
