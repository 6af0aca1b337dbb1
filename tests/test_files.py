"""Output files: refused before the work, written whole or not at all."""

import json
import os
import stat

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from import_files import read

from real.files import replace_json
from simspec import CostModel
from simspec.engines.imports import READERS
from simspec.output.files import check_keys, check_output, read_json, replacing, write_json


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    """One that fails in its middle, and one, of a cost, whose last step finds the disk full."""
    path = tmp_path / "a.json"
    path.write_text("old")

    def fail():
        with replacing(path) as part:
            part.write_text("half")
            raise RuntimeError("full")

    def full(*_):
        raise OSError(28, "No space left on device")

    with pytest.raises(RuntimeError, match="full"):
        fail()
    monkeypatch.setattr("os.replace", full)
    with pytest.raises(ValueError, match="a.json cannot be written: No space left on device"):
        CostModel.from_ratio(0.1, 2).to_json(path)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_written_files_have_the_mask_of_the_process(tmp_path):
    before = os.umask(0o027)
    try:
        with replacing(tmp_path / "a") as part:
            part.touch(0o600)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640
    assert os.umask(before) == before


def test_inputs_are_not_overwritten(tmp_path):
    source, link, hard = (tmp_path / name for name in ("in", "link", "hard"))
    source.write_text("x")
    link.symlink_to(source)
    hard.hardlink_to(source)
    for path in (source, link, hard, tmp_path / "." / "in"):
        with pytest.raises(ValueError, match="would overwrite .*: name another"):
            check_output(path, source)
    with pytest.raises(ValueError, match="would overwrite"):
        check_output(tmp_path / "new", tmp_path / "new")
    check_output(tmp_path / "new", source)


def test_a_missing_folder_is_refused_at_once(tmp_path):
    with pytest.raises(ValueError, match="there is no folder .*: make it, or name another"):
        check_output(tmp_path / "no" / "a")
    with pytest.raises(ValueError, match="is a folder, expected a file"):
        check_output(tmp_path)


@pytest.mark.parametrize(
    "data, words", [({"a": 1}, "missing keys"), ({"a": 1, "b": 2, "c": 3}, "unknown keys")]
)
def test_keys_are_those_that_are_known(data, words):
    check_keys({"a": 1, "b": 2}, "ab")
    with pytest.raises(ValueError, match=words):
        check_keys(data, "ab")


def test_errors_quote_no_more_of_a_file_than_a_line_holds(tmp_path, monkeypatch):
    def refuse(*_):
        raise ValueError(f"the name is {'x' * 40_000!r}")

    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(ValueError, match="not a cost: the name is 'xxx") as json_error:
        read_json(tmp_path / "a.json", refuse, "cost")
    monkeypatch.setitem(READERS, "aiperf", (refuse, ()))
    with pytest.raises(ValueError, match="a.json: the name is 'xxx") as import_error:
        read("aiperf", tmp_path / "a.json")
    assert len(str(json_error.value)) < 700
    assert len(str(import_error.value)) < 700


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda values: st.lists(values) | st.dictionaries(st.text(), values),
)


@given(JSON)
@example(["[\n1\n]", [1, 2], {"[\n": [[3], [], [-0.0, None, True]]}])
def test_json_is_read_as_it_was_written(tmp_path_factory, value):
    path = tmp_path_factory.mktemp("json") / "value.json"
    replace_json(path, value)
    assert json.dumps(json.loads(path.read_text()), sort_keys=True) == json.dumps(
        value, sort_keys=True
    )
    write_json(path, value)  # in the order that it has
    assert json.dumps(json.loads(path.read_text())) == json.dumps(value)


def test_lists_of_numbers_are_written_on_a_line(tmp_path):
    replace_json(tmp_path / "a.json", {"n": [1, 2.5, None], "s": ["a", "b"], "rows": [[1], [2]]})
    assert (tmp_path / "a.json").read_text() == (
        '{\n "n": [1, 2.5, null],\n "rows": [\n  [1],\n  [2]\n ],\n "s": [\n  "a",\n  "b"\n ]\n}\n'
    )
