"""Data cards: a summary of a recording, in figures that `card` reproduces from its file."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from real.model.fingerprint import sha256
from real.prompts import repeated_ngrams
from simspec import Trace
from simspec.trace.acceptance import expected_accepted_length

ROW = (
    "Row t of a text says: the target's next token is token[t]; a draft from here can go depth[t] "
    "deep, and its first run[t] tokens would be accepted; feature, rank and margins are given for "
    "each of the K slots."
)


def card(path: Path, trace: Trace) -> dict:
    """The data card of a saved recording: meaning, origin, checksum, acceptance, repetition."""
    cuts, accepted = trace.offset, expected_accepted_length(trace)
    sequences = [trace.token[cuts[s] : cuts[s + 1]] for s in range(trace.sequences)]
    ended = np.isin(trace.token[cuts[1:] - 1], trace.meta.end_tokens)
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
        "mean_accepted_length": round(float(accepted.mean()), 4),
        "repeated_8grams": round(repeated_ngrams(sequences), 4),
        "ended_by_end_token": round(float(ended.mean()), 4),
        "by_task": {
            task: _task_summary(sequences, np.split(accepted, cuts[1:-1]), indices)
            for task, indices in _indices_by_task(meta.tasks).items()
        },
        "sources": list(meta.sources),
        "device": meta.device,
        "dtype": meta.dtype,
        "versions": meta.versions,
        "git": meta.git,
        "argv": list(meta.argv),
        **({"batch": meta.batch} if meta.batch > 1 else {}),
        "sha256": sha256(path),
    } | ({"chat": meta.chat} if meta.chat else {})


def _indices_by_task(tasks: Sequence[str]) -> dict[str, list[int]]:
    return {t: [s for s, task in enumerate(tasks) if task == t] for t in sorted(set(tasks))}


def _task_summary(
    sequences: list[np.ndarray], accepted: list[np.ndarray], indices: list[int]
) -> dict:
    mean = float(np.concatenate([accepted[s] for s in indices]).mean())
    return {
        "texts": len(indices),
        "mean_accepted_length": round(mean, 4),
        "repeated_8grams": round(repeated_ngrams(sequences[s] for s in indices), 4),
    }
