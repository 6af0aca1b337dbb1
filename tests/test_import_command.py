"""The command `simspec import`: its output, its files, and damaged or hostile input."""

import json
import re

import pytest
from console_pages import printed, steps
from documents import ROOT, blocks
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from import_files import FIXTURES, FORMAT_OF, changed, positions, rows_of, written
from shell import command, refused, simspec

from simspec import load_trace
from simspec.engines.formats import IMPORTS, read_import
from simspec.engines.import_report import import_report
from simspec.engines.source import ImportFormat

PAGE = ROOT / "docs" / "importing.md"


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


def test_every_format_has_a_fixture_or_declares_an_example(tmp_path):
    for name in set(IMPORTS) - set(FORMAT_OF.values()) - {"simspec"}:
        assert IMPORTS[name].example
        (tmp_path / "file").write_text(IMPORTS[name].example)
        assert import_report(read_import(name, tmp_path / "file"))


@pytest.mark.parametrize("name", [n for n in FORMAT_OF if not n.startswith("specdecode")])
def test_summary_reads_back_as_the_same_import(tmp_path, name):
    format = FORMAT_OF[name]
    simspec("import", format, FIXTURES / name, "--out", "s.json", cwd=tmp_path)
    again = import_report(read_import("simspec", tmp_path / "s.json"))
    assert again == import_report(read_import(format, FIXTURES / name))


@pytest.mark.parametrize("name", ["vllm-requests.jsonl", "vllm-log.txt"])
def test_rounds_and_sums_become_no_recording(tmp_path, name):
    words = "start at other tokens, so these rounds cannot be replayed"
    refused(tmp_path, "import", FORMAT_OF[name], FIXTURES / name, "--out", "x.parquet", words=words)


def test_a_summary_is_no_recording_for_other_commands(tmp_path):
    simspec(
        "import", "vllm-requests", FIXTURES / "vllm-requests.jsonl", "--out", "s.json", cwd=tmp_path
    )
    refused(tmp_path, "sweep", "s.json", words="not a readable trace")


def test_one_drafter_is_chosen(tmp_path):
    source = FIXTURES / "specdecode-bench.jsonl"
    arguments = ("import", "specdecode-bench", source, "--drafter", "ngram", "--out", "n.parquet")
    simspec(*arguments, "--depth", 2, "--target", "llama", "--task", "math", cwd=tmp_path)
    meta = load_trace(tmp_path / "n.parquet").meta
    assert (meta.drafter, meta.K, meta.target) == ("ngram", 2, "llama")
    assert set(meta.tasks) == {"math"}


@pytest.mark.parametrize(
    "options, words",
    [
        (["--out", "x.json"], "ends in .parquet"),
        (["--out", "nowhere/x.parquet"], "no folder nowhere"),
        (["--drafter", "medusa"], "which has eagle, ngram"),
        (["--rule", "rejection"], "rule is 'rejection'"),
        (["--temperature", "nan"], "temperature is nan"),
        (["--depth", 9], "whether deeper drafts were tried is unknown"),
        (["--depth", 0], "K is 0"),
        (["--at", 9], "K = 9 is outside 1 to"),
        (["--at", 0], "K = 0 is outside 1 to"),
        (["--before", "absent"], "absent cannot be read"),
        (["--before", FIXTURES / "eagle.jsonl"], "does not read before"),
        (["--level", 2], "level is 2"),
    ],
)
def test_invalid_options_are_refused(tmp_path, options, words):
    source = FIXTURES / "specdecode-bench.jsonl"
    refused(tmp_path, "import", "specdecode-bench", source, *options, words=words)


@pytest.mark.parametrize(
    "format, option, words",
    [
        ("vllm-log", ["--drafted", 3], "does not read drafted"),
        ("vllm-log", ["--depth", 3], "does not read K"),
        ("specdecode-bench", ["--drafted", 3], "does not read drafted"),
        ("eagle", ["--end-token", 3], "does not read end_tokens"),
    ],
)
def test_options_that_a_format_ignores_are_refused(tmp_path, format, option, words):
    refused(tmp_path, "import", format, FIXTURES / "vllm-log.txt", *option, words=words)


