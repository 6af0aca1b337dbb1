"""Kernel times of files: the tables of this package, or a checkout of AIConfigurator."""

import re
from collections.abc import Iterable
from functools import lru_cache
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from simspec.cost.kernel_times import AttentionGrid, KernelTimes, Line, Products

FOLDER = Path(__file__).parents[1] / "published" / "kernels"
ENGINES = "vllm", "sglang"
COMMIT = "095f58a"
"""The commit of ai-dynamo/aiconfigurator that the tables of this package are cut from."""
MOST_BYTES, MOST_ROWS = 64_000_000, 2_000_000
"""Limits of a file, checked before it is read."""
MOST_SIZE = 1 << 40
COLUMNS = {
    "gemm": ("dtype", "n", "k", "m"),
    "attention": ("head_dim", "heads", "kv_heads", "batch", "context"),
    "moe": ("dtype", "width", "hidden", "topk", "experts", "tp", "tokens"),
    "all_reduce": ("gpus", "bytes"),
}
"""Sizes of each table. Files of this package have nanoseconds, device, engine and version too."""
# AIConfigurator's folder, file, and names of the columns, in the order of COLUMNS
_SOURCES = {
    "gemm": ("gemm", "gemm_perf", ("gemm_dtype", "n", "k", "m")),
    "attention": (
        "attention",
        "generation_attention_perf",
        ("head_dim", "num_heads", "num_key_value_heads", "batch_size", "step"),
    ),
    "moe": (
        "moe",
        "moe_perf",
        ("moe_dtype", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size",
         "num_tokens"),
    ),
    "all_reduce": ("comm", "custom_allreduce_perf", ("num_gpus", "message_size")),
}  # fmt: skip
# rows that are used, where a column of the name is there; the first listed value that a key has
_USED = {
    "attn_dtype": ("bfloat16",),
    "kv_cache_dtype": ("bfloat16",),
    "window_size": (0,),
    "isl": (1,),
    "beam_width": (1,),
    "moe_ep_size": (1,),
    "distribution": ("power_law_1.2", "power_law_1.01", "balanced"),
    "backend": tuple(f"{engine}_graph" for engine in ENGINES),
}
_DTYPES = {"bfloat16": "bf16", "fp8": "fp8"}
_DATA = ("aic-core/src/aiconfigurator_core/systems/data", "systems/data", "data", ".")


@lru_cache(maxsize=8)
def shipped_times(device: str, engine: str) -> KernelTimes:
    """The times of this package; ValueError lists the devices and engines there are."""
    frames = {name: _read(FOLDER / f"{name}.parquet") for name in COLUMNS}
    known = frames["gemm"][["device", "engine", "version"]].drop_duplicates()
    match = known[(known.device == device) & (known.engine == engine)]
    if match.empty:
        pairs = ", ".join(f"{d} {e}" for d, e in zip(known.device, known.engine))
        raise ValueError(
            f"no kernel times of {device!r} with {engine!r}, expected one of {pairs}; other "
            "devices: name the folder of an AIConfigurator checkout"
        )
    held = {
        name: frame.assign(seconds=frame["nanoseconds"] / 1e9)[
            (frame.device == device) & (frame.engine == engine)
        ]
        for name, frame in frames.items()
    }
    source = f"AIConfigurator {COMMIT}"
    return kernel_times(held, (device, engine, str(match.version.iloc[0]), source))


def checkout_times(
    folder: str | PathLike[str], device: str, engine: str, version: str | None = None
) -> KernelTimes:
    """The times of a checkout of ai-dynamo/aiconfigurator; version None: each table's newest.

    device: the name of its folder, or one that has only '_sxm' added. ValueError, one line, for
    folders and files that are not as there.
    """
    frames, found = checkout_frames(folder, device, engine, version)
    return kernel_times(frames, (device, engine, found, str(folder)))


def checkout_frames(
    folder: str | PathLike[str], device: str, engine: str, version: str | None = None
) -> tuple[dict[str, pd.DataFrame], str]:
    """({table: frame with the columns of COLUMNS and `seconds`}, version of the products)."""
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,40}", device) or engine not in ENGINES:
        raise ValueError(
            f"{device[:40]!r} with {engine[:40]!r}, expected a folder's name, such as h100, with "
            f"{' or '.join(ENGINES)}"
        )
    root = Path(folder)
    names = device, f"{device}_sxm"
    data = [root / d / name for d in _DATA for name in names if (root / d / name).is_dir()]
    if not data:
        raise ValueError(
            f"{folder} has no {_DATA[0]}/{device}, expected a checkout of ai-dynamo/aiconfigurator"
        )
    frames, versions = {}, {}
    for table, (operation, file, columns) in _SOURCES.items():
        place = data[0] / operation / engine
        held = {path.parent.name: path for path in place.glob(f"*/{file}.parquet")}
        wanted = version or max(held, key=_numbers, default="")
        wanted = wanted if wanted in held else _reused(place / wanted, file)
        if wanted in held:
            frames[table] = _rename(_read(held[wanted]), table, columns, held[wanted])
            versions[table] = wanted
        elif table in ("gemm", "attention"):
            raise ValueError(
                f"{place} has no {file} of version {version or '?'}, expected one of "
                f"{sorted(held, key=_numbers)}"
            )
        else:
            frames[table] = pd.DataFrame(columns=[*COLUMNS[table], "seconds"])
    return frames, versions["gemm"]


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d{1,9}", version)]


