"""Claims about acceptance: by depth (EAGLE) and by confidence (GLIDE)."""

from collections.abc import Sequence

import numpy as np

from simspec.numerics.stats import difference
from simspec.papers.claim import EAGLE, GLIDE, Claim, Inputs
from simspec.papers.evidence import POSITIVE, Array, Bounds, Effect, observe
from simspec.papers.recorded import Price
from simspec.policy.predictor import examples
from simspec.trace.acceptance import by_depth

NEARLY = 0.1
"""'Nearly equal': the printed differences of 1-alpha and 4-alpha reach 0.11 (EAGLE Tables 1-2)."""


def first_depth(inputs: Inputs, price: Price) -> list[Effect]:
    """Claim 15a: 0-alpha less 1-alpha is positive."""
    return _by_draft_depth(inputs, price, [(0, 1, POSITIVE)])


def later_depths(inputs: Inputs, price: Price) -> list[Effect]:
    """Claim 15b: 1-alpha less 2- to 4-alpha is nearly 0."""
    return _by_draft_depth(inputs, price, [(1, n, (-NEARLY, NEARLY)) for n in (2, 3, 4)])


def _by_draft_depth(
    inputs: Inputs, price: Price, comparisons: Sequence[tuple[int, int, Bounds]]
) -> list[Effect]:
    """One n-alpha less another, within bounds."""
    found = []
    for recorded in inputs.recordings.of("eagle"):
        accepted, tried = by_depth(recorded.trace)
        for one, other, bounds in comparisons:
            if other >= recorded.trace.K:
                continue
            columns = np.stack([x[:, i] for i in (one, other) for x in (accepted, tried)], -1)
            part = f"{one}-alpha less {other}-alpha"
            shares = (_share(columns[:, :2]), _share(columns[:, 2:]))
            figures = {f"{n}-alpha": share for n, share in zip((one, other), shares)}
            found.append(
                observe(
                    part, recorded.source, price.name, columns, difference, bounds,
                    figures, inputs.seed,
                )
            )  # fmt: skip
    return found


def _share(columns: Array) -> float:
    accepted, tried = columns.sum(axis=0)
    return float(accepted / tried) if tried else float("nan")


def by_confidence(inputs: Inputs, price: Price) -> list[Effect]:
    """Claim 12: the slope of acceptance over confidence, of drafted tokens up to the first miss."""
    found = []
    for recorded in inputs.recordings.of("glide", "model", "eagle"):
        if "confidence" not in dict(recorded.trace.meta.features):
            continue
        feature, _, label, sequence = examples(recorded.trace, ("confidence",))
        confidence, accepted = feature[:, 0], label.astype(np.float64)
        parts = (
            np.ones(len(label)), confidence, accepted, confidence**2, confidence * accepted
        )  # fmt: skip
        sums = [np.bincount(sequence, part, recorded.trace.sequences) for part in parts]
        columns: Array = np.stack(sums, -1).astype(np.float64)
        figures = {
            f"accepted at {low} to {high}": float(accepted[of].mean()) if of.any() else np.nan
            for low, high in ((0, 0.3), (0.3, 0.6), (0.6, 0.8), (0.8, 1))
            for of in [(confidence > low) & (confidence <= high)]
        }
        found.append(
            observe(
                "slope of acceptance over confidence", recorded.source, price.name, columns,
                slope, POSITIVE, figures, inputs.seed,
            )
        )  # fmt: skip
    return found


def slope(totals: Array) -> Array:
    """Of sums [..., 5] of 1, x, y, x^2 and x y: least squares of y on x."""
    n, x, y, xx, xy = np.moveaxis(np.asarray(totals), -1, 0)
    fitted: Array = (xy - x * y / n) / (xx - x * x / n)
    return fitted


CLAIMS = (
    Claim(
        12, "Acceptance grows with the drafter's confidence.", GLIDE, "Figure 1b",
        by_confidence, (), detail="Drafted tokens up to the first miss.",
        regime="a vanilla drafter, a preliminary experiment.",
        construction="cross-entropy makes the drafter's confidence its estimate of acceptance, so "
        "the slope of any drafter that learned something is above 0.",
    ),
    Claim(
        15, "0-alpha exceeds 1-alpha.", EAGLE, "Tables 1 and 2", first_depth, (),
        part="a", detail="All rows of a recording.", regime="Vicuna and LLaMA2-Chat, 7B to 70B.",
    ),
    Claim(
        15, "1-alpha to 4-alpha are nearly equal.", EAGLE, "Tables 1 and 2",
        later_depths, (), part="b",
        detail="Within 0.1; the paper's own largest difference is 0.11.",
        regime="Vicuna and LLaMA2-Chat, 7B to 70B.",
    ),
)  # fmt: skip