def test_formats_are_named_on_a_wrong_one(tmp_path):
    refused(tmp_path, "import", "vllm-request", "x", words="did you mean vllm-requests?")


@pytest.mark.parametrize(
    "content, words",
    [
        (None, "cannot be read"),
        (b"\xff\xfe", "not UTF-8"),
        (b"", "no response has"),
        (b"[1, 2]", "expected an object"),
        (b"{" * 100_000, "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not JSON"),
        (b'{"metrics": {"speculative_decoding": [1]}}', "expected an object"),
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


@settings(
    deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_damaged_files_are_read_or_refused_in_one_line(tmp_path, data):
    name = data.draw(st.sampled_from(sorted(FORMAT_OF)))
    content = (FIXTURES / name).read_bytes()
    place = data.draw(st.integers(0, len(content) - 1))
    size = data.draw(st.integers(0, 8))
    middle = data.draw(
        st.sampled_from([b"", b"-1", b"null", b"1e400", b"9" * 30, b"0", b"[]", b"{}", b'""'])
        | st.binary(max_size=4)
    )
    path = tmp_path / "damaged"
    path.write_bytes(content[:place] + middle + content[place + size :])
    try:
        result = read_import(FORMAT_OF[name], path)
    except ValueError as error:
        assert "\n" not in str(error)
        assert str(path) in str(error)
        return
    json.dumps(import_report(result), allow_nan=False)


@settings(
    deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_values_of_other_types_are_read_or_refused(tmp_path, data):
    name = data.draw(st.sampled_from(sorted(n for n in FORMAT_OF if ".json" in n)))
    odd = st.sampled_from([None, True, -1, 0, 1.5, "x", [], {}, [[]], 1 << 60, [None], {"1": -2}])
    rows = rows_of(name)
    spot = data.draw(st.sampled_from(rows))
    while True:
        key = data.draw(
            st.sampled_from(sorted(spot) if isinstance(spot, dict) else range(len(spot)))
        )
        if not (isinstance(spot[key], dict | list) and spot[key] and data.draw(st.booleans())):
            break
        spot = spot[key]
    spot[key] = data.draw(odd)
    path = written(tmp_path / "odd", rows)
    try:
        result = read_import(FORMAT_OF[name], path)
    except ValueError as error:
        assert "\n" not in str(error)
        return
    json.dumps(import_report(result), allow_nan=False)


@pytest.mark.docs
def test_page_shows_todays_output(tmp_path):
    for block in blocks(PAGE, "console"):
        for words, shown in steps(block):
            assert printed(tmp_path, words, shown) == shown, " ".join(words)


@pytest.mark.docs
def test_page_has_a_row_for_every_format():
    text = PAGE.read_text(encoding="utf-8")
    named = re.findall(r"`([a-z-]+)`", "".join(re.findall(r"^\| (`[^|]+) \|", text, re.M)))
    assert set(IMPORTS) <= set(named)


def test_control_an_unknown_kind_of_error_would_be_noticed(tmp_path, monkeypatch):
    monkeypatch.setitem(IMPORTS, "eagle", ImportFormat("eagle", lambda source, options: 1 / 0))
    with pytest.raises(ZeroDivisionError):
        read_import("eagle", FIXTURES / "eagle.jsonl")


def test_help_has_an_example():
    code, out, _ = command(ROOT, "import", "--help")
    assert code == 0
    assert "Example: simspec import" in out


def test_stop_of_one_request_is_left_out(tmp_path):
    path = changed(
        tmp_path / "f", "sglang.jsonl", lambda row: row["meta_info"].update(spec_verify_ct=0)
    )
    refused(tmp_path, "import", "sglang", path, words="no round with a draft")
