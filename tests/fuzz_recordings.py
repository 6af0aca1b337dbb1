"""Recordings for the fuzzer: damaged files, and valid files whose content is wrong."""

import json
import tempfile
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from fuzz_mutations import mutated, mutated_value
from inputs import with_fields

from simspec import Trace, load_trace, replay, synthetic
from simspec.policies import fixed
from simspec.reports.summaries import trace_summary

GOLDENS = Path(__file__).parent / "goldens"


@cache
def known_trace() -> Trace:
    return synthetic.iid(0.6, 2, 12, 3, confidence=True)


def recordings(folder: Path) -> None:
    for path in GOLDENS.glob("recording-*.parquet"):
        (folder / path.name).write_bytes(path.read_bytes())
    known_trace().save(folder / "synthetic.parquet")


def use_recording(path: Path) -> None:
    """What `simspec show` and `simspec sweep` do."""
    trace = load_trace(path)
    trace_summary(trace)
    replay(trace, fixed(min(2, trace.K)))


@cache
def _parts(content: bytes):
    with pq.ParquetFile(pa.BufferReader(content)) as file:
        return file.read(), json.loads(file.metadata.metadata[b"simspec"])


def forged_metadata(content: bytes, draw: Random) -> bytes:
    """A valid Parquet file whose metadata, or what is packed in it, was changed."""
    table, extra = _parts(content)
    extra = json.loads(json.dumps(extra))
    if draw.random() < 0.6:
        extra["meta"] = json.dumps(mutated_value(json.loads(extra["meta"]), draw))
    else:
        extra = mutated_value(extra, draw)
    if draw.random() < 0.2:
        name = draw.choice(table.column_names)
        column = draw.choice(
            (
                pa.array([None] * len(table)),
                pa.array([[1]] * len(table)),
                pa.array(["x"] * len(table)),
                pa.array(np.full(len(table), -1)),
                pa.array([b"\x01"] * len(table), pa.binary(1)),
            )
        )
        table = table.set_column(table.column_names.index(name), name, column)
    out = pa.BufferOutputStream()
    compression = draw.choice(("zstd", "none", "gzip"))
    with pq.ParquetWriter(out, table.schema.remove_metadata(), compression=compression) as file:
        file.write_table(table.replace_schema_metadata(None))
        file.add_key_value_metadata({"simspec": json.dumps(extra)})
    return out.getvalue().to_pybytes()


def forged_arrays(content: bytes, draw: Random) -> bytes:
    """A recording with a right hash over wrong numbers: only validation stands before them."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.parquet"
        path.write_bytes(content)
        trace = load_trace(path)
        names = [n for n in trace.__dataclass_fields__ if isinstance(getattr(trace, n), np.ndarray)]
        parts = {}
        for name in draw.sample(names, draw.choice((1, 1, 2))):
            array = getattr(trace, name).copy()
            if not array.size:
                continue
            flat = array.reshape(-1)
            values = np.iinfo(array.dtype) if array.dtype.kind in "iu" else np.finfo(array.dtype)
            choices = [values.min, values.max, 0, 1, flat[0]]
            if array.dtype.kind == "f":
                choices += [np.nan, np.inf, -1.0]
            for _ in range(draw.choice((1, 1, 5))):
                flat[draw.randrange(flat.size)] = draw.choice(choices)
            parts[name] = draw.choice((array, array, array, array[:-1], array[::-1].copy()))
        validate, Trace.validate = Trace.validate, lambda self: self
        try:
            with_fields(trace, **parts).save(path)
        except (ValueError, KeyError, IndexError, OverflowError):  # no file can hold these
            return mutated(content, draw)
        finally:
            Trace.validate = validate
        return path.read_bytes()
