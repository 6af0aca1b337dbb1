"""Damaged recordings: load_trace and every command refuse them in one line."""

import json
import pickle
from contextlib import chdir, suppress

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from inputs import PickleBomb, small_recording, with_fields
from shell import refused

import simspec.trace.file
from simspec import Trace, TraceError, load_trace
from simspec.trace.file import SCHEMA

EXAMPLES = settings(
    deadline=None, max_examples=250, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="module")
def file_bytes(tmp_path_factory):
    """The bytes of a real recording of three texts."""
    path = tmp_path_factory.mktemp("raw") / "t.parquet"
    small_recording().save(path)
    return path.read_bytes()


def regions(file_bytes):
    """Where a Parquet file's parts begin and end: head, pages, footer, tail."""
    footer = len(file_bytes) - 8 - int.from_bytes(file_bytes[-8:-4], "little")
    assert file_bytes[:4] == file_bytes[-4:] == b"PAR1"
    assert 4 < footer < len(file_bytes) - 8
    return (
        (0, 4),
        (4, footer),
        (footer, len(file_bytes) - 8),
        (len(file_bytes) - 8, len(file_bytes)),
    )


def loads_equal_or_is_refused(path, damaged):
    path.write_bytes(damaged)
    try:
        assert load_trace(path) == small_recording()
        return False
    except TraceError as error:
        assert str(error).startswith(str(path))
        assert "\n" not in str(error)
        assert len(str(error)) < 600
        return True


@EXAMPLES
@given(st.data())
def test_flipped_bit_never_gives_another_trace(tmp_path, file_bytes, data):
    first, last = data.draw(st.sampled_from(regions(file_bytes)))
    place = data.draw(st.integers(first, last - 1))
    damaged = bytearray(file_bytes)
    damaged[place] ^= 1 << data.draw(st.integers(0, 7))
    loads_equal_or_is_refused(tmp_path / "t.parquet", bytes(damaged))


@EXAMPLES
@given(st.data())
def test_damage_never_gives_another_trace(tmp_path, file_bytes, data):
    """Bytes cut out, zeroed, doubled or overwritten, anywhere."""
    first, last = data.draw(st.sampled_from(regions(file_bytes)))
    place, many = data.draw(st.integers(first, last - 1)), data.draw(st.integers(1, 64))
    middle = data.draw(
        st.sampled_from([b"", bytes(many), b"\xff" * many, file_bytes[place : place + many] * 2])
        | st.binary(min_size=1, max_size=64)
    )
    loads_equal_or_is_refused(
        tmp_path / "t.parquet", file_bytes[:place] + middle + file_bytes[place + many :]
    )


@EXAMPLES
@given(st.data())
def test_truncated_file_is_refused(tmp_path, file_bytes, data):
    length = data.draw(
        st.integers(0, len(file_bytes) - 1)
        | st.integers(max(len(file_bytes) - 40, 0), len(file_bytes) - 1)
    )
    assert loads_equal_or_is_refused(tmp_path / "t.parquet", file_bytes[:length])


