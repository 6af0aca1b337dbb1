"""Writes a recording of two sequences with numpy and pyarrow alone, as docs/recordings.md says."""

import base64
import hashlib
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

K, rows = 3, 7
offset = np.array([0, 4, 7], dtype="int64")  # sequences of 4 and 3 rows
budget = np.array([4, 8], dtype="int64")  # the second one ended early, by end token 2
prompt_offset = np.array([0, 3, 5], dtype="int64")
prompt = np.array([11, 12, 13, 21, 22], dtype="int32")
sequence = np.array([0, 1], dtype="int64")
token = np.array([5, 6, 7, 8, 5, 9, 2], dtype="int32")
depth = np.array([3, 3, 3, 3, 3, 2, 1], dtype="uint8")
run = np.array([2, 1, 0, 1, 0, 2, 1], dtype="uint8")
confidence = np.array(  # probability of the drafted token, slot by slot
    [
        [0.9, 0.8, 0.3], [0.8, 0.3, 0.2], [0.3, 0.3, 0.0], [0.7, 0.0, 0.0],
        [0.4, 0.2, 0.1], [0.9, 0.9, 0.0], [0.9, 0.0, 0.0],
    ]
)  # fmt: skip
grid = 1 / (1 + np.exp(8 - 20 * np.arange(256) / 255))
feature = np.abs(confidence[:, :, None] - grid).argmin(-1).astype("uint8")[:, :, None]  # [N, K, F]

meta = json.dumps(
    {
        "rule": "greedy",
        "target": "my-target",
        "drafter": "my-drafter",
        "K": K,
        "tokenizer_sha256": "",
        "features": [["confidence", "confidence"]],
        "temperature": 0.0,
        "seed": 0,
        "end_tokens": [2],
        "prefix_only": False,
        "sources": ["written by hand"],
        "tasks": ["math", "code"],
        "ids": ["0", "1"],
        "device": "cpu",
        "dtype": "float32",
        "predictors": {},
        "versions": {"pyarrow": pa.__version__},
        "git": "",
        "argv": [],
        "notes": "",
        "schema": 2,
    }
)

digest = hashlib.sha256(meta.encode())
for name, array in {
    "offset": offset, "budget": budget, "prompt_offset": prompt_offset, "prompt": prompt,
    "sequence": sequence, "token": token, "depth": depth, "run": run, "feature": feature,
    "rank": None, "margin": None, "draft_margin": None, "feature_margin": None, "ratio": None,
}.items():  # fmt: skip
    digest.update(f"{name}:{'-' if array is None else array.shape}".encode())
    digest.update(b"" if array is None else array.tobytes())


def packed(array):
    compressed = pa.Codec("zstd").compress(array.tobytes(), asbytes=True)
    return [len(array), base64.b64encode(compressed).decode()]


cells = [row.T.tobytes() for row in feature]  # [F, K] in the file
table = pa.table(
    {
        "token": token,
        "depth": depth,
        "run": run,
        "feature": pa.array(cells, pa.binary(K)),  # K * F bytes
    }
)
footer = {
    "offset": packed(offset),
    "budget": packed(budget),
    "prompt_offset": packed(prompt_offset),
    "prompt": packed(prompt),
    "sequence": packed(sequence),
    "meta": meta,
    "sha256": digest.hexdigest(),
}
table = table.replace_schema_metadata({"simspec": json.dumps(footer)})
pq.write_table(table, "mine.parquet", compression="zstd", write_page_checksum=True)
