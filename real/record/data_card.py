"""Data cards: what a recording is, beside it, in figures that today's code reproduces."""

from pathlib import Path

import numpy as np

from real.model.fingerprint import sha256
from real.prompts import repeated_ngrams
from simspec import Trace
from simspec.acceptance import expected_accepted_length

ROW = (
    "Row t of a text says: the target's next token is token[t]; a draft from here can go depth[t] deep, and its first "
    "run[t] tokens would be accepted; feature, rank and margins are given for each of the K slots."
)


def card(path: Path, trace: Trace) -> dict:
    """The card of a saved recording: meaning, origin, checksum, and how repetitive its texts are."""
    cuts, run = trace.offset, expected_accepted_length(trace)
    texts = [trace.token[cuts[s] : cuts[s + 1]] for s in range(trace.sequences)]
    ended = np.isin(trace.token[cuts[1:] - 1], trace.meta.end_tokens)
    tasks = sorted(set(trace.meta.tasks))
    meta = trace.meta
    return {
        "row": ROW,
        "rule": meta.rule,
        "temperature": meta.temperature,
        "seed": meta.seed,
        "target": meta.target,
        "drafter": meta.drafter,
        "K": meta.K,
        "texts": trace.sequences,
        "rows": trace.rows,
        "mean_accepted_length": round(float(run.mean()), 4),
        "repeated_8grams": round(repeated_ngrams(texts), 4),
        "ended_by_end_token": round(float(ended.mean()), 4),
        "by_task": {
            task: {
                "texts": len(of),
                "mean_accepted_length": round(
                    float(np.concatenate([run[cuts[s] : cuts[s + 1]] for s in of]).mean()), 4
                ),
                "repeated_8grams": round(repeated_ngrams(texts[s] for s in of), 4),
            }
            for task in tasks
            for of in [[s for s in range(trace.sequences) if meta.tasks[s] == task]]
        },
        "sources": list(meta.sources),
        "device": meta.device,
        "dtype": meta.dtype,
        "versions": meta.versions,
        "git": meta.git,
        "argv": list(meta.argv),
        "sha256": sha256(path),
    }
