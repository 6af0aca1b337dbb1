"""Drafts of every exit of a sorted drafter, and their Parquet file."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from os import PathLike
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from simspec.output.files import UNREADABLE, parse_json, replacing, reraised
from simspec.trace.file import binary_column, check_size, digest, parquet_options
from simspec.trace.quantization import LOG_ODDS
from simspec.trace.trace import Trace

Count = Annotated[int, msgspec.Meta(ge=0, le=255)]


@dataclass(frozen=True)
class ExitDrafts:
    """Drafts of each of E exits after each of M nodes: the N rows of a trace, then other drafts.

    layers are those in front of each exit, ascending; the arrays are `[M, E]`, feature `[M, E, F]`,
    token and child int32, the others uint8 as recorded. child is the node after the token, of a
    higher number, -1 where none is needed; confidence the code of the largest probability at
    temperature 1; rank that of the recorded token, 0 after the first N nodes. The nodes after the
    rows are the drafts that some thresholds reach. ValueError for arrays that do not fit, and for
    children that are no later node.
    """

    layers: tuple[int, ...]
    token: np.ndarray
    child: np.ndarray
    confidence: np.ndarray
    feature: np.ndarray
    draft_margin: np.ndarray
    feature_margin: np.ndarray
    rank: np.ndarray

    def __post_init__(self) -> None:
        shape = self.token.shape
        if len(shape) != 2 or not shape[0] or not shape[1]:
            raise ValueError(f"token has shape {list(shape)}; expected nodes by exits")
        layers = list(self.layers)
        if len(layers) != shape[1] or layers != sorted(set(layers)) or layers[0] < 1:
            raise ValueError(f"layers are {layers}; expected {shape[1]} ascending numbers")
        for f in fields(self)[1:]:
            array = getattr(self, f.name)
            dtype = "int32" if f.name in ("token", "child") else "uint8"
            if array.dtype != dtype or array.shape[:2] != shape:
                raise ValueError(
                    f"{f.name} is {array.dtype}{list(array.shape)}; expected {dtype}{list(shape)}"
                )
        later = (self.child == -1) | (self.child > np.arange(shape[0])[:, None])
        if self.feature.ndim != 3 or not later.all() or self.child.max() >= shape[0]:
            raise ValueError("child or feature names no later node; record the exits again")

    @property
    def exits(self) -> int:
        """Number of exits."""
        return int(self.token.shape[1])


def cascade(
    trace: Trace, drafts: ExitDrafts, threshold: Sequence[float]
) -> tuple[Trace, np.ndarray]:
    """The recording of the same sequences at other thresholds, and the exit uint8 `[N, K]` of each
    drafted token (255 where none is drafted).

    Equal to what the recorder writes for a drafter with these thresholds, margins included.
    ValueError for another number of thresholds than exits but the last, and for exits of another
    recording.
    """
    K, n = trace.K, trace.rows
    values, most = np.asarray(threshold, np.float64), drafts.exits - 1
    if len(values) != most:
        raise ValueError(f"{len(values)} thresholds; expected {most}, one an exit but the last")
    if not ((values >= 0) & (values <= 1)).all():
        raise ValueError(f"thresholds are {tuple(threshold)}; expected numbers in [0, 1]")
    if len(drafts.token) < n or drafts.feature.shape[2] != len(trace.meta.features):
        raise ValueError("the exits are those of another recording; record them again")
    reaches = drafts.confidence[:, :-1] >= np.searchsorted(LOG_ODDS, values)
    exit_of = np.where(reaches.any(1), reaches.argmax(1), drafts.exits - 1)
    lengths = np.diff(trace.offset)
    position = np.arange(n) - np.repeat(trace.offset[:-1], lengths)
    left = np.repeat(lengths, lengths) - position
    reach = np.minimum(K, np.repeat(trace.budget, lengths) - position)

    node, going, right = np.arange(n), np.ones(n, bool), np.ones(n, bool)
    depth, run = np.full(n, K, np.uint8), np.zeros(n, np.uint8)
    rank, exits = np.zeros((n, K), np.uint8), np.full((n, K), 255, np.uint8)
    feature = np.zeros((n, K, drafts.feature.shape[2]), np.uint8)
    draft_margin, feature_margin = np.zeros((n, K), np.uint8), np.zeros((n, K), np.uint8)
    for slot in range(K):
        inside = np.flatnonzero(slot < left)
        rank[inside, slot] = drafts.rank[inside + slot, exit_of[inside + slot]]
        at = np.flatnonzero(going & (slot < reach))
        own, exit = node[at], exit_of[node[at]]
        if (own < 0).any():
            raise ValueError("the exits end before the recording's drafts; record them again")
        token = drafts.token[own, exit]
        exits[at, slot], feature[at, slot] = exit, drafts.feature[own, exit]
        draft_margin[at, slot] = drafts.draft_margin[own, exit]
        feature_margin[at, slot] = drafts.feature_margin[own, exit]
        same = (slot < left[at]) & (token == trace.token[np.minimum(at + slot, n - 1)])
        right[at] &= same
        run[at] += right[at]
        ends = np.isin(token, trace.meta.end_tokens)
        depth[at[ends]], going[at[ends]] = slot + 1, False
        node[at] = drafts.child[own, exit]
    derived = replace(
        trace, depth=depth, run=run, rank=rank, feature=feature, draft_margin=draft_margin,
        feature_margin=feature_margin, order=None, beam=None,
    )  # fmt: skip
    return derived, exits


COLUMNS = tuple(f.name for f in fields(ExitDrafts)[1:])


def write_exits(drafts: ExitDrafts, trace: Trace, path: str | PathLike[str]) -> None:
    """Writes the exits of `trace`, completely or not at all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrays = {name: getattr(drafts, name) for name in COLUMNS}
    columns = {name: binary_column(array) for name, array in arrays.items() if array.size}
    about = {"layers": drafts.layers, "features": drafts.feature.shape[2], "trace": digest(trace)}
    table = pa.table(columns).replace_schema_metadata({"simspec.exits": json.dumps(about)})
    with replacing(path) as temporary:
        pq.write_table(table, temporary, **parquet_options())


def read_exits(path: str | PathLike[str], trace: Trace) -> ExitDrafts:
    """The exits of `trace`; ValueError, one line, for a damaged file or another recording's."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    raised = *UNREADABLE, MemoryError, pa.ArrowException
    with reraised(ValueError, f"{path}: no exits of this recording", raised=raised):
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            check_size(file, os.path.getsize(path), COLUMNS)
            table = file.read(use_threads=False)
        about = parse_json((table.schema.metadata or {})[b"simspec.exits"].decode("utf-8"))
        layers = msgspec.convert(tuple(about["layers"]), tuple[Count, ...])
        exits, features = len(layers), msgspec.convert(about["features"], Count)
        if about["trace"] != digest(trace):
            raise ValueError("it belongs to another recording")
        return ExitDrafts(layers, *(_column(table, name, exits, features) for name in COLUMNS))


def _column(table: Any, name: str, exits: int, features: int) -> np.ndarray:
    dtype = "int32" if name in ("token", "child") else "uint8"
    shape = (table.num_rows, exits, features) if name == "feature" else (table.num_rows, exits)
    if 0 in shape:
        return np.zeros(shape, dtype)
    values = np.frombuffer(b"".join(table.column(name).to_pylist()), dtype)
    return values.reshape(shape).copy()


def exits_path(trace: str | PathLike[str]) -> Path:
    """The file of the exits of a recording: NAME.exits.parquet in its folder."""
    return Path(trace).with_suffix(".exits.parquet")
