"""Tables printed in the papers, and what their formulas allow.

Every number is kept as printed, since its digits give its rounding: 1.50 means [1.495, 1.505].
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from simspec import formulas
from simspec.published import FOLDER

Range = tuple[float, float]


def rounding(text: str) -> Range:
    """The closed interval of numbers that print as this text: half a unit of its last digit."""
    half = 0.5 * 10.0 ** -len(text.partition(".")[2])
    return float(text) - half, float(text) + half


def range_of(function: Callable[..., Any], *texts: str) -> Range:
    """(least, greatest) value of a function of printed numbers.

    The function must be monotone in each argument whatever the others are: its extremes lie at
    corners of the box.
    """
    values = [float(function(*corner)) for corner in product(*map(rounding, texts))]
    return min(values), max(values)


GLIDE_1 = (FOLDER / "glide-table-1.txt").read_text("utf-8")
EESD = (FOLDER / "eesd-tables-10-13.txt").read_text("utf-8")
"""Rows of the tables as printed; their columns are in `published/SOURCES.txt`."""
GLIDE_TASKS = ("GSM8K", "Fin.-Alp.", "Spider", "Code")
GLIDE_DRAFT = 5


def table_rows(table: str) -> list[list[str]]:
    """The cells of a table's rows, as printed."""
    return [line.split() for line in table.strip().splitlines()]


@dataclass(frozen=True)
class Cell:
    """One printed number and the interval [low, high] that its row's other numbers allow.

    The cell is a misfit if no inputs inside their printed rounding give an output inside its own.
    """

    table: str
    row: str
    column: str
    printed: str
    low: float
    high: float

    @property
    def ok(self) -> bool:
        """Whether the interval meets the printed number's rounding."""
        first, last = rounding(self.printed)
        return bool(self.low <= last + 1e-12 and self.high >= first - 1e-12)

    @property
    def name(self) -> str:
        return f"{self.table}, {self.row}, {self.column}"


def glide_cells() -> list[Cell]:
    """GLIDE Table 1's 44 speedups against (1 - alpha^6) / ((1 - alpha)(5 c + 1))."""

    def speedup_of(alpha: float, c: float) -> float:
        return formulas.expected_speedup(alpha / 100, GLIDE_DRAFT, c / 100)

    cells = []
    for target, drafter, cost, *pairs in table_rows(GLIDE_1):
        for task, acceptance, speedup in zip(GLIDE_TASKS, pairs[::2], pairs[1::2]):
            row, column = f"{target} {drafter}", f"{task} speedup"
            allowed = range_of(speedup_of, acceptance, cost)
            cells.append(Cell("GLIDE 1", row, column, speedup, *allowed))
    return cells


def eesd_cells() -> list[Cell]:
    """EESD Tables 10-13: HM from v_d and r_d, speedups from speed and from time over plain's."""

    def hm_of(v_d: float, r_d: float) -> float:
        return 100 * formulas.harmonic_mean(v_d, r_d)

    def quotient(a: float, b: float) -> float:
        return a / b

    cells, plain_time, plain_speed = [], "", ""
    for table, target, method, drafter, v_d, r_d, hm, time, speed, speedup in table_rows(EESD):
        if method == "plain":
            plain_time, plain_speed = time, speed
            continue
        label = f"EESD {table}", f"{target} {method} {drafter}"
        by_speed = range_of(quotient, speed, plain_speed)
        by_time = range_of(quotient, plain_time, time)
        cells.append(Cell(*label, "HM", hm, *range_of(hm_of, v_d, r_d)))
        cells.append(Cell(*label, "speedup by speed", speedup, *by_speed))
        cells.append(Cell(*label, "speedup by time", speedup, *by_time))
    return cells


def implied_cost(v_d: float, r_d: float, speedup: float) -> float:
    """The c = T_d / T_t at which Eq. 14 gives this speedup: v_d (1 - (1 - 1/speedup) / r_d).

    Below 0 there is none.
    """
    return v_d * (1 - (1 - 1 / speedup) / r_d)


def implied_costs() -> dict[tuple[str, str, str], dict[str, Range]]:
    """{(target, method, drafter): {table: (low, high)}}: c by EESD Tables 10-13, with rounding.

    Eq. 14 charges one plain step for a verification, so c includes whatever a round costs beyond.
    """
    costs: dict[tuple[str, str, str], dict[str, Range]] = {}
    for table, target, method, drafter, v_d, r_d, _, _, _, speedup in table_rows(EESD):
        if method != "plain":
            of_pair = costs.setdefault((target, method, drafter), {})
            of_pair[f"EESD {table}"] = range_of(implied_cost, v_d, r_d, speedup)
    return costs


def shared_cost(intervals: Mapping[str, Range]) -> Range | None:
    """The c that every table's interval allows; None where they disagree beyond rounding."""
    low = max(low for low, _ in intervals.values())
    high = min(high for _, high in intervals.values())
    return (low, high) if low <= high else None
