"""The Parquet file of a trace: one row group, page checksums, and a hash of everything."""

import base64
import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from typing import Any, TypeVar

import numpy as np

from simspec.output.files import replacing
from simspec.trace.meta import ARRAYS, BY_ROW, BY_SEQUENCE, TraceError, TraceMeta

T = TypeVar("T")

MOST_BYTES, MOST_RATIO = 64 << 20, 1000
"""Decoded bytes that are always read, and how many for each byte of the file beyond."""
FIXED = "FIXED_LEN_BYTE_ARRAY"
WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8}
"""Bytes of a decoded value by its type in the file."""


def parquet_options(small: bool) -> dict[str, Any]:
    """Options of a ParquetWriter for columns of packed bytes, which no dictionary shortens."""
    return {
        "compression": "brotli" if small else "zstd",
        "compression_level": 11 if small else 19,
        "use_dictionary": False,
        "write_page_checksum": True,
    }


def write_trace(trace: Any, path: str | PathLike[str], small: bool = False) -> None:
    """Writes the trace to one Parquet file, completely or not at all.

    `small` saves 6% of the size and takes 5 times as long.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {
        name: array if array.ndim == 1 else _binary_column(_file_axes(name, array))
        for name in BY_ROW
        if (array := getattr(trace, name)) is not None and array.size
    }
    extra: dict[str, Any] = {name: _pack(getattr(trace, name)) for name in BY_SEQUENCE}
    extra |= {"meta": trace.meta.to_json(), "sha256": digest(trace)}
    table = pa.table(columns)
    options = parquet_options(small) | {"write_statistics": False, "store_schema": False}
    with replacing(path) as temporary, pq.ParquetWriter(temporary, table.schema, **options) as file:
        file.write_table(table)
        file.add_key_value_metadata({"simspec": json.dumps(extra)})


def read_trace(path: str | PathLike[str], make: Callable[..., T]) -> T:
    """make(meta=..., name=array, ...) of the file's content, whose checksums and hash are verified.

    TraceError, one line with the path, whatever is wrong with the file; nothing in it is executed.
    """
    with opened(path) as (file, extra):
        meta = TraceMeta.from_json(extra["meta"])
        rows = row_arrays(file.read(use_threads=False), meta)
        trace = make(meta=meta, **sequence_arrays(extra), **rows)
        check_digest(digest(trace), extra)
        return trace


@contextmanager
def opened(path: str | PathLike[str], **options: Any) -> Iterator[tuple[Any, Any]]:
    """(pyarrow's file, the metadata of its footer) of a recording whose declared sizes are sane.

    Whatever is wrong with the file in the body is a TraceError, one line with the path.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, page_checksum_verification=True, **options) as file:
            metadata = file.metadata.metadata or {}
            if b"simspec" not in metadata:
                raise TraceError(
                    "it is a Parquet file that simspec did not write: name a recording"
                )
            check_size(file, os.path.getsize(path), BY_ROW)
            yield file, json.loads(metadata[b"simspec"])
    except FileNotFoundError:
        raise TraceError(f"{path}: no such file") from None
    except (
        OSError, TypeError, ValueError, KeyError, pa.ArrowException,
        MemoryError, OverflowError, RecursionError,
    ) as error:  # fmt: skip
        reason = f"{error} is missing or unknown" if isinstance(error, KeyError) else str(error)
        reason = " ".join(reason.split())[:300] or type(error).__name__
        raise TraceError(f"{path}: not a readable trace: {reason}") from None


def stored_meta(path: str | PathLike[str]) -> TraceMeta:
    """The metadata of a recording, without its rows; TraceError as for `load_trace`."""
    with opened(path) as (_, extra):
        return TraceMeta.from_json(extra["meta"])


def digest(trace: Any) -> str:
    """SHA-256 of the metadata and every array: page checksums do not cover the file's footer."""
    arrays = {name: getattr(trace, name) for name in ARRAYS}
    shapes = {name: None if array is None else array.shape for name, array in arrays.items()}
    return digest_of_blocks(trace.meta, shapes, lambda name: [arrays[name]])


def digest_of_blocks(
    meta: TraceMeta,
    shapes: Mapping[str, tuple[int, ...] | None],
    blocks: Callable[[str], Iterable[np.ndarray]],
) -> str:
    """`digest` where an array of a shape comes in consecutive blocks."""
    sha256 = hashlib.sha256(meta.to_json().encode())
    for name in ARRAYS:
        shape = shapes[name]
        if name in ("order", "beam") and shape is None:
            continue  # recordings made before there were trees keep their hash
        sha256.update(f"{name}:{'-' if shape is None else shape}".encode())
        for block in () if shape is None else blocks(name):
            sha256.update(block.tobytes())
    return sha256.hexdigest()


