"""Cells of the papers' tables that the formulas cannot produce from the rest of their row."""

from dataclasses import dataclass

from simspec import formulas
from simspec.validation.paper_tables import EESD, GLIDE_1, GLIDE_DRAFT, GLIDE_TASKS, table_rows
from simspec.validation.rounding import range_of, rounding


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


def cells() -> list[Cell]:
    """All cells that have a formula."""
    return glide_cells() + eesd_cells()


def misfits() -> list[Cell]:
    """The cells that no inputs within the printed rounding produce."""
    return [cell for cell in cells() if not cell.ok]
