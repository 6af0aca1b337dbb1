"""Latency of one pass, beside the least that the device's limits allow."""

import math
from dataclasses import dataclass

from real.measure.device_limits import DeviceSpeeds
from real.measure.timer import Quantiles
from simspec.cost.roofline import pass_bytes, pass_flops
from simspec.cost.shapes import ModelShape

TARGET = "target"
SECONDS = ("median_s", "p10_s", "p90_s", "distance")

Key = tuple[str, int, int, int]
"""(part, batch, context, width) of a pass."""


def minimum_latency(
    shape: ModelShape,
    speeds: DeviceSpeeds,
    rows: int,
    batch: int,
    context: int,
    layers: int | None = None,
    extra_weights: int = 0,
) -> float:
    """Least seconds of a pass: max(bytes / bandwidth, FLOP / rate), as `roofline.pass_seconds`.

    Bytes are those of `roofline.pass_bytes`, at median measured speeds. `extra_weights` are read
    beside them, and multiply each row.
    """
    moved = pass_bytes(shape, rows, batch, context, layers) + extra_weights * shape.weight_bytes
    flops = pass_flops(shape, rows, batch, context, 1, layers) + 2 * extra_weights * batch * rows
    return max(moved / speeds.bandwidth.median, flops / speeds.rate.median)


@dataclass(frozen=True)
class PassLatency:
    """Latency of one pass.

    | field | unit | meaning |
    | --- | --- | --- |
    | part | | "target", or the drafter whose step it is |
    | batch, context | | sequences, and rows cached before the pass in each |
    | width | | rows that each sequence passes |
    | median_s, p10_s, p90_s | s | of the repeats; None where it did not fit the device |
    | floor_s | s | `minimum_latency` |
    | distance | | median_s / floor_s |

    ValueError for sizes below 1 (context below 0), and for times not positive or out of order.
    """

    part: str
    batch: int
    context: int
    width: int
    median_s: float | None
    p10_s: float | None
    p90_s: float | None
    floor_s: float
    distance: float | None

    def __post_init__(self) -> None:
        where = (
            f"cell {self.part!r} batch {self.batch!r} context {self.context!r} width {self.width!r}"
        )
        if not isinstance(self.part, str):
            raise ValueError(f"{where}: part is no text, expected {TARGET!r} or a drafter")
        for name, least in (("batch", 1), ("context", 0), ("width", 1)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ValueError(f"{where}: {name} is {value!r}, expected an integer >= {least}")
        missing = all(getattr(self, name) is None for name in SECONDS)
        for name in ("floor_s", *(() if missing else SECONDS)):
            value = getattr(self, name)
            if type(value) not in (int, float) or not 0 < value < math.inf:
                raise ValueError(
                    f"{where}: {name} is {value!r}, expected a positive number"
                    + " or null in all four" * (name != "floor_s")
                )
        if missing:
            return
        if not self.p10_s <= self.median_s <= self.p90_s:  # type: ignore[operator]
            raise ValueError(
                f"{where}: p10 {self.p10_s}, median {self.median_s}, p90 {self.p90_s}, "
                "expected growing seconds"
            )
        ratio = self.median_s / self.floor_s  # type: ignore[operator]
        if not math.isclose(self.distance, ratio, rel_tol=1e-9):  # type: ignore[arg-type]
            raise ValueError(f"{where}: distance {self.distance} is not median / floor, {ratio}")

    @property
    def key(self) -> Key:
        """What is unique in one grid."""
        return self.part, self.batch, self.context, self.width

    @property
    def fits(self) -> bool:
        """Whether it fitted the device and was measured."""
        return self.median_s is not None


def pass_latency(key: Key, minimum: float, measured: Quantiles | None) -> PassLatency:
    """A PassLatency of measured seconds; None where the pass did not fit."""
    if measured is None:
        return PassLatency(*key, None, None, None, minimum, None)
    distance = measured.median / minimum
    return PassLatency(*key, measured.median, measured.p10, measured.p90, minimum, distance)
