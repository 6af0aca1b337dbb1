"""The papers' printed tables: intervals against exact fractions at a grid of inputs."""

from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simspec import formulas
from simspec.papers.printed import (
    EESD,
    GLIDE_1,
    eesd_cells,
    glide_cells,
    implied_cost,
    implied_costs,
    rounding,
    shared_cost,
)


def inside(text):
    """The printed number, its rounding's ends and points between, as exact fractions."""
    half = Fraction(1, 2 * 10 ** len(text.partition(".")[2]))
    return [Fraction(text) + half * Fraction(i, 2) for i in range(-2, 3)]


def reached(function, *texts):
    values = [function(*point) for point in product(*map(inside, texts))]
    return float(min(values)), float(max(values))


def eesd_rows():
    return [line.split() for line in EESD.strip().splitlines()]


def test_glide_intervals_equal_exact_arithmetic():
    cells_left = iter(glide_cells())
    for line in GLIDE_1.strip().splitlines():
        _, _, cost, *pairs = line.split()
        for acceptance, printed in zip(pairs[::2], pairs[1::2]):
            cell = next(cells_left)

            def speedup(a, c):
                return sum((a / 100) ** j for j in range(6)) / (1 + 5 * c / 100)

            assert (cell.low, cell.high) == pytest.approx(
                reached(speedup, acceptance, cost), abs=1e-12
            )
            assert cell.printed == printed
    assert next(cells_left, None) is None


def test_eesd_intervals_equal_exact_arithmetic():
    cells_left, plain = iter(eesd_cells()), None
    for _, _, method, _, v_d, r_d, hm, time, speed, speedup in eesd_rows():
        if method == "plain":
            plain = time, speed
            assert speedup == "1.00"
            continue
        for column, printed, function, texts in (
            ("HM", hm, lambda v, r: 200 * v * r / (v + r), (v_d, r_d)),
            ("speedup by speed", speedup, lambda a, b: a / b, (speed, plain[1])),
            ("speedup by time", speedup, lambda a, b: a / b, (plain[0], time)),
        ):
            cell = next(cells_left)
            assert cell.column == column
            assert cell.printed == printed
            assert (cell.low, cell.high) == pytest.approx(reached(function, *texts), abs=1e-9)
    assert next(cells_left, None) is None


def test_columns_are_in_order():
    """Time x speed is 512 tokens within rounding in every row of EESD's tables but one."""
    apart = []
    for table, target, method, _, v_d, r_d, hm, time, speed, speedup in eesd_rows():
        low, high = reached(lambda a, b: a * b, time, speed)
        if not low <= 512 <= high:
            apart.append((table, target, method))
        if method != "plain":
            assert 0 < float(v_d) < 1
            assert 0 < float(r_d) < 1
            assert float(hm) > 1
            assert len(speedup) == 4
    assert apart == [("10", "LLaMA-2-70B", "plain")]
    per_table = {
        table: sum(row[0] == table for row in eesd_rows()) for table in ("10", "11", "12", "13")
    }
    assert per_table == {"10": 26, "11": 26, "12": 12, "13": 12}
    assert len(glide_cells()) == 44
    assert len(eesd_cells()) == 3 * 64


def test_misfits_by_name(record_property):
    """GLIDE: one cell lost a digit. EESD Table 11: one HM, and a block with another base."""
    cells = glide_cells() + eesd_cells()
    names = [cell.name for cell in cells if not cell.ok]
    methods = ("vanilla Vicuna-7B", "self Self", "Medusa Self", "Beta-TS Self", "Cali-TS Self")
    block = [f"EESD 11, Vicuna-13B {method}, speedup by" for method in methods]
    assert names == [
        "GLIDE 1, Vicuna-7B LLAMA-160m, Spider speedup",
        "EESD 11, LLaMA-2-70B-chat vanilla LLaMA-2-7B-chat, HM",
        *(f"{label} {how}" for label in block for how in ("speed", "time")),
    ]
    record_property(
        "measured", f"papers: {len(names)} of {len(cells)} printed cells do not fit their own row"
    )


def test_wrong_digit_is_a_misfit():
    """A cell moved by 0.02 is a misfit where its interval is narrower: most cells."""
    moved = [replace(c, printed=f"{float(c.printed) + 0.02:.2f}") for c in glide_cells() if c.ok]
    assert sum(not cell.ok for cell in moved) > 0.8 * len(moved)
    hms = [cell for cell in eesd_cells() if cell.column == "HM" and cell.ok]
    assert not any(replace(cell, printed=f"{float(cell.printed) + 3:.2f}").ok for cell in hms)


@given(st.floats(0.05, 1), st.floats(0.05, 1), st.floats(0, 2))
def test_implied_cost_inverts_eq_14(v_d, r_d, c):
    assert implied_cost(v_d, r_d, formulas.eesd_speedup(v_d, r_d, c)) == pytest.approx(c, abs=1e-9)


def test_implied_costs_equal_a_grid_of_inputs(record_property):
    costs = implied_costs()
    for table, target, method, drafter, v_d, r_d, _, _, _, speedup in eesd_rows():
        if method != "plain":
            low, high = costs[target, method, drafter][f"EESD {table}"]
            values = [
                float(v * (1 - (1 - 1 / s) / r))
                for v, r, s in product(inside(v_d), inside(r_d), inside(speedup))
            ]
            assert (low, high) == pytest.approx((min(values), max(values)), abs=1e-12)
            assert low > 0
    several = {key: tables for key, tables in costs.items() if len(tables) > 1}
    shared = [key for key, tables in several.items() if shared_cost(tables)]
    record_property(
        "measured",
        f"papers: one c fits Eq. 14 in all EESD tables for {len(shared)} of {len(several)} "
        "target-method-drafters",
    )
    assert len(several) == 22
    assert ("LLaMA-2-13B", "Beta-TS", "Self") in shared
    assert ("LLaMA-2-13B", "Cali-TS", "Self") not in shared


def test_shared_cost():
    assert shared_cost({"a": (0.1, 0.3), "b": (0.2, 0.4)}) == (0.2, 0.3)
    assert shared_cost({"a": (0.1, 0.2), "b": (0.25, 0.4)}) is None


@pytest.mark.parametrize(
    "text, low, high", [("1.50", 1.495, 1.505), ("7.7", 7.65, 7.75), ("4", 3.5, 4.5)]
)
def test_rounding(text, low, high):
    assert np.allclose(rounding(text), (low, high), rtol=0, atol=1e-12)
