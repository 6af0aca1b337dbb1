"""The formats of `simspec export`, each with its exporter and its validator."""

from collections.abc import Callable
from dataclasses import dataclass

from simspec.exports import (
    dynamo,
    golden_al,
    hf_transformers,
    llamacpp,
    sglang,
    sglang_adaptive,
    spec_bench,
    speculation_profile,
    tensorrt_llm,
    vllm,
    vllm_synthetic,
)
from simspec.exports.request import Request, Settings
from simspec.exports.schedule import NO_LIMITS, Limits


@dataclass(frozen=True)
class Format:
    """One engine's format.

    | field       | type                      | meaning                                          |
    | ----------- | ------------------------- | ------------------------------------------------ |
    | export      | Request -> str            | the document                                     |
    | validate    | (str, Settings) -> None   | ValueError for what the engine refuses or alters |
    | not_covered | (str,)                    | what the document does not say about the engine  |
    | limits      | Limits                    | the lengths that the engine takes                |
    | flags       | (Request, file) -> str    | flags that go with the document; None: none      |
    """

    export: Callable[[Request], str]
    validate: Callable[[str, Settings], None]
    not_covered: tuple[str, ...] = ()
    limits: Limits = NO_LIMITS
    flags: Callable[[Request, str], str] | None = None


MEASURED = Limits(shortest=1)
"""Of formats that state acceptance: it is that of a draft, even where plain decoding is faster."""

FORMATS: dict[str, Format] = {
    "vllm": Format(
        vllm.export,
        vllm.validate,
        (
            "batches larger than the last range: vLLM uses the last range's length",
            "data parallel sizes above 1, where vLLM ignores the batch sizes",
            "what a length of 0 costs in vLLM (vllm#49548 reports a collapse)",
        ),
    ),
    "vllm-synthetic": Format(
        vllm_synthetic.export,
        vllm_synthetic.validate,
        ("dependence between rounds: the engine draws each round's acceptance alone",),
        MEASURED,
    ),
    "sglang": Format(sglang.export, sglang.validate),
    "sglang-adaptive": Format(
        sglang_adaptive.export,
        sglang_adaptive.validate,
        (
            "SGLang's own adaptation: each batch size has one candidate",
            "batches between two captured graph sizes, which use the slot of the larger",
            "set-ups that switch it off with a warning: DP attention, multi-layer EAGLE and others",
        ),
        flags=sglang_adaptive.flags,
    ),
    "tensorrt-llm": Format(
        tensorrt_llm.export,
        tensorrt_llm.validate,
        (
            "batches beyond the last key: upper bounds switch drafts off, lower bounds keep them",
            "decoding types that do not take a length by batch size",
        ),
        tensorrt_llm.LIMITS,
    ),
    "llamacpp": Format(
        llamacpp.export,
        llamacpp.validate,
        ("several slots: llama.cpp drafts for each slot by itself",),
    ),
    "transformers": Format(
        hf_transformers.export,
        hf_transformers.validate,
        ("the threshold's own adaptation: with scikit-learn transformers moves it as it decodes",),
    ),
    "speculation-profile": Format(
        speculation_profile.export, speculation_profile.validate, limits=MEASURED
    ),
    "golden-al": Format(
        golden_al.export,
        golden_al.validate,
        ("InferenceX's prompts: its curves are of SPEED-Bench coding at temperature 1",),
        MEASURED,
    ),
    "dynamo": Format(
        dynamo.export,
        dynamo.validate,
        ("dependence between rounds: the mocker draws each round's acceptance alone",),
        Limits(shortest=1, longest=dynamo.LONGEST),
    ),
    "spec-bench": Format(
        spec_bench.export,
        spec_bench.validate,
        (
            "texts: turns are empty, so that the file serves speed.py as a method, not as the "
            "baseline, whose tokens it counts in the text",
            "wall-clock time: wall_time is modelled",
        ),
    ),
}
