"""The page of published figures against today's code."""

import pytest
from documents import ROOT, printed_by
from numba.core import config

from simspec.reports.transport import transport
from simspec.trace.recordings import locate
from simspec.validation.published_costs import published_costs

pytestmark = pytest.mark.docs

PAGE = (ROOT / "docs" / "transport.md").read_text(encoding="utf-8")


def rows_of_page(heading):
    """Rows of the page's table with that first heading."""
    return PAGE.partition(f"| {heading} |")[2].partition("\n\n")[0].splitlines()[2:]


def test_errors_of_published_speeds_are_todays():
    today = set()
    for result in published_costs()["errors"]:
        shares = (f"{result[name]:.2%}" for name in ("median", "p90", "worst"))
        cells = (result["group"], result["measure"], str(result["count"]), *shares)
        limit = "" if result["limit"] is None else f"{result['limit']:.0%}"
        today.add(f"| {' | '.join((*cells, limit))} |")
    shown = set(rows_of_page("tables"))
    assert len(shown) >= 6
    assert shown <= today


def test_fitted_costs_are_todays(tmp_path):
    path = tmp_path / "eagle3.cost.json"
    options = ("--from-table", "vllm-20780-eagle3", "--out", str(path), "--depth", "8")
    assert printed_by("cost", *options).replace(f"{tmp_path}/", "") in PAGE


@pytest.mark.skipif(config.DISABLE_JIT, reason="recordings take minutes when interpreted")
def test_accepted_lengths_of_bundled_recordings_are_todays():
    shown = rows_of_page("recording")
    names = [row.split(" | ")[0].removeprefix("| ") for row in shown]
    rows = {(row.recording, row.K): row for row in transport(locate(names))}
    for name, line in zip(names, shown, strict=True):
        first = rows[name, 1]
        last = rows[name, max(K for recording, K in rows if recording == name)]
        errors = (
            first.errors[f"table@{last.K}"],
            *(last.errors[estimate] for estimate in ("iid@1", "iid@3", "teacher-forced")),
        )
        texts = (error.text("+.1%") for error in errors)
        cells = (name, str(last.K), last.length.text(), *texts)
        assert f"| {' | '.join(cells)} |" == line
    assert len(shown) >= 4


def test_example_of_a_recording_is_todays():
    lines = printed_by("transport", "tiny-eagle-coupled").splitlines()
    assert "\n".join(lines[:7]) in PAGE
