"""The formats by name."""

from collections.abc import Callable
from dataclasses import fields
from difflib import get_close_matches
from os import PathLike
from pathlib import Path

from simspec.files import LONGEST_REASON
from simspec.imports.acceptance_rates import read_dynamo, read_vllm_synthetic
from simspec.imports.aiperf import read_records
from simspec.imports.answers import read_angelslim, read_eagle, read_spec_bench
from simspec.imports.engine_settings import (
    read_llamacpp,
    read_sglang_adaptive,
    read_transformers,
    read_vllm,
)
from simspec.imports.golden_al import read_golden_al
from simspec.imports.kinds import Import
from simspec.imports.llamacpp import read_log as read_llamacpp_log
from simspec.imports.llamacpp import read_timings
from simspec.imports.model_optimizer import read_model_optimizer
from simspec.imports.options import ImportOptions
from simspec.imports.sglang import read_sglang
from simspec.imports.source import Source, read_source
from simspec.imports.specdecode_bench import read_positions
from simspec.imports.speculation_profile import read_profile
from simspec.imports.speculators import read_csv
from simspec.imports.summary_file import read_summary
from simspec.imports.tensorrt_llm import read_tensorrt_llm
from simspec.imports.vllm_requests import read_requests
from simspec.imports.vllm_totals import read_bench_serve, read_prometheus
from simspec.imports.vllm_totals import read_log as read_vllm_log

FORMATS: dict[str, Callable[[Source, ImportOptions], Import]] = {
    "specdecode-bench": read_positions,
    "vllm-requests": read_requests,
    "vllm-prometheus": read_prometheus,
    "vllm-log": read_vllm_log,
    "vllm-bench-serve": read_bench_serve,
    "sglang": read_sglang,
    "tensorrt-llm": read_tensorrt_llm,
    "llamacpp-timings": read_timings,
    "llamacpp-log": read_llamacpp_log,
    "aiperf": read_records,
    "spec-bench": read_spec_bench,
    "eagle": read_eagle,
    "angelslim": read_angelslim,
    "speculators": read_csv,
    "model-optimizer": read_model_optimizer,
    "speculation-profile": read_profile,
    "golden-al": read_golden_al,
    "dynamo": read_dynamo,
    "vllm": read_vllm,
    "vllm-synthetic": read_vllm_synthetic,
    "sglang-adaptive": read_sglang_adaptive,
    "llamacpp": read_llamacpp,
    "transformers": read_transformers,
    "simspec": read_summary,
}

OPTIONS: dict[str, tuple[str, ...]] = {
    "specdecode-bench": ("K", "rule", "temperature", "target", "task", "end_tokens"),
    "vllm-prometheus": ("before",),
    "sglang": ("drafted",),
    "tensorrt-llm": ("engine_version",),
    "golden-al": ("mode",),
    "spec-bench": ("drafted",),
    "angelslim": ("drafted",),
    "model-optimizer": ("drafted",),
}
"""The fields of ImportOptions that a format reads; others are refused there."""


def read_import(
    format: str, path: str | PathLike[str], options: ImportOptions | None = None
) -> Import:
    """What the file holds; ValueError, one line with the file, where it is not of this format."""
    if format not in FORMATS:
        near = get_close_matches(format, FORMATS, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ValueError(
            f"format {format!r} is unknown: {hint}expected one of {', '.join(FORMATS)}"
        )
    options = options or ImportOptions()
    for field in fields(options):
        stated = getattr(options, field.name) != field.default
        if stated and field.name not in OPTIONS.get(format, ()):
            raise ValueError(f"format {format} does not read {field.name}: leave that option out")
    source = read_source(format, path)
    try:
        return FORMATS[format](source, options)
    except (ValueError, OverflowError, RecursionError) as error:
        reason = " ".join(str(error).split())[:LONGEST_REASON]
        raise ValueError(f"{Path(path)}: {reason}") from None
