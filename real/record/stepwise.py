"""Recording position by position, through the drafter's protocol: the definition of a row."""

import numpy as np
import torch

from real.decode.along import along
from real.decode.features import FeatureReader
from real.draft import Drafter
from real.draft.drafted_logits import rank_of
from real.model.target import Target
from real.record.rows import MAX_CODE, RecordedRows, accepted_lengths
from real.record.settings import RecordError, Settings
from real.sampling import margin
from simspec.trace.quantization import encode_margin


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