def check_digest(found: str, extra: Any) -> None:
    """TraceError where a recording's content has another hash than its file says."""
    if found != extra["sha256"]:
        raise TraceError("its content does not match its hash: the file is damaged, fetch it again")


def sequence_arrays(extra: Any) -> dict[str, np.ndarray]:
    """The arrays of a recording that have no row for each token."""
    return {name: _unpack(extra[name], ARRAYS[name][0]) for name in BY_SEQUENCE}


def row_arrays(table: Any, meta: TraceMeta) -> dict[str, np.ndarray]:
    """The arrays of these rows of a file, or some of its columns."""
    return {name: _read_column(table, name, meta) for name in table.column_names}


def check_size(file: Any, size: int, names: Collection[str]) -> None:
    """TraceError for other columns than `names`, or those that decode to far more than the file.

    Runs of equal values take a few bytes whatever their length: only the footer says how long.
    """
    row = 0
    for i in range(file.metadata.num_columns):
        column = file.schema.column(i)
        name, *inner = column.path.split(".")
        if name not in names:
            raise KeyError(name[:40])
        kind = "list" if column.max_repetition_level else column.physical_type
        width = column.length if kind == FIXED else WIDTHS.get(kind)
        if inner or width is None:
            raise TraceError(
                f"column {name} is {kind}, expected one number, or a fixed number of bytes, a row"
            )
        row += width
    groups = (file.metadata.row_group(i) for i in range(file.metadata.num_row_groups))
    rows = max(file.metadata.num_rows, sum(group.num_rows for group in groups))
    _check_decoded(rows * row, size, f"{rows} rows of {row} bytes")


def _check_decoded(decoded: int, size: int, what: str) -> None:
    if decoded > max(MOST_BYTES, MOST_RATIO * size):
        raise TraceError(
            f"{what} in a file part of {size} bytes, expected at most {MOST_RATIO} times its size: "
            "it is no recording, or damaged: fetch it again"
        )


def _read_column(table: Any, name: str, meta: TraceMeta) -> np.ndarray:
    dtype, axes = ARRAYS[name]
    column = table.column(name)
    if column.null_count or len(axes) == 1 and column.type != dtype:
        raise TraceError(
            f"column {name} is {column.type} with {column.null_count} nulls, "
            f"expected {dtype} with none"
        )
    if len(axes) == 1:
        # to_numpy would import pandas
        return np.from_dlpack(column.combine_chunks()).astype(dtype)
    sizes = {"N": table.num_rows, "K": meta.K, "F": len(meta.features), "2": 2}
    axes = ("N", "F", "K") if name == "feature" else axes
    width = column.type.byte_width
    parts = [
        np.frombuffer(chunk.buffers()[1], np.uint8, len(chunk) * width, chunk.offset * width)
        for chunk in column.chunks
        if len(chunk)
    ]
    values = np.concatenate(parts or [np.zeros(0, np.uint8)]).view(dtype)
    return _file_axes(name, values.reshape([sizes[axis] for axis in axes])).copy()


def _file_axes(name: str, array: np.ndarray) -> np.ndarray:
    """The array with its axes in file order, or back: a feature's slots are contiguous, since they
    repeat by row.
    """
    return array.swapaxes(1, 2) if name == "feature" else array


def _binary_column(array: np.ndarray) -> Any:
    """One fixed-size binary value a row: rows of a prefix-only drafter are shifted copies, which
    zstd detects.
    """
    import pyarrow as pa

    flat = np.ascontiguousarray(array).reshape(len(array), -1)
    width = flat.shape[1] * flat.itemsize
    buffers = [None, pa.py_buffer(flat)]
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(flat), buffers)


def _pack(array: np.ndarray) -> list[Any]:
    """[length, its bytes as zstd in base64]"""
    import pyarrow as pa

    packed = pa.Codec("zstd", 19).compress(array.tobytes(), asbytes=True)
    return [len(array), base64.b64encode(packed).decode()]


def _unpack(packed: list[Any], dtype: str) -> np.ndarray:
    import pyarrow as pa

    length, encoded = packed
    if type(length) is not int or length < 0:
        raise TraceError(f"a table's length is {length!r}, expected an integer >= 0")
    size = length * np.dtype(dtype).itemsize
    _check_decoded(size, len(encoded), f"a table of {length} numbers")
    raw = pa.decompress(base64.b64decode(encoded, validate=True), size, "zstd", asbytes=True)
    return np.frombuffer(raw, dtype).copy()
