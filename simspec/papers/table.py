"""PaperTable: a table in the shape of a published one, with intervals over prompts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from simspec.claims.evidence import LEVEL, Array
from simspec.numerics.stats import Interval, bootstrap, stacked
from simspec.output.terminal import markdown_table
from simspec.reports.intervals import interval_data, interval_text, number_or_none

RESAMPLES = 2000


@dataclass(frozen=True)
class Figure:
    """A cell: a figure with its interval, and further figures behind it.

    | field | meaning |
    | --- | --- |
    | interval | Interval over prompts; bounds NaN: none |
    | form | of the figure, as '.2f' |
    | extra | {name: figure} in parentheses |
    | prices | whether the interval is over prices too |
    """

    interval: Interval
    form: str = ".2f"
    extra: Mapping[str, float] = field(default_factory=dict)
    prices: bool = False

    @property
    def text(self) -> str:
        words = ", ".join(f"{name} {value:.1f}" for name, value in self.extra.items())
        return interval_text(self.interval, self.form) + (f" ({words})" if words else "")

    @property
    def data(self) -> dict[str, float | None]:
        extra = {name: number_or_none(value) for name, value in self.extra.items()}
        return interval_data(self.interval) | extra


Cell = str | Figure


@dataclass(frozen=True)
class PaperTable:
    """A table; the first `names` columns name the row.

    | field | meaning |
    | --- | --- |
    | title | the published table, and what is shown |
    | headings, rows | columns, and a tuple of cells a row |
    | notes | what differs from the paper, a sentence each |
    """

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    names: int = 1

    def texts(self) -> list[tuple[str, ...]]:
        """The rows as text."""
        return [tuple(c if isinstance(c, str) else c.text for c in row) for row in self.rows]

    @property
    def covers(self) -> list[str]:
        """What the intervals of the table cover: prices where those of some figure do."""
        priced = any(isinstance(cell, Figure) and cell.prices for row in self.rows for cell in row)
        return ["prompts", "prices"] if priced else ["prompts"]

    def markdown(self) -> str:
        """Title, table and notes."""
        parts = [f"**{self.title}**", markdown_table(self.headings, self.texts())]
        return "\n\n".join([*parts, *([" ".join(self.notes)] if self.notes else [])])

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON: a figure is {value, low, high}."""
        rows = [
            {h: c if isinstance(c, str) else c.data for h, c in zip(self.headings, row)}
            for row in self.rows
        ]
        about = {"title": self.title, "covers": self.covers}
        return about | {"rows": rows, "notes": list(self.notes)}


def figure(
    columns: Sequence[Array],
    statistic: Callable[[Array], Any],
    form: str = ".2f",
    seed: int = 0,
    extra: Mapping[str, float] | None = None,
) -> Figure:
    """A figure that is a function of sums over prompts; without bounds where some resample has
    none."""
    parts = stacked(*columns)
    priced = parts.ndim == 3 and parts.shape[2] > 1
    try:
        with np.errstate(divide="ignore", invalid="ignore"):
            interval = bootstrap(parts, statistic, LEVEL, RESAMPLES, seed)
    except ValueError:  # too few prompts, or a denominator of 0
        totals = parts.sum(axis=0).reshape(len(columns), -1)[:, 0]
        interval = plain(float(statistic(totals))).interval
    return Figure(interval, form, extra or {}, priced)


def plain(value: float, form: str = ".2f") -> Figure:
    """A figure without an interval."""
    return Figure(Interval(value, float("nan"), float("nan"), LEVEL, 0), form)


def quotient(totals: Array) -> Array:
    """a / b of totals [..., 2]."""
    found: Array = totals[..., 0] / totals[..., 1]
    return found
