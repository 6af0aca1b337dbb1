"""Traces from the rows of recorded sequences."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from real.prompts import Prompt
from real.record.rows import RecordedRows
from real.record.settings import Settings
from simspec import Trace, TraceMeta


def assemble(
    rows: Sequence[RecordedRows],
    prompts: Sequence[Prompt],
    first: int,
    settings: Settings,
    meta: TraceMeta,
) -> Trace:
    """One trace of recorded sequences, whose draw addresses are `first`, `first + 1`, ..."""
    return Trace(
        offset=_offsets([len(r.token) for r in rows]),
        budget=np.full(len(rows), settings.budget, np.int64),
        sequence=np.arange(first, first + len(rows), dtype=np.int64),
        prompt_offset=_offsets([len(p.token) for p in prompts]),
        prompt=np.concatenate([np.array(p.token, np.int32) for p in prompts]),
        **_concatenated(rows),
        meta=replace(meta, tasks=tuple(p.task for p in prompts), ids=tuple(p.id for p in prompts)),
    )


def join_traces(traces: Sequence[Trace], meta: TraceMeta) -> Trace:
    """The sequences of several traces of one recording, in order."""
    return Trace(
        offset=_offsets(np.concatenate([np.diff(t.offset) for t in traces])),
        prompt_offset=_offsets(np.concatenate([np.diff(t.prompt_offset) for t in traces])),
        prompt=np.concatenate([t.prompt for t in traces]),
        budget=np.concatenate([t.budget for t in traces]),
        sequence=np.concatenate([t.sequence for t in traces]),
        **_concatenated(traces),
        meta=replace(
            meta,
            tasks=sum((t.meta.tasks for t in traces), ()),
            ids=sum((t.meta.ids for t in traces), ()),
        ),
    )


def _offsets(lengths) -> np.ndarray:
    return np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)


def _concatenated(parts: Sequence) -> dict[str, Any]:
    """The columns of `RecordedRows`, each concatenated over `parts`; None where it is absent."""
    columns = {
        name: [getattr(p, name) for p in parts] for name in RecordedRows.__dataclass_fields__
    }
    return {
        name: None if column[0] is None else np.concatenate(column)
        for name, column in columns.items()
    }
