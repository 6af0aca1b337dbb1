"""Fields, texts and tables at every width are whole; all forms of a table hold the same cells."""

import json
import math
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

from simspec.numerics.stats import Estimate
from simspec.output.frames import frame, show
from simspec.output.terminal import print_fields, print_text

WIDTHS = (60, 80, 120, 200, None)

words = st.text(
    st.characters(codec="utf-8", categories=("L", "N", "P", "Sm")), min_size=1, max_size=12
)
prefixes = st.sampled_from(["tiny-early_exit", "traces/[red]", "name-of-forty-characters-" * 2])
names = st.one_of(words, st.builds("{}-{}".format, prefixes, words))
names = names.filter(lambda name: cell_len(name) <= 56 and "…" not in name)
cells = st.one_of(st.floats(0, 99).map("{:.2f}".format), st.sampled_from(["-", "[/b]"]), words)


def printed(width, function, *arguments, **options):
    """What the function prints on a terminal of that width; None: into a pipe."""
    with (
        redirect_stdout(StringIO()) as out,
        patch("simspec.output.terminal.terminal_width", lambda: width),
    ):
        function(*arguments, **options)
    return out.getvalue()


@pytest.mark.parametrize("width", [None, 60])
def test_control_characters_in_fields_are_escaped(width):
    out = printed(width, print_fields, {"a\x1b[2J": "b\x1b]0;c\x07\nd"}, "e\x1b[1m")
    assert not set(out) & {"\x1b", "\x07"}
    for text in (r"a\x1b[2J", r"b\x1b]0;c\x07\nd", r"e\x1b[1m"):
        assert text in out


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


@st.composite
def tables(draw):
    named, measured = draw(st.integers(1, 3)), draw(st.integers(1, 12))
    headings = draw(
        st.lists(words, min_size=named + measured, max_size=named + measured, unique=True)
    )
    row = st.tuples(*[names] * named, *[cells] * measured)
    optional = draw(st.lists(st.sampled_from(headings[named:]), unique=True))
    return frame(
        draw(st.lists(row, min_size=1, max_size=9)), headings, names=named, optional=optional
    )


def shown(table, width=None, **options):
    return printed(width, show, table, **options)


@pytest.mark.parametrize("width", [60, 80, 120, None])
@settings(deadline=None, max_examples=30)
@given(table=tables())
def test_figures_are_whole_and_no_line_is_too_long(width, table):
    out = shown(table, width)
    for heading in table.columns[table.attrs["names"] :]:
        if heading not in table.attrs["optional"]:
            assert all(cell in out for cell in table[heading])
    if width is None:
        assert all(cell in out for row in table.itertuples(index=False) for cell in row)
    else:
        assert max(map(cell_len, out.splitlines())) <= width


def test_all_forms_show_the_same_cells():
    interval = Estimate(1.5, 1.25, 1.75, 0.95, 20)
    table = frame(
        [("a|*b*", 3, 0.25, interval), ("[red]", None, math.nan, interval)],
        ("policy", "K", "share", "speedup"),
        title="gains", notes=["a note"], formats={"share": ".0%"},
    )  # fmt: skip
    data = json.loads(shown(table, as_json=True, seed=1))
    assert data.pop("seed") == 1
    assert json.loads(shown([table], as_json=True)) == {"tables": [data]}
    assert (data["rows"][0]["K"], data["rows"][1]["share"]) == (3, None)
    assert data["rows"][0]["speedup"] == {"value": 1.5, "low": 1.25, "high": 1.75}
    assert (data["title"], data["notes"]) == ("gains", ["a note"])
    markdown = shown(table, as_markdown=True)
    assert r"| a\|\*b\* | 3 | 25% | 1.50 [1.25, 1.75] |" in markdown
    text = shown(table)
    for cell in ("a|*b*", "[red]", "25%", "1.50 [1.25, 1.75]", "gains", "a note"):
        assert cell in text


def test_optional_columns_are_named_where_they_are_left_out():
    table = frame([("p" * 8, "1.234", "0.833")], ("policy", "speedup", "v_d"), optional=["v_d"])
    out = shown(table, 26)
    assert "left out: v_d" in out
    assert "1.234" in out


def test_control_characters_are_escaped():
    table = frame([("a\nb", "1"), ("a\tb\x1b[1m", "2")], ("name", "x"), title="e\x1b[1m")
    for width in (None, 40):
        assert not set(shown(table, width)) & {"\x1b", "\t"}
