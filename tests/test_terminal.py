"""Tables at every width hold every row and every name, whole and distinct."""

import os
import pty
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from simspec.output.table import print_table
from simspec.output.terminal import print_fields, print_text

WIDTHS = (60, 80, 120, 200, None)

words = st.text(
    st.characters(codec="utf-8", categories=("L", "N", "P", "Sm")), min_size=1, max_size=12
)
prefixes = st.sampled_from(["tiny-early_exit", "traces/[red]", "name-of-forty-characters-" * 2])
names = st.one_of(words, st.builds("{}-{}".format, prefixes, words))
names = names.filter(lambda name: cell_len(name) <= 56 and "…" not in name)
cells = st.one_of(st.floats(0, 99).map("{:.2f}".format), st.sampled_from(["-", "[/b]"]), words)


@st.composite
def tables(draw):
    """(headings, rows, number of name columns, optional headings)."""
    named, measured = draw(st.integers(1, 3)), draw(st.integers(1, 12))
    size = named + measured
    headings = draw(st.lists(names, min_size=size, max_size=size, unique=True))
    keys = draw(st.lists(st.tuples(*[names] * named), min_size=1, max_size=9, unique=True))
    rows = [(*key, *draw(st.tuples(*[cells] * measured))) for key in keys]
    return headings, rows, named, draw(st.lists(st.sampled_from(headings[named:]), unique=True))


def printed(width, function, *arguments, **options):
    """What the function prints on a terminal of that width; None: into a pipe."""
    with (
        redirect_stdout(StringIO()) as out,
        patch("simspec.output.terminal.terminal_width", lambda: width),
    ):
        function(*arguments, **options)
    return out.getvalue()


@pytest.mark.parametrize("width", WIDTHS)
@settings(deadline=None, max_examples=40)
@given(table=tables())
def test_names_and_cells_are_whole_and_no_line_is_too_long(width, table):
    headings, rows, named, optional = table
    out = printed(width, print_table, headings, rows, names=named, optional=optional)
    for row in rows:
        for name in row[:named]:
            assert name in out
    for heading in headings[named:]:
        assert heading in out
    for i, heading in enumerate(headings[named:], named):
        for row in rows if heading not in optional else ():
            assert row[i] in out
    if width is not None:
        assert max(map(cell_len, out.splitlines())) <= width


HEADINGS = ("recording", "cost", "policy", "tokens/round", "v_d", "r_d", "speedup")


def rows_of(recordings, policies):
    return [
        (
            f"tiny-early_exit-{name}",
            "ratio=0.1",
            f"policy:{i}",
            "2.331",
            "0.833",
            "0.612",
            f"{i}.234",
        )
        for name in recordings
        for i in range(policies)
    ]


def test_table_that_fits_keeps_every_row_on_one_line():
    out = printed(120, print_table, HEADINGS, rows_of(["greedy", "coupled"], 3), names=3)
    for row in rows_of(["greedy", "coupled"], 3):
        assert sum(all(cell in line for cell in row) for line in out.splitlines()) == 1


def test_equal_names_move_to_the_title():
    out = printed(70, print_table, HEADINGS, rows_of(["greedy"], 8), names=3, title="speedups")
    assert out.splitlines()[0] == "speedups; recording tiny-early_exit-greedy; cost ratio=0.1"
    assert out.count("tiny-early_exit-greedy") == 1


def test_few_rows_are_transposed():
    out = printed(50, print_table, HEADINGS[2:], [r[2:] for r in rows_of(["greedy"], 3)])
    assert any("policy:0" in line and "policy:2" in line for line in out.splitlines())


def test_many_rows_are_printed_as_sections():
    out = printed(60, print_table, HEADINGS, rows_of(["greedy", "coupled"], 8), names=3)
    assert "recording tiny-early_exit-greedy\n" in out
    assert "recording tiny-early_exit-coupled\n" in out
    assert out.count("policy:7") == 2


def test_optional_columns_are_named_where_they_are_left_out():
    headings, rows = HEADINGS[2:], [r[2:] for r in rows_of(["greedy"], 8)]
    out = printed(45, print_table, headings, rows, optional=("r_d", "v_d"), elsewhere="--csv")
    assert "left out: r_d (in a wider terminal or with" in out
    assert "0.612" not in out
    assert "0.833" in out


def test_columns_that_may_not_be_left_out_continue_in_further_tables():
    headings = ("policy", *(f"tiny-early_exit-{i}" for i in range(5)))
    rows = [(f"fixed:{k}", *(f"{k}.{i}" for i in range(5))) for k in range(9)]
    out = printed(60, print_table, headings, rows)
    assert out.count("fixed:8") > 1
    assert all(f"8.{i}" in out for i in range(5))


def test_names_wider_than_the_terminal_are_listed():
    rows = [("a" * 70 + str(i), "1.5") for i in range(2)]
    out = printed(60, print_table, ("name", "speedup"), rows)
    assert out.count("speedup: 1.5") == 2
    assert ("a" * 70 + "1") in out.replace("\n", "")


def test_control_characters_in_names_are_escaped():
    out = printed(80, print_table, ("name", "x"), [("a\nb", "1"), ("a\tb\x1b[1m", "2")])
    assert r"a\nb" in out
    assert r"a\tb\x1b[1m" in out


@pytest.mark.parametrize("width", [None, 60])
def test_control_characters_in_fields_are_escaped(width):
    out = printed(width, print_fields, {"a\x1b[2J": "b\x1b]0;c\x07\nd"}, "e\x1b[1m")
    assert not set(out) & {"\x1b", "\x07"}
    for text in (r"a\x1b[2J", r"b\x1b]0;c\x07\nd", r"e\x1b[1m"):
        assert text in out


def test_table_without_rows_prints_its_headings():
    for width in WIDTHS:
        assert "recording" in printed(width, print_table, HEADINGS, [], names=3)


@pytest.mark.parametrize("width", WIDTHS)
@settings(deadline=None, max_examples=40)
@given(fields=st.dictionaries(names, st.lists(cells).map(" ".join), min_size=1))
def test_names_of_fields_are_whole_and_texts_complete(width, fields):
    out = printed(width, print_fields, fields)
    for name in fields:
        assert name in out
    assert sorted("".join("".join(pair) for pair in fields.items()).replace(" ", "")) == sorted(
        "".join(out.split())
    )
    if width is not None:
        assert max(map(cell_len, out.splitlines())) <= width


def test_text_wraps_on_a_terminal_and_not_in_a_pipe():
    text = "[red] words " * 20
    assert printed(None, print_text, text) == text + "\n"
    assert max(map(len, printed(60, print_text, text).splitlines())) <= 60
    assert printed(60, print_text, "") == ""


@pytest.mark.parametrize("width", [60, 120])
def test_width_is_the_terminals(width):
    code = "from simspec.output.terminal import terminal_width; print(terminal_width())"
    controller, terminal = pty.openpty()
    environment = os.environ | {"COLUMNS": str(width)}
    subprocess.run([sys.executable, "-c", code], stdout=terminal, env=environment, check=True)
    os.close(terminal)
    assert os.read(controller, 100).split() == [str(width).encode()]
    os.close(controller)
    piped = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment)
    assert piped.stdout.split() == [b"None"]
