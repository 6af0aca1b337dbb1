"""The Parquet file of a trace: its arrays, its metadata with their strict JSON form, page checksums
and a hash of everything."""

import base64
import hashlib
import json
import math
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from os import PathLike
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

import msgspec
import numpy as np
from msgspec import Meta

from simspec.output.files import parse_json, replacing

ARRAYS: dict[str, tuple[str, tuple[str, ...]]] = {
    "offset": ("int64", ("S+1",)),
    "budget": ("int64", ("S",)),
    "prompt_offset": ("int64", ("S+1",)),
    "prompt": ("int32", ("P",)),
    "sequence": ("int64", ("S",)),
    "token": ("int32", ("N",)),
    "depth": ("uint8", ("N",)),
    "run": ("uint8", ("N",)),
    "feature": ("uint8", ("N", "K", "F")),
    "rank": ("uint8", ("N", "K")),
    "margin": ("uint8", ("N",)),
    "draft_margin": ("uint8", ("N", "K")),
    "feature_margin": ("uint8", ("N", "K")),
    "ratio": ("float32", ("N", "K")),
    "order": ("uint8", ("N", "K")),
    "beam": ("uint8", ("N", "2")),
}
"""Name: (dtype, axes). S sequences, N rows, P prompt tokens, K draft slots, F features."""

OPTIONAL = ("rank", "margin", "draft_margin", "feature_margin", "ratio", "order", "beam")
BY_SEQUENCE = tuple(name for name, (_, axes) in ARRAYS.items() if "N" not in axes)
BY_ROW = tuple(name for name, (_, axes) in ARRAYS.items() if "N" in axes)

RULES = ("greedy", "coupled", "rejection", "block", "synthetic")
SAMPLED = ("rejection", "block")
"""Rules of which a recording holds `ratio`, and replays draw what is accepted."""
SCHEMA = 2
OMITTED: dict[str, Any] = {
    "tree": (), "top_k": 0, "top_p": 1.0, "batch": 1, "chat": {}, "drafter_sha256": "",
    "largest_ratio": 1.0
}  # fmt: skip
"""Keys that the file omits where they have these values, so that older files keep their bytes."""
SHA256 = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]


class TraceError(ValueError):
    """A trace, or a file of one, that breaks its own invariants."""


