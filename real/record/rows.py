"""The recorded rows of one sequence, and recording position by position: their definition."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from real.decode.along import along
from real.decode.features import FeatureReader, encode_features
from real.draft import Drafter
from real.draft.drafted_logits import rank_of
from real.model.target import Target
from real.prompts import Prompt
from real.record.settings import RecordError, Settings
from real.sampling import margin
from simspec import Trace, TraceMeta
from simspec.trace.quantization import encode_margin

MAX_CODE = 255
"""The largest code of a rank and of a margin: that or more."""


@dataclass(frozen=True)
class RecordedRows:
    """The rows of one sequence of n tokens; fields as in `simspec.Trace`."""

    token: np.ndarray
    depth: np.ndarray
    run: np.ndarray
    feature: np.ndarray
    rank: np.ndarray | None = None
    margin: np.ndarray | None = None
    draft_margin: np.ndarray | None = None
    feature_margin: np.ndarray | None = None
    ratio: np.ndarray | None = None
    order: np.ndarray | None = None
    beam: np.ndarray | None = None


@dataclass(frozen=True)
class FullDrafts:
    """Drafts from all positions, none stopped early; input of `rows_of`.

    | field | shape, dtype | meaning |
    | --- | --- | --- |
    | offered | int64 `[n]` | tokens that the drafter offers at each position |
    | chain | int64 `[n, K]` | its free draft |
    | margin | float64 `[n, K]` | best minus second score of each draft token |
    | feature | float64 `[n, K, F]` | values of the features |
    | rank | int64 `[n, K]` | rank of the recorded token in a draft along the sequence |
    """

    offered: np.ndarray
    chain: np.ndarray
    margin: np.ndarray
    feature: np.ndarray
    rank: np.ndarray


def rows_of(settings: Settings, tokens: np.ndarray, drafts: FullDrafts) -> RecordedRows:
    """The rows of a sequence, drafts cut at the budget, an end token and `drafts.offered`."""
    (n, K), names = drafts.chain.shape, settings.features
    position, slot = np.arange(n), np.arange(K)
    reach = np.minimum(K, settings.budget - position)
    longest = np.minimum(reach, drafts.offered)
    ends = np.isin(drafts.chain, settings.end_tokens) & (slot < longest[:, None])
    full = np.where(drafts.offered < reach, drafts.offered, K)
    depth = np.where(ends.any(1), ends.argmax(1) + 1, full).astype(np.uint8)
    drafted = slot < np.minimum(depth, reach)[:, None]
    inside = position[:, None] + slot < n
    offered = slot < drafts.offered[:, None]
    rank = np.where(offered, np.minimum(drafts.rank, MAX_CODE), MAX_CODE)
    feature = np.zeros((n, K, len(names)), np.uint8)
    draft_margin, feature_margin = np.zeros((n, K), np.uint8), np.zeros((n, K), np.uint8)
    draft_margin[drafted] = encode_margin(drafts.margin[drafted])
    if names and drafted.any():
        feature[drafted], distance = encode_features(names, drafts.feature[drafted])
        feature_margin[drafted] = encode_margin(distance.min(-1))
    return RecordedRows(
        token=tokens,
        depth=depth,
        run=accepted_lengths(np.where(drafted, drafts.chain, -1), tokens, depth),
        feature=feature,
        rank=np.where(inside, rank, 0).astype(np.uint8),
        margin=np.zeros(n, np.uint8),
        draft_margin=draft_margin,
        feature_margin=feature_margin,
    )


def accepted_lengths(chain: np.ndarray, tokens: np.ndarray, depth: np.ndarray) -> np.ndarray:
    """Leading tokens of each row of `chain [n, K]` that equal `tokens`, at most `depth`; uint8."""
    n, K = chain.shape
    position = np.arange(n)[:, None] + np.arange(K)
    equal = chain == tokens[np.minimum(position, n - 1)]
    accepted = (position < n) & equal & (np.arange(K) < depth[:, None])
    return np.cumprod(accepted, 1).sum(1).astype(np.uint8)


def assemble(
    rows: Sequence[RecordedRows],
    prompts: Sequence[Prompt],
    first: int,
    settings: Settings,
    meta: TraceMeta,
    budgets: Sequence[int] | None = None,
) -> Trace:
    """One trace of recorded sequences, whose draw addresses are `first`, `first + 1`, ...

    `budgets` replace that of `settings`, one for each sequence.
    """
    return Trace(
        offset=_offsets([len(r.token) for r in rows]),
        budget=np.array(budgets or [settings.budget] * len(rows), np.int64),
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


def check_history_free(drafter: Drafter | type[Drafter]) -> None:
    """RecordError for a drafter whose proposals depend on earlier rounds."""
    if not drafter.history_free:
        raise RecordError(
            f"drafter {drafter.name!r} depends on earlier rounds, so its recording would not "
            "replay exactly; expected a history-free drafter"
        )


def record_stepwise(
    target: Target,
    drafter: Drafter,
    settings: Settings,
    prompt: list[int],
    tokens: np.ndarray,
    sequence: int,
) -> RecordedRows:
    """Rows of `tokens`: at each position a free draft, then one along the sequence for the ranks.

    | slot | rank | draft margin |
    | --- | --- | --- |
    | of a drafter with logits | of the recorded token | best minus second score |
    | of a drafter without | 0 if it is the recorded token, else 255 | 255 |
    | not offered | 255 | 0 |

    RecordError for a drafter that is not history-free, ValueError for features without logits.
    """
    check_history_free(drafter)
    n, K, names, rule = len(tokens), settings.K, settings.features, settings.rule
    chain = np.zeros((n, K), np.int64)
    feature = np.zeros((n, K, len(names)), np.uint8)
    draft_margin, feature_margin = np.zeros((n, K), np.uint8), np.zeros((n, K), np.uint8)
    rank = np.zeros((n, K), np.uint8)
    depth = np.zeros(n, np.uint8)
    t, forced = 0, None

    def pick(logits, slot: int, hidden=None) -> int:
        scores = rule.scores(logits[None], sequence, [t + slot])
        if forced is not None:
            rank[t, slot] = min(int(rank_of(scores, forced[slot : slot + 1])), MAX_CODE)
            return int(forced[slot])
        draft_margin[t, slot] = encode_margin(margin(scores).cpu().numpy())[0]
        return int(scores.argmax())

    reader = FeatureReader(names, rule.temperature, drafter)
    for t, _, output in along(target, drafter, prompt, tokens.tolist(), pick):
        reader.begin(output)
        limit = min(K, settings.budget - t)
        depth[t] = K
        rank[t, : n - t] = MAX_CODE
        for slot in range(limit):
            step = drafter.next()
            if step is None:
                depth[t] = slot
                break
            chain[t, slot] = step.token
            if not drafter.has_logits:
                draft_margin[t, slot] = MAX_CODE
                if t + slot < n and step.token == tokens[t + slot]:
                    rank[t, slot] = 0
            if names:
                feature[t, slot], distance = reader.read(step, slot)
                feature_margin[t, slot] = encode_margin(distance.min())
            if step.token in settings.end_tokens:
                depth[t] = slot + 1
                break
        drafter.rollback(0)
        forced = torch.from_numpy(tokens[t:].astype(np.int64)).to(target.decoder.device)
        for _ in range(min(limit, n - t) if drafter.has_logits else 0):
            if drafter.next() is None:
                break
        drafter.rollback(0)
        forced = None
    return RecordedRows(
        token=tokens,
        depth=depth,
        run=accepted_lengths(chain, tokens, depth),
        feature=feature,
        rank=rank,
        margin=np.zeros(n, np.uint8),
        draft_margin=draft_margin,
        feature_margin=feature_margin,
    )
