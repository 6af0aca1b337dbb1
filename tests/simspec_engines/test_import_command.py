"""The command `simspec import`: its output, its files, and damaged or hostile input."""

import json
import re

import pytest
from console_pages import printed, steps
from documents import ROOT, blocks
from import_files import FIXTURES, FORMAT_OF, positions, rows_of, written
from shell import refused, simspec

from simspec.engines import EXPORT_FORMATS, EXTRA_IMPORTS, IMPORT_FORMATS
from simspec.engines.imports import READERS

PAGE = ROOT / "docs" / "exchange.md"


@pytest.mark.parametrize("name", FORMAT_OF)
def test_every_format_prints_its_kind_and_what_is_unknown(tmp_path, name):
    out, _ = simspec("import", FORMAT_OF[name], FIXTURES / name, cwd=tmp_path)
    printed, _ = simspec("import", FORMAT_OF[name], FIXTURES / name, "--json", cwd=tmp_path)
    report = json.loads(printed)
    assert f"kind  {report['kind']}" in out
    for unknown in report["not_concluded"]:
        assert f"unknown: {unknown}" in out
    assert report["file"] == name
    assert len(report["sha256"]) == 64


def test_every_format_has_a_reader_and_a_fixture():
    assert set(IMPORT_FORMATS) == set(READERS) == set(FORMAT_OF.values())


@pytest.mark.parametrize(
    "options, words",
    [
        (["--out", "x.json"], "ends in .parquet"),
        (["--out", "nowhere/x.parquet"], "no folder nowhere"),
        (["--temperature", "nan"], "--temperature is "),
        (["--at", 9], "K = 9 is outside 1 to"),
        (["--at", 0], "--at is"),
        (["--before", "absent"], "does not read before"),
    ],
)
def test_invalid_options_are_refused(tmp_path, options, words):
    source = FIXTURES / "specdecode-bench.jsonl"
    refused(tmp_path, "import", "specdecode-bench", source, *options, words=words)


@pytest.mark.parametrize(
    "format, options, words",
    [
        ("vllm-log", ["--drafted", 3], "does not read drafted"),
        ("vllm-log", ["--target", "x"], "does not read target"),
        ("aiperf", ["--end-token", 3], "does not read end_token"),
        ("vllm-prometheus", ["--before", "absent"], "absent cannot be read"),
        ("vllm-lo", [], "did you mean vllm-log?"),
        ("vllm-log", ["--out", "x.parquet"], "start at other tokens, so these rounds cannot be"),
    ],
)
def test_options_that_a_format_does_not_read_are_refused(tmp_path, format, options, words):
    refused(tmp_path, "import", format, FIXTURES / "vllm-log.txt", *options, words=words)


@pytest.mark.parametrize(
    "content, words",
    [
        (None, "cannot be read"),
        (b"\xff\xfe", "not UTF-8"),
        (b"", "no object has speculative_decoding"),
        (b"[1, 2]", "expected an object"),
        (b"{" * 100_000, "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not JSON"),
        (b'{"metrics": {"speculative_decoding": [1]}}', "expected `object`"),
    ],
)
def test_files_of_another_kind_are_refused(tmp_path, content, words):
    if content is not None:
        (tmp_path / "f").write_bytes(content)
    refused(tmp_path, "import", "vllm-requests", "f", words=words)


def test_large_files_are_refused_before_they_are_read(tmp_path):
    with open(tmp_path / "f", "wb") as file:
        file.truncate(257 << 20)
    refused(tmp_path, "import", "vllm-requests", "f", words="split it by lines")


def test_files_are_not_overwritten_by_their_own_import(tmp_path):
    path = written(tmp_path / "f.parquet", rows_of("specdecode-bench.jsonl"))
    refused(tmp_path, "import", "specdecode-bench", path, "--out", "f.parquet", words="overwrite")


def test_names_from_files_are_no_markup(tmp_path):
    path = written(tmp_path / "f", positions([([1], [2, 3], [2, 1])], drafter="[red]x\x1b[31m"))
    out, _ = simspec("import", "specdecode-bench", path, cwd=tmp_path)
    assert "[red]x" in out
    assert "\x1b" not in out


def test_drafters_names_do_not_leave_the_folder(tmp_path):
    rows = positions([([1], [2, 3], [2, 1])], drafter="../x")
    rows[0] |= {"acc_y": {"acc_len": [1, 1]}}
    path = written(tmp_path / "f", rows)
    arguments = ("import", "specdecode-bench", path, "--out", "r.parquet")
    refused(tmp_path, *arguments, words="expected letters")


def test_an_extra_adds_a_format(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr("simspec.cli._load_extras", lambda: ())
    monkeypatch.setitem(EXTRA_IMPORTS, "other", lambda settings: made.append(settings) or {"a": 1})
    out, _ = simspec("import", "other", "x", "--out", "y", "--json", cwd=tmp_path)
    assert json.loads(out) == {"a": 1}
    assert made[0].format == "other"


@pytest.mark.docs
def test_page_shows_todays_output(tmp_path):
    told = [step for block in blocks(PAGE, "console") for step in steps(block)]
    assert {words[1] for words, _ in told} >= {"import", "export"}
    for words, shown in told:
        assert printed(tmp_path, words, shown) == shown, " ".join(words)


@pytest.mark.docs
def test_page_names_every_format():
    named = re.findall(r"`([a-z-]+)`", PAGE.read_text(encoding="utf-8"))
    assert {*IMPORT_FORMATS, *EXPORT_FORMATS} <= set(named)
