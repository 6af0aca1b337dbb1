"""Files of other tools: those in import_fixtures/, and copies with some fields changed."""

import json
from pathlib import Path

from simspec.engines import Import
from simspec.engines.imports import read_import

FIXTURES = Path(__file__).parent / "import_fixtures"
# sources.csv says how each was made; "form": by hand in the form of the released source
FORMAT_OF = {
    "specdecode-bench.jsonl": "specdecode-bench", "vllm-requests.jsonl": "vllm-requests",
    "vllm-requests-summary.jsonl": "vllm-requests", "vllm-prometheus.txt": "vllm-prometheus",
    "vllm-log.txt": "vllm-log", "vllm-bench-serve.json": "vllm-bench-serve",
    "sglang.jsonl": "sglang", "tensorrt-llm.jsonl": "tensorrt-llm",
    "llamacpp-timings.jsonl": "llamacpp-timings",
    "llamacpp-prometheus.txt": "llamacpp-prometheus",
    "released-llamacpp-log.txt": "llamacpp-log",
    "guidellm.json": "guidellm", "aiperf.jsonl": "aiperf",
    "aiperf-released.jsonl": "aiperf", "sglang-log.txt": "sglang-log",
    "sglang-prometheus.txt": "sglang-prometheus",
    "released-tensorrt-llm-stats.json": "tensorrt-llm-stats",
}  # fmt: skip


def read(format, path, **settings):
    """The import of a file."""
    return read_import(Import(format, (path,), **settings))


def rows_of(name):
    """The JSON objects of a fixture, one a line or one in all."""
    text = (FIXTURES / name).read_text()
    return [json.loads(line) for line in text.splitlines()] if name.endswith("l") else [
        json.loads(text)
    ]  # fmt: skip


def written(path, rows):
    """The path, with these objects one a line."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def changed(path, name, change):
    """The path of a fixture's copy on whose objects `change` has run."""
    rows = rows_of(name)
    for row in rows:
        change(row)
    return written(path, rows)


def positions(requests, drafter="eagle"):
    """Rows of SpecDecode-Bench's form from (prompt, text, accepted lengths) a request."""
    return [
        {
            "id": str(i),
            "prompt_token_ids": list(map(int, prompt)),
            "generated_token_ids": list(map(int, text)),
            f"acc_{drafter}": {"acc_len": list(map(int, emitted))},
        }
        for i, (prompt, text, emitted) in enumerate(requests)
    ]
