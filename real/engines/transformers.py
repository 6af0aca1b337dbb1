"""transformers: assisted generation by a draft model, or by prompt lookup."""

from typing import Any

from real.engines.adapter import Engine, EngineSettings, ModelDraft, NgramDraft, start_options


def transformers_options(settings: EngineSettings) -> dict[str, Any]:
    """The "start" object; ValueError for drafts that generate() makes otherwise."""
    draft = settings.draft
    if isinstance(draft, NgramDraft) and draft.ngram_min != 1:
        raise ValueError(
            f"transformers looks up n-grams from {draft.ngram_max} tokens down to 1, not to "
            f"{draft.ngram_min}: give least 1"
        )
    if isinstance(draft, ModelDraft) and draft.p_min:
        raise ValueError(
            "transformers keeps the token whose probability is below its threshold, so that p_min "
            "has another meaning there: give 0"
        )
    return start_options(settings)


ENGINE = Engine(
    name="transformers",
    packages=("transformers",),
    tested=("5.23.0", "5.24"),
    worker="transformers_worker.py",
    methods=("ngram", "model"),
    ngrams=((1, 2), (1, 3), (1, 5)),
    convention="transformers",
    longest_draft=64,
    options=transformers_options,
)
