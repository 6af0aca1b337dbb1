"""docs/tables.py: tables behind their commands, and those that are cheap to make anew."""

import runpy

import pytest
from documents import ROOT

from simspec.output.terminal import markdown_table
from simspec.reports.hybrid import WEIGHT_HEADINGS, weight_rows

TABLES = runpy.run_path(str(ROOT / "docs" / "tables.py"))
PAGE = "# Title\n\n<!-- table: simspec show -->\n\n{}\n\n<!-- table: end -->\n\ntext\n"


@pytest.fixture
def page(tmp_path, monkeypatch):
    monkeypatch.setitem(TABLES["renewed"].__globals__, "printed", lambda command: f"| {command} |")
    path = tmp_path / "page.md"
    path.write_text(PAGE.format("| old |"))
    return path


def test_a_table_that_differs_is_reported_and_written(page, capsys):
    assert TABLES["main"]([str(page)]) == 1
    assert "differs" in capsys.readouterr().out
    assert page.read_text() == PAGE.format("| old |")
    assert TABLES["main"](["--write", str(page)]) == 0
    assert page.read_text() == PAGE.format("| show |")
    assert TABLES["main"]([str(page)]) == 0


def test_an_empty_table_is_filled(page):
    page.write_text("<!-- table: simspec show -->\n\n<!-- table: end -->\n")
    assert TABLES["main"](["--write", str(page)]) == 0
    assert page.read_text() == "<!-- table: simspec show -->\n\n| show |\n\n<!-- table: end -->\n"


@pytest.mark.docs
def test_pages_name_their_commands():
    found = {name: TABLES["commands"](ROOT / "docs" / name) for name in ("hybrid.md", "results.md")}
    assert [command.split()[0] for command in found["hybrid.md"]] == [
        "hybrid", "hybrid", "hybrid", "drafters", "trees",
    ]  # fmt: skip
    assert [command.split()[0] for command in found["results.md"]] == [
        "score", "drafters", "trees", "paper",
    ]  # fmt: skip


@pytest.mark.docs
def test_weights_of_the_page_are_those_of_the_defaults():
    page = (ROOT / "docs" / "hybrid.md").read_text(encoding="utf-8")
    assert markdown_table(WEIGHT_HEADINGS, weight_rows()) in page
