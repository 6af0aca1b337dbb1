"""The tables of docs/results.md are what the commands print today."""

import pytest
from documents import ROOT, stale_tables

pytestmark = pytest.mark.docs

PAGE = ROOT / "docs" / "results.md"


@pytest.mark.parametrize("command", ["sweep"])
def test_tables_are_current(command):
    assert stale_tables(PAGE, command) == []


def test_control_another_figure_is_noticed(tmp_path):
    page = tmp_path / "results.md"
    text = PAGE.read_text(encoding="utf-8")
    page.write_text(text.replace("| coupled | all | 120 | 0.53", "| coupled | all | 120 | 0.54"))
    assert [command.split()[0] for command in stale_tables(page, "sweep")] == ["sweep"]
