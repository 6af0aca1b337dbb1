"""The settings of a recording, its metadata, and its data card: figures of its file."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from real.decode.features import feature_grids, required_predictors
from real.draft import Drafter
from real.model.stored_weights import sha256
from real.prompts import Prompt
from real.provenance import argv, device_name, revision, versions
from real.sampling import Rule
from simspec import Trace, TraceMeta
from simspec.trace.acceptance import expected_accepted_length, repeated_ngrams
from simspec.trace.quantization import LARGEST_RATIO
from simspec.tree.tree import MAX_RANKS

MAX_BATCH = 65536
MAX_CODE = 255
"""The largest code of a rank and of a margin: that or more."""


class RecordError(ValueError):
    """A recording that cannot be made or continued."""


@dataclass(frozen=True)
class Settings:
    """Settings of a recording; RecordError for values that cannot be."""

    K: int  # draft depth at every position, 1 .. 255
    budget: int  # most new tokens per sequence
    # rule, end_tokens: of the target's sequences
    rule: Rule
    end_tokens: tuple[int, ...]
    features: tuple[str, ...] = ("confidence", "entropy")  # () under the rejection rule
    tree: tuple[int, int] | tuple[()] = ()  # (width, levels) of dynamic trees, or ()
    batch: int = 1  # sequences of the target that are written at a time

    def __post_init__(self):
        if self.rule.sampled and self.features:
            raise RecordError(
                "a recording of the rejection rule holds no features, because it replays in "
                "distribution only; record without features"
            )
        if not 1 <= self.K <= 255 or self.budget < 1:
            raise RecordError(
                f"K is {self.K} and budget {self.budget}; "
                "expected 1 <= K <= 255 and at least one token"
            )
        if not 1 <= self.batch <= MAX_BATCH:
            raise RecordError(
                f"batch is {self.batch}; expected 1 to {MAX_BATCH} sequences at a time"
            )
        shape, most = self.tree, (MAX_RANKS, self.K)
        counts = type(shape) is tuple and [*map(type, shape)] == [int, int]
        if shape != () and not (counts and all(1 <= n <= m for n, m in zip(shape, most))):
            raise RecordError(
                f"tree is {self.tree!r}; expected a width from 1 to {MAX_RANKS} and "
                f"levels from 1 to K, here {self.K}, or ()"
            )


def describe(
    target: str, drafter: Drafter, settings: Settings, prompts: Sequence[Prompt],
    tokenizer_sha256: str, device: torch.device | str, dtype: torch.dtype
) -> TraceMeta:  # fmt: skip
    """The metadata of a recording made by this process on this machine."""
    rule = settings.rule
    return TraceMeta(
        rule=rule.name,
        target=target,
        drafter=drafter.name,
        K=settings.K,
        tokenizer_sha256=tokenizer_sha256,
        features=feature_grids(settings.features),
        predictors={
            name: p.sha256 for name, p in required_predictors(settings.features, drafter).items()
        },
        temperature=0.0 if rule.name == "greedy" else rule.temperature,
        top_k=rule.top_k,
        top_p=float(rule.top_p),
        seed=rule.seed,
        end_tokens=settings.end_tokens,
        prefix_only=drafter.prefix_only,
        sources=tuple(sorted({p.source for p in prompts})),
        device=device_name(device),
        dtype=str(dtype).removeprefix("torch."),
        versions=versions(),
        git=revision(),
        argv=argv(),
        tree=settings.tree,
        batch=settings.batch,
        largest_ratio=LARGEST_RATIO if rule.sampled else 1.0,
    )


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
        **_fields(meta, "rule", "temperature", "seed", "target", "drafter", "K"),
        "texts": trace.sequences,
        "rows": trace.rows,
        "mean_accepted_length": round(float(accepted.mean()), 4),
        "repeated_8grams": round(repeated_ngrams(sequences), 4),
        "ended_by_end_token": round(float(ended.mean()), 4),
        "by_task": {
            task: _task_summary(
                sequences, np.split(accepted, cuts[1:-1]), np.array(meta.tasks) == task
            )
            for task in sorted(set(meta.tasks))
        },
        "sources": list(meta.sources),
        **_fields(meta, "device", "dtype", "versions", "git"),
        "argv": list(meta.argv),
        **({"batch": meta.batch} if meta.batch > 1 else {}),
        **({"drafter_sha256": meta.drafter_sha256} if meta.drafter_sha256 else {}),
        "sha256": sha256(path),
    } | ({"chat": meta.chat} if meta.chat else {})


def _fields(meta: TraceMeta, *names: str) -> dict:
    return {name: getattr(meta, name) for name in names}


def _task_summary(
    sequences: list[np.ndarray], accepted: list[np.ndarray], chosen: np.ndarray
) -> dict:
    indices = np.flatnonzero(chosen)
    mean = float(np.concatenate([accepted[s] for s in indices]).mean())
    return {
        "texts": len(indices),
        "mean_accepted_length": round(mean, 4),
        "repeated_8grams": round(repeated_ngrams(sequences[s] for s in indices), 4),
    }