@dataclass(frozen=True)
class TraceMeta:
    """Origin of a trace; TraceError for a value of the wrong type or outside its range.

    | field         | meaning                                                             |
    | ------------- | ------------------------------------------------------------------- |
    | drafter       | its name with its settings                                          |
    | K             | deepest draft recorded                                              |
    | features      | (name, grid) after each slot, in the order of Trace.feature         |
    | seed          | < 2**64; of the noise that coupled rules share, or of the generator |
    | prefix_only   | the drafter reads the token prefix and nothing else                 |
    | sources       | sources of the prompts, with their licenses                         |
    | tasks, ids    | of each sequence: task or category, prompt id                       |
    | predictors    | feature -> SHA-256 of its predictor, in hex                         |
    | tree          | () or width and levels of the dynamic trees of Trace.order          |
    | top_k, top_p  | truncation of both distributions; 0 and 1.0: none                   |
    | batch         | sequences written at a time; passes differ in rounding              |
    | chat          | template, its sha256 and system prompt; {}: none                    |
    | largest_ratio | where Trace.ratio is capped; 1.0: no block verification replays     |

    Hashes are of a tokenizer's files and a drafter's weights; '' where unknown or there is none.
    """

    rule: Annotated[str, Meta(pattern=rf"\A({'|'.join(RULES)})\Z")]
    target: str
    drafter: str
    K: Annotated[int, Meta(ge=1, le=255)]
    tokenizer_sha256: str = ""
    features: tuple[tuple[str, str], ...] = ()
    temperature: Annotated[float, Meta(ge=0)] = 0.0
    seed: int = 0
    end_tokens: tuple[int, ...] = ()
    prefix_only: bool = False
    sources: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    device: str = "cpu"
    dtype: str = "float32"
    predictors: dict[str, SHA256] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    git: str = ""
    argv: tuple[str, ...] = ()
    notes: str = ""
    schema: Literal[2] = 2
    tree: tuple[int, int] | tuple[()] = ()
    top_k: Annotated[int, Meta(ge=0, lt=1 << 31)] = 0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    batch: Annotated[int, Meta(ge=1, lt=1 << 31)] = 1
    chat: dict[str, str] = field(default_factory=dict)
    drafter_sha256: Annotated[str, Meta(pattern=r"\A([0-9a-f]{64})?\Z")] = ""
    largest_ratio: float = 1.0

    def __post_init__(self) -> None:
        for name, kind in _types().items():
            try:
                object.__setattr__(self, name, msgspec.convert(getattr(self, name), kind))
            except msgspec.ValidationError as error:
                reason = str(error).replace("`", "").replace("Expected", "expected")
                raise TraceError(f"meta.{name} is {getattr(self, name)!r}, {reason}") from None
        cut, drawn = (self.top_k, self.top_p) != (0, 1.0), self.rule in ("coupled", *SAMPLED)
        known = [name for name, _ in self.features]
        for name, fits, expected in (
            ("features", len(set(known)) == len(known), "different names"),
            ("seed", 0 <= self.seed < 1 << 64, "an integer in [0, 2**64)"),
            ("temperature", math.isfinite(self.temperature), "a finite number"),
            ("temperature", self.temperature or self.rule not in SAMPLED, "more than 0 there"),
            ("largest_ratio", 1 <= self.largest_ratio < 1 << 64, "a number from 1 to 2**64"),
            ("largest_ratio", self.largest_ratio > 1 or self.rule != "block",
             "ratios above 1 too, which block verification takes: record again"),
            ("top_p", drawn or not cut, f"top_k 0 and top_p 1.0 under rule {self.rule!r}"),
            ("predictors", set(self.predictors) <= set(known), f"some of the features {known}"),
            ("tree", not self.tree or (len(self.tree) == 2 and self.tree[0] <= 32),
             "nothing, or a width in 1..32 and a number of levels"),
            ("chat", not self.chat or _is_chat(self.chat), "template, sha256 and system"),
        ):  # fmt: skip
            if not fits:
                raise TraceError(f"meta.{name} is {getattr(self, name)!r}, expected {expected}")

    def to_json(self) -> str:
        """One JSON object, keys in the order of the fields; those of OMITTED only where they
        differ."""
        data = asdict(self).items()
        return json.dumps({k: v for k, v in data if k not in OMITTED or v != OMITTED[k]})

    @classmethod
    def from_json(cls, text: str) -> "TraceMeta":
        """Reads `to_json`'s text; TraceError for anything else: not JSON, a missing or unknown key,
        a wrong type.
        """
        try:
            data = parse_json(text)
        except (ValueError, RecursionError) as error:
            raise TraceError(f"meta is not JSON ({error})") from None
        if not isinstance(data, dict):
            raise TraceError(f"meta is a {type(data).__name__}, expected one JSON object")
        if data.get("schema") != SCHEMA:
            raise TraceError(
                f"meta.schema is {data.get('schema')!r}, this version reads {SCHEMA}: install the "
                "simspec that wrote it"
            )
        expected = {f.name for f in fields(cls)} - (set(OMITTED) - set(data))
        if set(data) != expected:
            missing, unknown = sorted(expected - set(data)), sorted(set(data) - expected)
            raise TraceError(f"meta lacks {missing} and has unknown {unknown}")
        return cls(**data)


@cache
def _types() -> dict[str, Any]:
    level = Annotated[int, Meta(ge=1, le=255)]  # msgspec knows no union of two tuples
    return get_type_hints(TraceMeta, include_extras=True) | {"tree": tuple[level, ...]}


def _is_chat(chat: dict[str, str]) -> bool:
    hashed = len(chat.get("sha256", "")) == 64 and set(chat["sha256"]) <= set("0123456789abcdef")
    return hashed and set(chat) == {"template", "sha256", "system"}


T = TypeVar("T")

