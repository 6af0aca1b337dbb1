"""Names from files are text wherever they are shown: no markup, no formula, no escape sequence."""

import csv
import json
import logging
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pages import Document
from shell import command, simspec

from simspec import CostModel, synthetic
from simspec.output.names import csv_text, label_text, markdown_text, printable, printable_logs
from simspec.reports.comparison import Question
from simspec.reports.page import all_figures, page_of

HOSTILE = (
    "code[python]", "code[java]", "[/b]", "\x1b[2J\x1b]0;title\x07",
    "a|b\n<script>alert(1)</script>", "$\\frac{$", "=cmd|'/c calc'!A1", "_hidden",
    "\u202egnp.exe"
)  # fmt: skip
UNSAFE = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A recording whose tasks, ids and notes are hostile."""
    place = tmp_path_factory.mktemp("names")
    trace = synthetic.iid(0.7, len(HOSTILE), 30, 4)
    meta = replace(
        trace.meta, tasks=HOSTILE, ids=tuple(reversed(HOSTILE)), target="\x1b[31mred[/b]",
        drafter="x\x1b[1m|$y$", argv=("simspec", "\x1b]8;;http://x\x07")
    )  # fmt: skip
    replace(trace, meta=meta).save(place / "t.parquet")
    return place


@pytest.mark.parametrize("by", ["task", "prompt"])
def test_sweep_shows_every_task_as_it_is(folder, by):
    out, _ = simspec("sweep", "t.parquet", "--by", by, "--policy", "fixed:1", cwd=folder)
    assert not UNSAFE.search(out)
    for name in HOSTILE:
        assert printable(name) in out


SWEEP = ("sweep", "t.parquet", "--replicates", 1, "--cost", 0.1, "--report")
COMMANDS = (
    ("report", "--show", "t.parquet"),
    (*SWEEP, "oracle", "--policy", "fixed:1"),
    (*SWEEP, "oracle", "--policy", "fixed:1", "--markdown"),
    (*SWEEP, "differences", "--policy", "fixed:1"),
    (*SWEEP, "drafters", "--by", "task"),
    (*SWEEP, "drafters", "--by", "task", "--markdown"),
)


@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda a: " ".join(map(str, a)))
def test_no_escape_sequence_reaches_the_terminal(folder, arguments):
    _, out, error = command(folder, *arguments)
    assert not UNSAFE.search(out)
    assert not UNSAFE.search(error)
    assert "Traceback" not in error


def test_errors_and_notes_hold_no_escape_sequence(folder):
    (folder / "bad\x1b[1m.jsonl").write_text("x")
    code, _, error = command(folder, "sweep", "bad\x1b[1m.jsonl")
    assert code == 2
    assert r"\x1b[1m" in error
    assert not UNSAFE.search(error)
    with printable_logs():
        given = "library", 30, "f", 1, "%s:\n%d%%", ("bad\x1b[1m%s", 5), None
        record = logging.getLogger("library").makeRecord(*given)
    assert record.getMessage() == "bad\\x1b[1m%s:\n5%"


def test_csv_holds_no_formula_nor_control_character_and_json_names_as_they_are(folder):
    asked = "sweep", "t.parquet", "--policy", "fixed:1", "--by", "task", "--out", "o.csv", "--json"
    out, _ = simspec(*asked, cwd=folder)
    assert {row["group"] for row in json.loads(out)["rows"]} == set(HOSTILE)
    text = (folder / "o.csv").read_text()
    assert not UNSAFE.search(text)
    groups = {row["group"] for row in csv.DictReader(text.splitlines())}
    assert groups == set(map(csv_text, HOSTILE))
    assert not any(group.startswith(("=", "+", "-", "@")) for group in groups)


def test_page_shows_hostile_names_as_text():
    trace = synthetic.iid(0.7, 9, 30, 4)
    name = "<img src=x onerror=alert(1)>\x1b[1m\u202e"
    meta = replace(trace.meta, drafter=name, target=name, tasks=(name,) * 9)
    traces, cost = {f"{name}.parquet": replace(trace, meta=meta)}, CostModel.from_ratio(0.1, 4)
    html = page_of(list(all_figures(traces, cost, ("fixed:1",), 1, Question(resamples=199))))
    page = Document(html)
    assert not {*page.tags} & {"img", "script"}
    assert not UNSAFE.search(html)
    assert printable(name) in "".join(page.text)


def test_what_a_spreadsheet_would_run_is_quoted():
    for text in ("=1+1", "+1", "-1", "@cmd"):
        assert csv_text(text) == "'" + text


@settings(deadline=None)
@given(st.text(max_size=40))
def test_escaped_text_is_read_back_as_it_was(text):
    cell = markdown_text(text)
    assert not re.search(r"(?<!\\)(?:\\\\)*[|<>`*]", cell)
    assert re.sub(r"\\([^\w\s]|_)", r"\1", cell) == printable(text)
    assert csv_text(text).removeprefix("'") == printable(text).removeprefix("'")


@settings(deadline=None, max_examples=30)
@given(st.text("$\\_^{}a", max_size=12))
def test_labels_are_no_mathematics(text):
    from matplotlib.text import Text

    shown, is_math = Text(0, 0, label_text(text))._preprocess_math(label_text(text))
    assert not is_math
    assert shown == text


def test_control_plain_text_is_mathematics():
    """Control: matplotlib does read these names as mathematics where nobody escapes them."""
    from matplotlib.text import Text

    assert Text(0, 0, "$x$")._preprocess_math("$x$")[1]
