"""OpenVINO GenAI: prompt lookup or a draft model; models are F16 GGUF files."""

from typing import Any

from real.engines.adapter import Engine, EngineSettings, ModelDraft, NgramDraft, start_options


def openvino_options(settings: EngineSettings) -> dict[str, Any]:
    """The "start" object; ValueError for folders, and drafts that the engine makes otherwise."""
    for model in (settings.model, getattr(settings.draft, "model", None)):
        if model is not None and not model.is_file():
            raise ValueError(
                f"{model} is no file; OpenVINO GenAI reads float16 GGUF files here: "
                "simspec export-gguf --dtype float16 writes one"
            )
    draft = settings.draft
    if isinstance(draft, NgramDraft) and draft.ngram_min != 1:
        raise ValueError(
            f"OpenVINO GenAI looks up n-grams from {draft.ngram_max} tokens down to 1, not to "
            f"{draft.ngram_min}: give least 1"
        )
    if isinstance(draft, ModelDraft) and draft.p_min:
        raise ValueError(
            "OpenVINO GenAI has a confidence threshold or a draft length, not both: give p_min 0"
        )
    return start_options(settings)


ENGINE = Engine(
    name="openvino",
    packages=("openvino-genai",),
    tested=("2026.4.1", "2026.4.2"),
    worker="openvino_worker.py",
    methods=("ngram", "model"),
    ngrams=((1, 2), (1, 3), (1, 5)),
    convention="openvino",
    longest_draft=64,
    options=openvino_options,
)
