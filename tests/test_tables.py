"""docs/tables.py: tables behind their commands, and those that are cheap to make anew."""

import pytest
from documents import ROOT, TABLES, stale_tables

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


NOTED = "**one**\n\n| a |\n| --- |\n| 1 |\n| 2 |\n\nnote\n\n**two**\n\n| b |\n| --- |\n| 3 |"


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ("", NOTED),
        ("; rows", NOTED.replace("note\n\n", "")),
        ("; 1 rows", "**one**\n\n| a |\n| --- |\n| 1 |\n\n**two**\n\n| b |\n| --- |\n| 3 |"),
    ],
)
def test_a_page_keeps_the_rows_that_it_asks_for(page, monkeypatch, options, kept):
    monkeypatch.setitem(TABLES["renewed"].__globals__, "printed", lambda command: NOTED)
    comment = f"<!-- table: simspec show{options} -->"
    page.write_text(f"{comment}\n\n<!-- table: end -->\n")
    assert TABLES["commands"](page) == ["show"]
    TABLES["main"](["--write", str(page)])
    shown = f"{kept}\n\n" if kept else ""
    assert (
        page.read_text().replace("\n\n\n", "\n\n") == f"{comment}\n\n{shown}<!-- table: end -->\n"
    )
    assert TABLES["main"]([str(page)]) == 0


SWEPT = {"results": "coupled | all | 120 | 0.53", "smollm2": "greedy | all | 97 | 0.65"}


@pytest.mark.docs
@pytest.mark.parametrize("name", SWEPT)
def test_tables_of_sweeps_are_current(tmp_path, name):
    text = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    assert stale_tables(ROOT / "docs" / f"{name}.md", "sweep") == []
    other = tmp_path / f"{name}.md"
    other.write_text(text.replace(SWEPT[name], f"{SWEPT[name][:-1]}9"))
    assert [command.split()[0] for command in stale_tables(other, "sweep")] == ["sweep"]