def test_control_without_checksums_another_trace_is_read(tmp_path, file_bytes, monkeypatch):
    """Without hash and page checksums, some flipped bit of the pages gives another trace."""
    stored = simspec.trace.file.digest(small_recording())
    opened = pq.ParquetFile
    monkeypatch.setattr(simspec.trace.file, "digest", lambda trace: stored)
    monkeypatch.setattr(pq, "ParquetFile", lambda path, **_: opened(path))
    other, path = 0, tmp_path / "t.parquet"
    for place in range(4, len(file_bytes), max(1, len(file_bytes) // 400)):
        path.write_bytes(
            file_bytes[:place] + bytes([file_bytes[place] ^ 1]) + file_bytes[place + 1 :]
        )
        with suppress(TraceError):
            other += load_trace(path) != small_recording()
    assert other > 0


def rewritten(path, extra=None, table=None):
    """A Parquet file of the recording with table(its table), extra(its metadata) or text for it."""
    small_recording().save(path)
    with pq.ParquetFile(path) as file:
        original, metadata = file.read(), json.loads(file.metadata.metadata[b"simspec"])
    table = original if table is None else table(original)
    encoded = (
        extra
        if isinstance(extra, str)
        else json.dumps(metadata | (extra(metadata) if extra else {}))
    )
    with pq.ParquetWriter(path, table.schema.remove_metadata(), store_schema=False) as writer:
        writer.write_table(table.replace_schema_metadata(None))
        writer.add_key_value_metadata({"simspec": encoded})


def meta(**changes):
    return lambda metadata: {"meta": json.dumps(json.loads(metadata["meta"]) | changes)}


def write_pickle(path):
    path.write_bytes(pickle.dumps(PickleBomb()))


def swapped(name, column):
    return lambda t: t.set_column(t.schema.names.index(name), name, column(t.num_rows))


def column(name, values):
    return lambda path: rewritten(path, table=swapped(name, values))


def budget_of(length):
    """A table beside the rows that declares another length."""
    return lambda path: rewritten(path, lambda kept: {"budget": [length, kept["budget"][1]]})


def footer(**changed):
    return lambda path: rewritten(path, lambda kept: changed)


NOT_TRACES = {
    "missing": (lambda path: None, "no such file"),
    "empty": (lambda path: path.write_bytes(b""), "not a readable trace"),
    "a folder": (lambda path: path.mkdir(), "is a directory"),
    "text": (lambda path: path.write_text("hello"), "not a readable trace"),
    "a pickle": (write_pickle, "not a readable trace"),
    "another Parquet file": (
        lambda path: pq.write_table(pa.table({"token": [1, 2]}), path), "simspec did not write"
    ),
    "a later schema": (
        lambda path: rewritten(path, meta(schema=SCHEMA + 1)), f"this version reads {SCHEMA}"
    ),
    "no schema": (footer(meta="{}"), "meta.schema is None"),
    "metadata that nests deep": (lambda path: rewritten(path, "[" * 300_000), "nested too deeply"),
    "meta that nests deep": (footer(meta='{"a":' * 100_000), "nested too deeply"),
    "notes that nest": (lambda path: rewritten(path, meta(notes=[[[]]])), "meta.notes is"),
    "huge notes": (
        lambda path: rewritten(path, meta(notes="x" * 20_000_000)), "does not match its hash"
    ),
    "huge numbers": (
        lambda path: rewritten(path, '{"meta": ' + "1" * 5000 + "}"), "not a readable trace"
    ),
    "a huge K": (lambda path: rewritten(path, meta(K=10**400)), "meta.K is 1000"),
    "metadata of another kind": (lambda path: rewritten(path, "[]"), "not a readable trace"),
    "metadata that misses all": (lambda path: rewritten(path, "{}"), "'meta' is missing"),
    "a table of 2**40 entries": (budget_of(1 << 40), "not a readable"),
    "a table of 2**70 entries": (budget_of(1 << 70), "not a readable"),
    "a table of -1 entries": (budget_of(-1), "length is -1"),
    "other numbers": (footer(sha256="0"), "does not match its hash"),
    "a column of NaN": (column("token", lambda n: pa.array([np.nan] * n)), "token is double"),
    "a column of nulls": (column("token", lambda n: pa.array([None] * n, pa.int32())), "nulls"),
    "a column of lists": (column("token", lambda n: pa.array([[1]] * n)), "token is list"),
    "an unknown column": (
        lambda path: rewritten(path, table=lambda t: t.append_column("more", t["token"])),
        "'more' is missing",
    ),
    "fewer rows": (lambda path: rewritten(path, table=lambda t: t.slice(0, 5)), "to 5 rows"),
    "no columns": (lambda path: rewritten(path, table=lambda t: pa.table({})), "not a readable"),
}  # fmt: skip


@pytest.mark.parametrize("kind", NOT_TRACES)
def test_invalid_file_is_refused_by_every_reader(tmp_path, kind):
    make, words = NOT_TRACES[kind]
    make(tmp_path / "x.parquet")
    for reader in (["sweep", "--out", "o.csv", "--cost", 0.1], ["report", "--show"], ["run"]):
        refused(tmp_path, reader[0], "x.parquet", *reader[1:], words=words)
    assert not (tmp_path / "exploded").exists()


def test_control_valid_file_is_read_and_pickle_would_run(tmp_path):
    rewritten(tmp_path / "x.parquet")
    assert load_trace(tmp_path / "x.parquet") == small_recording()
    with chdir(tmp_path):
        pickle.loads(pickle.dumps(PickleBomb()))
    assert (tmp_path / "exploded").is_dir()


def test_invalid_trace_error_names_field_and_row(tmp_path, monkeypatch):
    deep = small_recording().depth.copy()
    deep[7], run = 1, np.minimum(small_recording().run, 1)
    run[7] = 2
    for parts, words in (
        (dict(run=run, depth=deep, rank=None), "run, row 7: 2"),
        (dict(depth=deep + 250), "depth, row"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(Trace, "validate", lambda self: self)
            with_fields(small_recording(), **parts).save(tmp_path / "x.parquet")
        for reader in (["sweep"], ["report", "--show"], ["run"]):
            refused(tmp_path, *reader, "x.parquet", words=words)
