"""PredictionErrors: how far predictions are from measurements, with their number."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass

import numpy as np


@dataclass(frozen=True)
class PredictionErrors:
    """Absolute relative errors |predicted / measured - 1|.

    | field | meaning |
    | --- | --- |
    | count | measurements that were predicted |
    | median, p90, worst | quantiles of the errors, linear between ranks |
    """

    count: int
    median: float
    p90: float
    worst: float

    @classmethod
    def of(cls, errors: Iterable[float]) -> "PredictionErrors":
        """The summary of relative errors of either sign; ValueError for none."""
        sizes = np.abs(np.array(list(errors), dtype=np.float64))
        if not len(sizes):
            raise ValueError("no measurement was predicted, expected at least one")
        median, p90 = np.quantile(sizes, (0.5, 0.9))
        return cls(len(sizes), float(median), float(p90), float(sizes.max()))

    def to_dict(self) -> dict[str, float]:
        """As plain data for JSON."""
        return asdict(self)

    @property
    def text(self) -> str:
        """One line for notes and files."""
        return (
            f"median {self.median:.2%}, 90th percentile {self.p90:.2%}, worst {self.worst:.2%} "
            f"of {self.count}"
        )
