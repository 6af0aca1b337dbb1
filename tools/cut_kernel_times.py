"""Cuts the kernel times of this package from a checkout of ai-dynamo/aiconfigurator.

    python tools/cut_kernel_times.py CHECKOUT simspec/published/kernels

Kept: 16-bit and fp8 products, 16-bit attention, 16-bit experts and all-reduces of the devices and
versions below, at the sizes below. Seconds are rounded to nanoseconds, nothing else is changed.
"""

import sys
from pathlib import Path

import pandas as pd

from simspec.cost.kernel_files import COLUMNS, checkout_frames

VERSIONS = {
    ("a100", "vllm"): "0.14.0",
    ("a100", "sglang"): "0.5.10",
    ("h100", "vllm"): "0.24.0",
    ("h100", "sglang"): "0.5.14",
    ("h200", "vllm"): "0.24.0",
    ("h200", "sglang"): "0.5.14",
    ("l40s", "vllm"): "0.24.0",
    ("l40s", "sglang"): "0.5.14",
}
FP8 = {("h100", "vllm"), ("h200", "sglang")}
"""Devices and engines whose fp8 products are kept."""
MOST_ROWS, LEAST_SIZE, MOST_INPUTS = 2304, 512, 51200
MOST_BATCH, MOST_CONTEXT = 1024, 32767
HEAD_DIMS = 64, 128
EXPERTS = {(2048, 768, 8, 128), (4096, 1536, 8, 128), (4096, 14336, 2, 8)}
"""(width, hidden, topk, experts) of Qwen3-30B-A3B, Qwen3-235B-A22B and Mixtral-8x7B."""


def cut(frames: dict[str, pd.DataFrame], fp8: bool) -> dict[str, pd.DataFrame]:
    """The kept rows of each table."""
    gemm, attention, moe, reduce = (frames[name] for name in COLUMNS)
    small = (gemm.n >= LEAST_SIZE) & (gemm.k >= LEAST_SIZE) & (gemm.k <= MOST_INPUTS)
    # a router has as many outputs as experts
    router = (gemm.n == 128) & gemm.k.isin((2048, 4096)) & (gemm.dtype == "bf16")
    kinds = ("bf16", "fp8") if fp8 else ("bf16",)
    gemm = gemm[(small | router) & gemm.dtype.isin(kinds) & (gemm.m <= MOST_ROWS)]
    attention = attention[
        attention.head_dim.isin(HEAD_DIMS)
        & (attention.batch <= MOST_BATCH)
        & (attention.context <= MOST_CONTEXT)
    ]
    shapes = list(zip(moe.width, moe.hidden, moe.topk, moe.experts))
    known = pd.Series([shape in EXPERTS for shape in shapes], index=moe.index, dtype=bool)
    moe = moe[known & (moe.dtype == "bf16") & (moe.tp <= 8) & (moe.tokens <= 3072)]
    reduce = reduce[reduce.bytes <= 1 << 26]
    return dict(zip(COLUMNS, (gemm, attention, moe, reduce)))


def main() -> None:
    """Writes one parquet file a table."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    source, folder = Path(sys.argv[1]), Path(sys.argv[2])
    tables: dict[str, list[pd.DataFrame]] = {name: [] for name in COLUMNS}
    for (device, engine), version in VERSIONS.items():
        frames, found = checkout_frames(source, device, engine, version)
        for name, frame in cut(frames, (device, engine) in FP8).items():
            frame = frame.sort_values(list(COLUMNS[name]))
            nanoseconds = (frame.pop("seconds") * 1e9).round().astype("int32")
            texts = {"device": device, "engine": engine, "version": found}
            tables[name].append(frame.assign(**texts, nanoseconds=nanoseconds))
    for name, frames in tables.items():
        frame = pd.concat(frames, ignore_index=True)
        numbers = [c for c in frame if frame[c].dtype.kind == "i"]
        frame = frame.astype(dict.fromkeys(numbers, "int32"))
        texts = [c for c in frame if c not in numbers]
        pq.write_table(
            pa.Table.from_pandas(frame, preserve_index=False),
            folder / f"{name}.parquet",
            compression="brotli",
            compression_level=11,
            use_dictionary=[*texts, *(c for c in numbers if c != "nanoseconds")],
            column_encoding={"nanoseconds": "BYTE_STREAM_SPLIT"},
            write_statistics=False,
        )
        print(name, len(frame), (folder / f"{name}.parquet").stat().st_size)


if __name__ == "__main__":
    main()
