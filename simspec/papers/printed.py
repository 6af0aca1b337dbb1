"""Tables printed in the papers, as data.

Every number is kept as printed, since its digits give its rounding: 1.50 means [1.495, 1.505].
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from simspec import formulas

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


# GLIDE with a CAPE, Table 1 (draft length 5): target, drafter, cost coefficient in per cent, then
# acceptance in per cent and expected speedup on GSM8K, Finance-Alpaca, Spider, Code-Search-Python.
# The cost in the heading of Mistral's block is cut off ("5.") in the text at hand and belongs to no
# row; every other cell is readable.
GLIDE_1 = """
Vicuna-7B      LLAMA-68m    7.7  51.6 1.46  49.7 1.41  19.2 0.89  34.8 1.11
Vicuna-7B      LLAMA-160m  49.0  58.0 0.66  57.1 0.65  25.1 0.38  40.0 0.48
Vicuna-7B      GLIDE        6.7  64.8 1.97  63.2 1.90  55.7 1.64  67.0 2.06
Vicuna-13B     LLAMA-68m    6.2  50.2 1.51  49.3 1.48  19.0 0.94  32.7 1.13
Vicuna-13B     LLAMA-160m  39.3  56.8 0.75  56.8 0.75  25.4 0.45  38.3 0.54
Vicuna-13B     GLIDE        5.5  67.1 2.16  65.0 2.07  57.1 1.77  68.6 2.24
Vicuna-33B     LLAMA-68m    4.6  49.1 1.57  46.5 1.50  30.0 1.16  31.5 1.19
Vicuna-33B     LLAMA-160m  29.5  56.1 0.89  53.1 0.84  31.4 0.59  36.7 0.64
Vicuna-33B     GLIDE        6.8  69.3 2.16  64.3 1.94  62.7 1.87  68.9 2.14
Mistral-7B-Ins LLAMA-45m    4.9  36.7 1.27  40.2 1.34  41.9 1.38  44.5 1.44
Mistral-7B-Ins GLIDE        6.6  60.1 1.80  56.4 1.67  59.8 1.79  62.6 1.89
"""
GLIDE_TASKS = ("GSM8K", "Fin.-Alp.", "Spider", "Code")
GLIDE_DRAFT = 5

# EESD, Tables 10 (GSM8K), 11 (XSum), 12 (HumanEval), 13 (MT-bench): table, target, method, drafter,
# v_d, r_d, HM in per cent, inference time in seconds, tokens per second, speedup. The order of the
# columns follows from the numbers: time x speed is 512 tokens within rounding in every row but the
# first of Table 10 (512.2 at least), and v_d comes before r_d, since r_d / (v_d (1 - r_d)) drafted
# tokens a round are 4 for Medusa's 4 heads in its first row. plain is autoregressive decoding;
# Beta-TS and Cali-TS are EESD's; every cell is readable.
EESD = """
10 LLaMA-2-70B      plain    -                  -    -     - 56.32  9.10 1.00
10 LLaMA-2-70B      vanilla  LLaMA-2-7B      0.74 0.88 80.35 29.89 17.13 1.88
10 LLaMA-2-70B      self     Self            0.90 0.70 78.64 41.09 12.46 1.37
10 LLaMA-2-70B      Medusa   Self            0.25 0.50 33.75 32.56 15.72 1.73
10 LLaMA-2-70B      Beta-TS  Self            0.52 0.68 58.79 26.44 19.36 2.13
10 LLaMA-2-70B      Cali-TS  Self            0.56 0.71 62.25 24.61 20.80 2.29
10 LLaMA-2-70B-chat plain    -                  -    -     - 56.53  9.06 1.00
10 LLaMA-2-70B-chat vanilla  LLaMA-2-7B-chat 0.52 0.83 63.90 39.17 13.07 1.44
10 LLaMA-2-70B-chat self     Self            0.66 0.70 67.99 49.89 10.26 1.13
10 LLaMA-2-70B-chat Medusa   Self            0.16 0.39 22.86 39.97 12.81 1.41
10 LLaMA-2-70B-chat Beta-TS  Self            0.39 0.62 47.76 31.57 16.22 1.79
10 LLaMA-2-70B-chat Cali-TS  Self            0.39 0.62 48.23 31.04 16.49 1.82
10 LLaMA-2-13B      plain    -                  -    -     - 21.93 23.35 1.00
10 LLaMA-2-13B      vanilla  LLaMA-2-7B      0.81 0.89 84.59 22.78 22.48 0.96
10 LLaMA-2-13B      vanilla  TinyLLaMA-1.1B  0.76 0.90 82.49 18.43 27.78 1.19
10 LLaMA-2-13B      self     Self            0.90 0.73 80.53 16.04 31.92 1.37
10 LLaMA-2-13B      Medusa   Self            0.24 0.47 31.71 12.42 41.22 1.77
10 LLaMA-2-13B      Beta-TS  Self            0.50 0.67 57.22 11.46 44.68 1.91
10 LLaMA-2-13B      Cali-TS  Self            0.52 0.69 58.97 10.77 47.54 2.04
10 Vicuna-13B       plain    -                  -    -     - 22.26 23.00 1.00
10 Vicuna-13B       vanilla  Vicuna-7B       0.52 0.83 64.22 32.40 15.80 0.69
10 Vicuna-13B       vanilla  Vicuna-68M      0.17 0.60 26.87 17.39 29.44 1.28
10 Vicuna-13B       self     Self            0.76 0.62 68.07 17.91 28.59 1.24
10 Vicuna-13B       Medusa   Self            0.19 0.42 26.08 14.57 35.14 1.53
10 Vicuna-13B       Beta-TS  Self            0.34 0.58 43.01 14.16 36.16 1.57
10 Vicuna-13B       Cali-TS  Self            0.35 0.59 43.53 14.00 36.57 1.59
11 LLaMA-2-70B      plain    -                  -    -     - 62.59  8.18 1.00
11 LLaMA-2-70B      vanilla  LLaMA-2-7B      0.57 0.83 67.30 42.85 11.95 1.46
11 LLaMA-2-70B      self     Self            0.80 0.60 68.60 51.72  9.90 1.21
11 LLaMA-2-70B      Medusa   Self            0.19 0.42 25.69 44.21 11.58 1.42
11 LLaMA-2-70B      Beta-TS  Self            0.44 0.63 51.91 34.81 14.71 1.80
11 LLaMA-2-70B      Cali-TS  Self            0.46 0.65 53.41 33.58 15.25 1.86
11 LLaMA-2-70B-chat plain    -                  -    -     - 62.57  8.18 1.00
11 LLaMA-2-70B-chat vanilla  LLaMA-2-7B-chat 0.70 0.66 62.75 44.98 11.38 1.39
11 LLaMA-2-70B-chat self     Self            0.66 0.70 68.38 53.93  9.49 1.16
11 LLaMA-2-70B-chat Medusa   Self            0.12 0.31 17.02 52.01  9.85 1.20
11 LLaMA-2-70B-chat Beta-TS  Self            0.32 0.55 40.73 41.32 12.39 1.51
11 LLaMA-2-70B-chat Cali-TS  Self            0.33 0.57 41.85 40.43 12.66 1.55
11 LLaMA-2-13B      plain    -                  -    -     - 22.46 22.80 1.00
11 LLaMA-2-13B      vanilla  LLaMA-2-7B      0.67 0.86 75.63 29.09 17.60 0.77
11 LLaMA-2-13B      vanilla  TinyLLaMA-1.1B  0.67 0.86 75.42 21.39 23.94 1.05
11 LLaMA-2-13B      self     Self            0.87 0.70 77.61 16.63 30.79 1.35
11 LLaMA-2-13B      Medusa   Self            0.18 0.41 25.03 14.67 34.90 1.53
11 LLaMA-2-13B      Beta-TS  Self            0.48 0.66 55.46 12.18 42.04 1.84
11 LLaMA-2-13B      Cali-TS  Self            0.49 0.67 56.45 11.69 43.80 1.92
11 Vicuna-13B       plain    -                  -    -     - 22.82 22.44 1.00
11 Vicuna-13B       vanilla  Vicuna-7B       0.41 0.79 53.77 40.71 12.58 0.55
11 Vicuna-13B       vanilla  Vicuna-68M      0.15 0.56 23.05 19.50 26.26 1.17
11 Vicuna-13B       self     Self            0.69 0.54 60.38 20.14 25.42 1.12
11 Vicuna-13B       Medusa   Self            0.11 0.29 15.55 18.28 28.01 1.21
11 Vicuna-13B       Beta-TS  Self            0.24 0.47 32.23 17.96 28.51 1.25
11 Vicuna-13B       Cali-TS  Self            0.25 0.48 32.50 17.75 28.85 1.27
12 LLaMA-2-13B      plain    -                  -    -     - 21.83 23.45 1.00
12 LLaMA-2-13B      vanilla  LLaMA-2-7B      0.86 0.89 87.32 22.60 22.65 0.97
12 LLaMA-2-13B      self     Self            0.89 0.72 79.93 16.09 31.82 1.36
12 LLaMA-2-13B      Medusa   Self            0.19 0.42 26.67 13.57 37.73 1.61
12 LLaMA-2-13B      Beta-TS  Self            0.54 0.72 61.43 10.52 48.67 2.08
12 LLaMA-2-13B      Cali-TS  Self            0.55 0.73 62.87 10.14 50.49 2.15
12 CodeLLaMA-2-13B  plain    -                  -    -     - 22.82 22.44 1.00
12 CodeLLaMA-2-13B  vanilla  CodeLLaMA-2-7B  0.92 0.90 91.12 20.84 24.57 1.09
12 CodeLLaMA-2-13B  self     Self            0.92 0.76 83.51 16.58 30.88 1.38
12 CodeLLaMA-2-13B  Medusa   Self            0.45 0.55 49.14 11.56 44.29 1.97
12 CodeLLaMA-2-13B  Beta-TS  Self            0.64 0.75 68.94 10.31 49.66 2.21
12 CodeLLaMA-2-13B  Cali-TS  Self            0.65 0.76 70.15  9.32 54.94 2.45
13 LLaMA-2-13B      plain    -                  -    -     - 21.61 23.69 1.00
13 LLaMA-2-13B      vanilla  LLaMA-2-7B      0.91 0.89 90.01 21.19 24.16 1.02
13 LLaMA-2-13B      self     Self            0.94 0.85 89.25 13.68 37.43 1.58
13 LLaMA-2-13B      Medusa   Self            0.38 0.50 43.08 11.43 44.79 1.89
13 LLaMA-2-13B      Beta-TS  Self            0.56 0.70 62.15 10.65 48.08 2.03
13 LLaMA-2-13B      Cali-TS  Self            0.58 0.72 64.31 10.24 49.99 2.11
13 Vicuna-13B       plain    -                  -    -     - 21.38 23.95 1.00
13 Vicuna-13B       vanilla  Vicuna-7B       0.79 0.85 81.50 23.49 21.80 0.91
13 Vicuna-13B       self     Self            0.93 0.80 86.20 14.64 34.97 1.46
13 Vicuna-13B       Medusa   Self            0.22 0.46 30.11 12.50 40.96 1.71
13 Vicuna-13B       Beta-TS  Self            0.45 0.63 52.82 11.75 43.57 1.82
13 Vicuna-13B       Cali-TS  Self            0.47 0.66 54.83 11.31 45.27 1.89
"""


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


def cells() -> list[Cell]:
    """All cells that have a formula."""
    return glide_cells() + eesd_cells()


def misfits() -> list[Cell]:
    """The cells that no inputs within the printed rounding produce."""
    return [cell for cell in cells() if not cell.ok]


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
