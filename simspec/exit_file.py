"""The Parquet file of a sorted drafter's exits, beside the recording that they belong to."""

import json
import os
from dataclasses import fields
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from simspec.exit_drafts import ExitDrafts
from simspec.files import replacing
from simspec.trace import Trace
from simspec.trace_file import check_size, digest

COLUMNS = tuple(f.name for f in fields(ExitDrafts)[1:])


def write_exits(drafts: ExitDrafts, trace: Trace, path: str | PathLike[str]) -> None:
    """Writes the exits of `trace`, completely or not at all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {}
    for name in COLUMNS:
        flat = np.ascontiguousarray(getattr(drafts, name)).reshape(len(drafts.token), -1)
        if flat.shape[1]:
            columns[name] = pa.FixedSizeBinaryArray.from_buffers(
                pa.binary(flat.shape[1] * flat.itemsize), len(flat), [None, pa.py_buffer(flat)]
            )
    about = {"layers": drafts.layers, "features": drafts.feature.shape[2], "trace": digest(trace)}
    table = pa.table(columns).replace_schema_metadata({"simspec.exits": json.dumps(about)})
    with replacing(path) as temporary:
        pq.write_table(table, temporary, compression="zstd", write_page_checksum=True)


def read_exits(path: str | PathLike[str], trace: Trace) -> ExitDrafts:
    """The exits of `trace`; ValueError, one line, for a damaged file or another recording's."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            check_size(file, os.path.getsize(path), COLUMNS)
            table = file.read(use_threads=False)
        about = json.loads((table.schema.metadata or {})[b"simspec.exits"])
        layers = tuple(_count(layer) for layer in about["layers"])
        exits, features = len(layers), _count(about["features"])
        if about["trace"] != digest(trace):
            raise ValueError("it belongs to another recording")
        return ExitDrafts(layers, *(_column(table, name, exits, features) for name in COLUMNS))
    except (
        OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, MemoryError,
        RecursionError, pa.ArrowException,
    ) as error:  # fmt: skip
        reason = " ".join(str(error).split())[:300]
        raise ValueError(f"{path}: no exits of this recording: {reason}") from None


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value < 256:
        raise ValueError(f"a count is {value!r}; expected an integer of 0 to 255")
    return value


def _column(table: Any, name: str, exits: int, features: int) -> np.ndarray:
    dtype = "int32" if name in ("token", "child") else "uint8"
    shape = (table.num_rows, exits, features) if name == "feature" else (table.num_rows, exits)
    if 0 in shape:
        return np.zeros(shape, dtype)
    values = np.frombuffer(b"".join(table.column(name).to_pylist()), dtype)
    return values.reshape(shape).copy()


def exits_path(trace: str | PathLike[str]) -> Path:
    """Where the exits of a recording are: NAME.exits.parquet beside it."""
    return Path(trace).with_suffix(".exits.parquet")
