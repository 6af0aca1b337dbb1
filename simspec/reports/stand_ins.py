"""Stand-ins for a measured accepted length, and their published errors."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simspec.numerics.formulas import expected_committed
from simspec.published import LengthCurve, length_curves, speed_tables

FROM = (1, 3)
"""Draft lengths from which i.i.d. errors are computed, with a curve's shortest."""

MOST_STEPS = 100
"""Most Newton steps; a dozen is usual."""

COSTS_ONLY = ("draft-length-audit",)
"""Speed tables whose accepted lengths are in doubt, see their caution."""


def iid_rate(length: ArrayLike, K: int) -> NDArray[np.float64]:
    """The acceptance r at which 1 + r + .. + r^K is this accepted length; 0 and 1 beyond.

    By Newton's method from above: the sum is convex in r, so that every step falls towards it.
    """
    length = np.clip(np.asarray(length, dtype=np.float64), 1.0, K + 1.0)
    rate: NDArray[np.float64] = np.minimum(length - 1.0, 1.0)
    for _ in range(MOST_STEPS):
        total, slope = np.ones(rate.shape), np.zeros(rate.shape)
        for _ in range(K):
            slope = slope * rate + total
            total = total * rate + 1.0
        step = (total - length) / slope
        rate = np.clip(rate - step, 0.0, 1.0)
        if (np.abs(step) < 1e-15).all():
            break
    return rate


def iid_length(length: ArrayLike, measured_at: int, K: int) -> NDArray[np.float64]:
    """Accepted length at K of i.i.d. acceptance that has this length at `measured_at`."""
    predicted: NDArray[np.float64] = expected_committed(iid_rate(length, measured_at), K)
    return predicted


@dataclass(frozen=True)
class PublishedError:
    """A stand-in's relative error on one published curve.

    | field | meaning |
    | --- | --- |
    | group, drafter, task, source | where it is from |
    | stand_in | table, iid or teacher-forced |
    | measured_at | draft length of the stand-in; 0: none |
    | K | draft length that was predicted |
    | error | predicted over measured accepted length, less 1 |
    | computed | whether it follows from published lengths; else it was computed from raw data |
    """

    group: str
    drafter: str
    task: str
    source: str
    stand_in: str
    measured_at: int
    K: int
    error: float
    computed: bool

    @property
    def label(self) -> str:
        """The stand-in's name as in `simspec.reports.transport`."""
        return f"{self.stand_in}@{self.measured_at}" if self.measured_at else self.stand_in


@lru_cache(maxsize=1)
def published_errors() -> tuple[PublishedError, ...]:
    """Errors of stand-ins on all published curves, of speed tables too."""
    curves = (*length_curves(), *_speed_curves())
    return tuple(error for curve in curves for error in curve_errors(curve))


def curve_errors(curve: LengthCurve) -> list[PublishedError]:
    """Errors of tables where the curve has marginals, of i.i.d. acceptance where it has lengths.

    A measured length is 1 + the sum of the marginals at that K where all are published.
    """
    drafter, task, source = (curve.texts.get(key, "") for key in ("drafter", "task", "source"))
    about = curve.group, drafter, task, source
    lengths = dict(curve.accepted_length)
    for K, marginals in curve.marginals.items():
        if len(marginals) == K:
            lengths[K] = 1 + sum(marginals)
    found = [
        PublishedError(*about, e.stand_in, e.measured_at, e.K, e.error, False)
        for e in curve.printed
    ]
    for M, marginals in curve.marginals.items():
        for K in (K for K in lengths if len(marginals) >= K != M):
            error = (1 + sum(marginals[:K])) / lengths[K] - 1
            found.append(PublishedError(*about, "table", M, K, error, True))
    for M in sorted({*FROM, min(lengths, default=1)} & set(lengths)):
        for K in (K for K in lengths if K > M):
            error = float(iid_length(lengths[M], M, K)) / lengths[K] - 1
            found.append(PublishedError(*about, "iid", M, K, error, True))
    return found


def _speed_curves() -> list[LengthCurve]:
    curves = []
    for name, table in speed_tables().items():
        if name in COSTS_ONLY:
            continue
        group = "SpecBundle" if name.startswith("specbundle/") else name
        for task in table.tasks:
            lengths = {row.K: row.accepted_length for row in table.rows if row.task == task}
            if len(lengths) > 2:
                curves.append(LengthCurve(group, dict(table.texts) | {"task": task}, lengths))
    return curves


def summarized(errors: Sequence[PublishedError]) -> list[dict[str, Any]]:
    """A dict for each (group, stand-in): its errors by K over the group's curves.

    Keys: group, stand_in, curves, medians {K: error}, least, greatest, source.
    """
    groups: dict[tuple[str, str], list[PublishedError]] = {}
    for error in errors:
        groups.setdefault((error.group, error.label), []).append(error)
    return [_summary(group, label, members) for (group, label), members in groups.items()]


def _summary(group: str, label: str, members: Sequence[PublishedError]) -> dict[str, Any]:
    by_length: dict[int, list[float]] = {}
    for member in members:
        by_length.setdefault(member.K, []).append(member.error)
    every = [member.error for member in members]
    return {
        "group": group,
        "stand_in": label,
        "curves": max(map(len, by_length.values())),
        "medians": {K: float(np.median(by_length[K])) for K in sorted(by_length)},
        "least": min(every),
        "greatest": max(every),
        "source": members[0].source,
    }
