"""llama.cpp's server in process, by the package xllamacpp; models are GGUF files."""

from typing import Any

from real.engines.adapter import Engine, EngineSettings, NgramDraft, start_options


def llamacpp_options(settings: EngineSettings) -> dict[str, Any]:
    """The "start" object; ValueError for folders, and n-grams that ngram-simple cannot match."""
    for model in (settings.model, getattr(settings.draft, "model", None)):
        if model is not None and not model.is_file():
            raise ValueError(f"{model} is no file; expected GGUF; convert_hf_to_gguf.py writes one")
    draft = settings.draft
    if isinstance(draft, NgramDraft):
        if draft.ngram_min != draft.ngram_max:
            raise ValueError(
                f"llama.cpp's ngram-simple matches n-grams of one length, not {draft.ngram_min} "
                f"to {draft.ngram_max}: give the same least and most"
            )
        if draft.k < draft.ngram_max:
            raise ValueError(
                f"llama.cpp never drafts with draft length {draft.k} below n-gram length "
                f"{draft.ngram_max}: give shorter n-grams"
            )
    return start_options(settings)


ENGINE = Engine(
    name="llamacpp",
    packages=("xllamacpp",),
    tested=("2026.10.11549", "2026.10.11550"),
    worker="llamacpp_worker.py",
    methods=("ngram", "model"),
    convention="llamacpp",
    matches=("last",),
    ngrams=((1, 1), (2, 2), (3, 3)),
    longest_draft=64,
    options=llamacpp_options,
)
