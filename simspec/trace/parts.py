"""A recording in parts of whole sequences, for files whose rows do not fit into memory."""

from collections.abc import Iterator
from dataclasses import replace
from os import PathLike
from typing import Any

import numpy as np

from simspec.trace.file import check_digest, digest_of_blocks, opened, row_arrays, sequence_arrays
from simspec.trace.schema import ARRAYS, BY_ROW, BY_SEQUENCE
from simspec.trace.trace import Trace, TraceError, TraceMeta

BATCH = 1 << 16
"""Rows that are decoded at a time."""
STREAMED = {"pre_buffer": False, "buffer_size": 1 << 20}
"""Options of pyarrow: a row group is decompressed page by page, not held whole."""


def trace_parts(path: str | PathLike[str], rows: int, verify: bool = True) -> Iterator[Trace]:
    """The recording in file order: as many whole sequences at a time as have at most `rows` rows.

    A longer sequence is a separate part. What has no row for each token (prompts, tasks, ids) is
    read whole, the rest by row groups, so that memory is bounded by a part. The file is read twice:
    its hash is verified before the first part, unless `verify` is False. TraceError as for
    `load_trace`, ValueError for rows < 1.
    """
    if rows < 1:
        raise ValueError(f"parts of {rows} rows, expected at least 1")
    with opened(path, **STREAMED) as (file, extra):
        meta, tables = TraceMeta.from_json(extra["meta"]), sequence_arrays(extra)
        _check_tables(tables, meta, file.metadata.num_rows)
        if verify:
            check_digest(_stored_digest(file, meta, tables), extra)
        cuts = _cuts(tables["offset"], rows)
        sizes = np.diff(tables["offset"][cuts]).tolist()
        for first, end, table in zip(cuts, cuts[1:], _row_parts(file, sizes)):
            arguments: dict[str, Any] = _sequences(tables, meta, first, end)
            yield Trace(**arguments | row_arrays(table, meta))


def stored_meta(path: str | PathLike[str]) -> TraceMeta:
    """The metadata of a recording, without its rows; TraceError as for `load_trace`."""
    with opened(path, **STREAMED) as (_, extra):
        return TraceMeta.from_json(extra["meta"])


def _cuts(offset: np.ndarray, rows: int) -> list[int]:
    """The first sequence of each part, and the number of sequences."""
    cuts, count = [0], len(offset) - 1
    while cuts[-1] < count:
        reached = int(np.searchsorted(offset, offset[cuts[-1]] + rows, side="right")) - 1
        cuts.append(max(reached, cuts[-1] + 1))
    return cuts


def _row_parts(file: Any, sizes: list[int]) -> Iterator[Any]:
    """Consecutive tables of at most `rows` rows each."""
    import pyarrow as pa

    batches = file.iter_batches(batch_size=BATCH, use_threads=False)
    pending: list[Any] = []
    for size in sizes:
        while sum(batch.num_rows for batch in pending) < size:
            if (batch := next(batches, None)) is None:
                raise TraceError("it holds fewer rows than its sequences have: fetch it again")
            pending.append(batch)
        table = pa.Table.from_batches(pending)
        yield table.slice(0, size)
        pending = table.slice(size).to_batches()


def _sequences(tables: dict[str, np.ndarray], meta: TraceMeta, first: int, end: int) -> Any:
    """The arguments of a Trace that have no row for each token, of sequences first .. end - 1."""
    offset, prompts = (tables[name][first : end + 1] for name in ("offset", "prompt_offset"))
    return {
        "offset": offset - offset[0],
        "prompt_offset": prompts - prompts[0],
        "prompt": tables["prompt"][prompts[0] : prompts[-1]],
        "budget": tables["budget"][first:end],
        "sequence": tables["sequence"][first:end],
        "meta": replace(meta, tasks=meta.tasks[first:end], ids=meta.ids[first:end]),
    }


def _stored_digest(file: Any, meta: TraceMeta, tables: dict[str, np.ndarray]) -> str:
    """The digest of the whole recording, one column at a time."""
    import pyarrow as pa

    names = [file.schema.column(i).path for i in range(file.metadata.num_columns)]
    sizes = {"N": file.metadata.num_rows, "K": meta.K, "F": len(meta.features), "2": 2}
    shapes: dict[str, tuple[int, ...] | None] = {name: tables[name].shape for name in BY_SEQUENCE}
    for name in BY_ROW:
        shape = tuple(sizes[axis] for axis in ARRAYS[name][1])
        # arrays without values are not in the file
        shapes[name] = shape if name in names or name == "feature" else None

    def blocks(name: str) -> Iterator[np.ndarray]:
        if name in tables:
            yield tables[name]
        elif name in names:
            for batch in file.iter_batches(BATCH, columns=[name], use_threads=False):
                yield row_arrays(pa.Table.from_batches([batch]), meta)[name]

    return digest_of_blocks(meta, shapes, blocks)


def _check_tables(tables: dict[str, np.ndarray], meta: TraceMeta, rows: int) -> None:
    """TraceError where the sequences cannot be told apart; each part is checked as a trace."""
    offset, prompts = tables["offset"], tables["prompt_offset"]
    count = len(offset) - 1
    counts = [len(tables["budget"]), len(tables["sequence"]), len(prompts) - 1]
    counts += [len(meta.tasks), len(meta.ids)]
    if count < 1 or counts != [count] * 5:
        raise TraceError(f"its tables have {counts} entries, expected one per sequence ({count})")
    for name, table, total, least in (
        ("offset", offset, rows, 1),
        ("prompt_offset", prompts, len(tables["prompt"]), 0),
    ):
        if table[0] != 0 or table[-1] != total or (np.diff(table) < least).any():
            raise TraceError(f"{name} runs {table[0]}..{table[-1]}, expected up from 0 to {total}")
