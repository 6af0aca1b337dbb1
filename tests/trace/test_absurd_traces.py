"""Valid Parquet files with absurd sizes are refused before their content is decoded."""

import json
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from inputs import small_recording

from simspec import TraceError, load_trace, synthetic
from simspec.trace.exits import read_exits
from simspec.trace.file import MOST_BYTES, check_size


@pytest.fixture
def parts(tmp_path):
    """(table, the metadata beside it) of a small recording."""
    small_recording().save(tmp_path / "small.parquet")
    with pq.ParquetFile(tmp_path / "small.parquet") as file:
        return file.read(), json.loads(file.metadata.metadata[b"simspec"])


def written(path, table, extra, **options):
    rows = options.pop("row_group_size", None)
    with pq.ParquetWriter(path, table.schema, compression="zstd", **options) as file:
        file.write_table(table, row_group_size=rows)
        file.add_key_value_metadata({"simspec": json.dumps(extra)})
    return path


def refused_undecoded(path, monkeypatch, words):
    monkeypatch.setattr(pq.ParquetFile, "read", None)
    with pytest.raises(TraceError, match=words) as error:
        load_trace(path)
    assert str(error.value).startswith(str(path))
    assert "NoneType" not in str(error.value)


def test_rows_that_the_file_cannot_hold_and_wide_values_are_refused(tmp_path, monkeypatch, parts):
    rows, width = MOST_BYTES // 4 + 1, (MOST_BYTES >> 10) + 1
    rank = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(width), 1 << 10, [None, pa.py_buffer(bytes(width << 10))]
    )
    for name, column, words in (
        ("token", pa.array(np.zeros(rows, np.int32)), f"{rows} rows of 4 bytes"),
        ("rank", rank, f"{1 << 10} rows of {width} bytes"),
    ):
        table = pa.table({name: column})
        path = written(tmp_path / "x.parquet", table, parts[1], use_dictionary=name == "token")
        refused_undecoded(path, monkeypatch, words)


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[1], [2]]),
        pa.array([{"a": {"b": 1}}] * 2),
        pa.array(["x", "y"]),
        pa.array([b"x", b"yy"]),
    ],
    ids=["list", "struct", "text", "bytes"],
)
def test_columns_of_other_forms_are_refused(tmp_path, monkeypatch, parts, column):
    for name in ("rank", "unknown"):
        path = written(tmp_path / "x.parquet", pa.table({name: column}), parts[1])
        refused_undecoded(path, monkeypatch, "column rank is|'unknown' is missing or unknown")


@pytest.mark.parametrize("name", ["offset", "prompt", "budget"])
@pytest.mark.parametrize("length", [10**8, 10**15, 1 << 62])
def test_tables_that_their_bytes_cannot_hold_are_refused(tmp_path, parts, name, length):
    table, extra = parts
    extra[name][0] = length
    path = written(tmp_path / "x.parquet", table, extra)
    with pytest.raises(TraceError, match=f"a table of {length} numbers"):
        load_trace(path)


def test_rows_of_groups_count_where_the_footer_names_fewer(tmp_path, parts):
    """The rows of the groups are what is decoded, whatever the footer's own total says."""
    table, extra = parts
    path = written(tmp_path / "x.parquet", table, extra)
    true = pq.ParquetFile(path)
    names = set(true.schema.names)
    check_size(true, path.stat().st_size, names)

    def claims(total, *groups):
        metadata = SimpleNamespace(
            num_columns=true.metadata.num_columns, num_rows=total, num_row_groups=len(groups),
            row_group=lambda i: SimpleNamespace(num_rows=groups[i]),
        )  # fmt: skip
        return SimpleNamespace(metadata=metadata, schema=true.schema)

    for lying in (claims(1, 10**7, 10**9), claims(10**9, 1)):
        with pytest.raises(TraceError, match="rows of .* bytes in a file part"):
            check_size(lying, path.stat().st_size, names)


def test_exits_that_their_file_cannot_hold_are_refused(tmp_path, monkeypatch):
    table = pa.table({"token": pa.array(np.zeros(MOST_BYTES // 4 + 1, np.int32))})
    pq.write_table(table, tmp_path / "x.exits.parquet", compression="zstd", use_dictionary=True)
    recording = small_recording()  # reads a file
    monkeypatch.setattr(pq.ParquetFile, "read", None)
    with pytest.raises(ValueError, match="no exits of this recording: .* rows of 4 bytes"):
        read_exits(tmp_path / "x.exits.parquet", recording)


def test_control_other_forms_of_the_same_file_are_read(tmp_path, parts):
    """Control: row groups, pages and dictionaries of any size decode to the recording."""
    table, extra = parts
    forms = {"row_group_size": 1}, {"data_page_size": 1}, {"use_dictionary": True}
    for options in forms:
        path = written(tmp_path / "x.parquet", table, extra, **options)
        assert load_trace(path) == small_recording()


def test_control_repetitive_recordings_are_read(tmp_path):
    """Control: a long recording that compresses well is within the limit."""
    trace = synthetic.iid(1.0, 4, 50_000, 16)
    trace.save(tmp_path / "x.parquet")
    assert load_trace(tmp_path / "x.parquet") == trace