def _reused(folder: Path, table: str) -> str:
    """The version that reuse.yaml of this version names for the table; '' for none."""
    path = folder / "reuse.yaml"
    if not path.is_file() or path.stat().st_size > 100_000:
        return ""
    import yaml

    try:
        entries = yaml.safe_load(path.read_text(encoding="utf-8"))["reuse"]
        named = {entry["table"]: entry["from_version"] for entry in entries}
    except (yaml.YAMLError, UnicodeDecodeError, KeyError, TypeError):
        raise ValueError(f"{path} is no list of reused tables, expected AIConfigurator's") from None
    return str(named.get(table, ""))


def _read(path: Path) -> pd.DataFrame:
    """The table of a parquet file, its sizes checked first; ValueError, one line with the path."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        size, rows = path.stat().st_size, 0
        if size <= MOST_BYTES:
            rows = pq.read_metadata(path).num_rows
            if rows <= MOST_ROWS:
                frame: pd.DataFrame = pq.read_table(path).to_pandas()
                return frame
    except (OSError, pa.ArrowException) as error:
        raise ValueError(f"{path}: {str(error).splitlines()[0]}, expected a parquet file") from None
    raise ValueError(
        f"{path} has {size} bytes and {rows} rows, expected at most {MOST_BYTES} and {MOST_ROWS}"
    )


def _rename(frame: pd.DataFrame, table: str, columns: Iterable[str], path: Path) -> pd.DataFrame:
    """The used rows, with the names of COLUMNS."""
    names = dict(zip(columns, COLUMNS[table]))
    if missing := {*names, "latency"} - set(frame.columns):
        raise ValueError(f"{path} has no column {sorted(missing)[0]!r}, expected AIConfigurator's")
    for column, values in _USED.items():
        if column in frame:
            frame = frame[frame[column].isin(values)]
            order = frame[column].map({value: i for i, value in enumerate(values)})
            frame = frame.iloc[np.argsort(order.to_numpy(), kind="stable")]
    frame = frame.rename(columns=names)
    if "dtype" in frame:
        frame = frame.assign(dtype=frame["dtype"].map(_DTYPES)).dropna(subset=["dtype"])
    # the first row of a key is that of the preferred distribution
    frame = frame.drop_duplicates(list(COLUMNS[table]))
    seconds = pd.to_numeric(frame["latency"], errors="coerce") / 1000
    return frame[list(COLUMNS[table])].assign(seconds=seconds)


def kernel_times(
    frames: dict[str, pd.DataFrame], about: tuple[str, str, str, str]
) -> KernelTimes:
    """The times of tables with the columns of COLUMNS; about: device, engine, version, source.

    ValueError, one line, for missing columns, sizes that are no positive numbers, and times that
    are not finite and > 0.
    """
    groups = {name: _groups(name, frames[name]) for name in COLUMNS}
    if not groups["gemm"] or not groups["attention"]:
        raise ValueError(f"{about[3]}: no 16-bit products or attention, expected both")
    lines: dict[str, dict[tuple[int, int], Line]] = {}
    for (dtype, n, k), (m, seconds) in groups["gemm"].items():
        lines.setdefault(dtype, {})[n, k] = _line(m[:, 0], seconds)
    return KernelTimes(
        *about[:3],
        products={dtype: Products(of) for dtype, of in lines.items()},
        attention={
            key: AttentionGrid.of(dict(zip(map(tuple, sizes.tolist()), seconds.tolist())))
            for key, (sizes, seconds) in groups["attention"].items()
        },
        experts={key: _line(t[:, 0], seconds) for key, (t, seconds) in groups["moe"].items()},
        all_reduce={g: _line(b[:, 0], s) for (g,), (b, s) in groups["all_reduce"].items()},
        source=about[3],
    )


def _groups(table: str, frame: pd.DataFrame) -> dict[Any, tuple[np.ndarray, np.ndarray]]:
    """{key: (sizes int64[P, free], seconds)}; the free sizes are those that a time runs over."""
    columns, free = list(COLUMNS[table]), 2 if table == "attention" else 1
    if missing := {*columns, "seconds"} - set(frame.columns):
        raise ValueError(f"kernel times of {table} have no column {sorted(missing)[0]!r}")
    sizes = frame[[column for column in columns if column != "dtype"]]
    kinds = [*(sizes[c].dtype.kind in "iu" for c in sizes), frame["seconds"].dtype.kind == "f"]
    if len(frame) and not all(kinds):
        raise ValueError(f"kernel times of {table} hold other values than numbers, expected sizes")
    low, high = (0, 0) if frame.empty else (sizes.to_numpy().min(), sizes.to_numpy().max())
    seconds = frame["seconds"].to_numpy(np.float64)
    if low < 0 or high > MOST_SIZE or not (np.isfinite(seconds) & (seconds > 0)).all():
        raise ValueError(
            f"kernel times of {table} have sizes {low} to {high}, or times that are none, expected "
            "sizes >= 0 and finite times > 0"
        )
    groups = {}
    for key, part in frame.groupby(columns[:-free], sort=True):
        groups[key] = part[columns[-free:]].to_numpy(np.int64), part["seconds"].to_numpy(float)
    return groups


def _line(size: np.ndarray, seconds: np.ndarray) -> Line:
    order = np.argsort(size, kind="stable")
    kept = np.concatenate(([True], np.diff(size[order]) > 0))
    return Line(size[order][kept].astype(np.float64), seconds[order][kept])
