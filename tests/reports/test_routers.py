"""Routers on the bundled recordings: the table of docs/policies.md."""

import re

import pytest
from documents import ROOT

from simspec.reports.routers import compare_routers
from simspec.trace.recordings import comparable_costs

PAIR, SMOLLM2 = ROOT / "traces" / "coder" / "greedy", ROOT / "traces" / "smollm2" / "greedy"
DRAWN = {"hedge on tokens", "hedge on seconds", "normal hedge"}


@pytest.mark.docs
def test_page_has_the_figures_of_the_recordings():
    page = (ROOT / "docs" / "policies.md").read_text(encoding="utf-8")
    table = page[page.index("| router |") :].split("\n\n")[0].splitlines()[2:]
    printed = {name: cells for name, *cells in (row.strip("| ").split(" | ") for row in table)}
    prose = " ".join(page.split())
    told = re.search(r"regret is (\d+) and (\d+) tokens .* bounds are (\d+) and (\d+),", prose)
    *regrets, bound, other = map(int, told.groups())
    for folder, columns in ((PAIR, slice(0, 2)), (SMOLLM2, slice(2, 4))):
        paths = {str(path): path for path in sorted(folder.glob("*.parquet"))}
        costs, _ = comparable_costs(paths)
        found = compare_routers(paths, costs, draws=1, resamples=1000 if folder == PAIR else 50)
        rows = {(row.router, row.feedback): row for row in found}
        alone = [row for (name, _), row in rows.items() if "fixed" in name]
        best = max(alone, key=lambda row: row.speedup.value)
        for name, cells in printed.items():
            slack = 0.015 if name in DRAWN else 0.005  # of one draw where the page has four
            free, paid = cells[columns]
            found = best if name == "best alone" else rows.get((name, "free")) or rows[name, ""]
            assert float(free) == pytest.approx(found.speedup.value, abs=slack), name
            if paid != "-":
                value = rows[name, "paid"].speedup.value
                assert float(paid) == pytest.approx(value, abs=slack), name
        hedge = rows["hedge on tokens", "free"]
        assert round(hedge.bound) == (bound if folder == PAIR else other)
        assert hedge.regret_tokens == pytest.approx(regrets[folder == SMOLLM2], abs=1)
        if folder == PAIR:
            for row in (rows["leader", "free"], rows["leader", "paid"], rows["cascade", ""]):
                assert row.gain.text("+.2f") in prose