MOST_BYTES, MOST_RATIO = 64 << 20, 1000
"""Decoded bytes that are always read, and how many for each byte of the file beyond."""
MOST_FOOTER = 1 << 30
"""Bytes of a file's metadata, prompts among them; pyarrow alone would read 100 MB."""
QUICK = 16 << 20
"""Bytes of an array of the metadata from which it is packed quickly: zstd 19 takes minutes."""
FIXED = "FIXED_LEN_BYTE_ARRAY"
WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8}
"""Bytes of a decoded value by its type in the file."""


def parquet_options(small: bool = False) -> dict[str, Any]:
    """Options of a ParquetWriter for columns of packed bytes, which no dictionary shortens."""
    return {
        "compression": "brotli" if small else "zstd",
        "compression_level": 11 if small else 19,
        "use_dictionary": False,
        "write_page_checksum": True,
    }


def write_trace(trace: Any, path: str | PathLike[str], small: bool = False) -> None:
    """Writes the trace, see `Trace.save`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {
        name: array if array.ndim == 1 else binary_column(_file_axes(name, array))
        for name in BY_ROW
        if (array := getattr(trace, name)) is not None and array.size
    }
    extra: dict[str, Any] = {name: _pack(getattr(trace, name)) for name in BY_SEQUENCE}
    extra |= {"meta": trace.meta.to_json(), "sha256": digest(trace)}
    footer = json.dumps(extra)
    if len(footer) > MOST_FOOTER:
        raise TraceError(
            f"{path}: metadata and {len(trace.prompt):,} prompt tokens take {len(footer):,} bytes, "
            f"expected at most {MOST_FOOTER:,}: save parts of it, see Trace.select"
        )
    table = pa.table(columns)
    options = parquet_options(small) | {"write_statistics": False, "store_schema": False}
    with replacing(path) as temporary, pq.ParquetWriter(temporary, table.schema, **options) as file:
        file.write_table(table)
        file.add_key_value_metadata({"simspec": footer})


def read_trace(path: str | PathLike[str], make: Callable[..., T]) -> T:
    """make(meta=..., name=array, ...) of the file's content, whose checksums and hash are verified.

    TraceError, one line with the path, whatever is wrong with the file; nothing in it is executed.
    """
    with opened(path) as (file, extra):
        meta, table = TraceMeta.from_json(extra["meta"]), file.read(use_threads=False)
        arrays = {name: _unpack(extra[name], ARRAYS[name][0]) for name in BY_SEQUENCE}
        arrays |= {name: _read_column(table, name, meta) for name in table.column_names}
        trace = make(meta=meta, **arrays)
        if digest(trace) != extra["sha256"]:
            raise TraceError(
                "its content does not match its hash: the file is damaged, fetch it again"
            )
        return trace


@contextmanager
def opened(path: str | PathLike[str]) -> Iterator[tuple[Any, Any]]:
    """(pyarrow's file, the metadata of its footer) of a recording whose declared sizes are sane.

    Whatever is wrong with the file in the body is a TraceError, one line with the path.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(
            path, page_checksum_verification=True, thrift_string_size_limit=MOST_FOOTER
        ) as file:
            metadata = file.metadata.metadata or {}
            if b"simspec" not in metadata:
                raise TraceError(
                    "it is a Parquet file that simspec did not write: name a recording"
                )
            check_size(file, os.path.getsize(path), BY_ROW)
            yield file, parse_json(metadata[b"simspec"].decode("utf-8"))
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
    sha256 = hashlib.sha256(trace.meta.to_json().encode())
    for name in ARRAYS:
        array = getattr(trace, name)
        if name in ("order", "beam") and array is None:
            continue  # recordings made before there were trees keep their hash
        sha256.update(f"{name}:{'-' if array is None else array.shape}".encode())
        sha256.update(b"" if array is None else array.tobytes())
    return sha256.hexdigest()


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


def binary_column(array: np.ndarray) -> Any:
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

    level = 19 if array.nbytes < QUICK else 3
    packed = pa.Codec("zstd", level).compress(array.tobytes(), asbytes=True)
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
