"""Recording of drafters with a parallel form: K steps, each for all positions at once."""

import numpy as np
import torch

from real.decode.features import feature_values, required_predictors
from real.draft import Drafter
from real.draft.drafted_logits import DraftedLogits
from real.draft.parallel import position_batches
from real.drafters import parallel_form
from real.model.target import Target
from real.record.rows import FullDrafts, RecordedRows, rows_of
from real.record.scores import picks, row_chunks
from real.record.settings import Settings
from real.record.shared_pass import SharedPass


@torch.inference_mode()
def record_parallel(
    target: Target,
    drafter: Drafter,
    settings: Settings,
    prompt: list[int],
    tokens: np.ndarray,
    sequence: int,
    shared: SharedPass | None = None,
) -> RecordedRows:
    """Rows of `tokens`; equal to `record_stepwise`.

    Each position drafts twice side by side: freely, and along the sequence for the ranks.
    """
    n, K, names, rule = len(tokens), settings.K, settings.features, settings.rule
    shared = shared or SharedPass()
    full = shared.target_pass(target.decoder, prompt, tokens.tolist())
    device = full.token.device
    depth = drafter.longest(K)
    predictors = {
        name: predictor.folded() for name, predictor in required_predictors(names, drafter).items()
    }
    sequence_scores = shared.scores(rule, sequence, n + K)
    padded = np.concatenate((tokens, np.repeat(tokens[-1:], K))).astype(np.int64)
    expected = torch.from_numpy(padded).to(device)
    # chain, margin, rank and features of every position and slot
    columns = torch.zeros(3 + len(names), n, K, dtype=torch.float64, device=device)
    factory = parallel_form(drafter)
    assert factory is not None
    first = max(0, factory.min_context - len(prompt))
    if first < n and depth:
        parallel = factory(drafter, full)
        positions = torch.arange(first, n, device=device)
        for batch in position_batches(positions, 1, full, parallel, 2):
            m, both = len(batch), torch.cat((batch, batch))
            target_odds = {
                name: folded.of_target(full.before(batch)) for name, folded in predictors.items()
            }
            root = torch.zeros_like(both)[:, None]
            step = parallel.start(both)
            for slot in range(depth):
                drafted, hidden = DraftedLogits.of(step[0])[:, 0], step[1][:, 0]
                token = torch.cat((expected[batch + slot], expected[batch + slot]))
                odds = {
                    name: each[:, min(slot, each.shape[1] - 1)]
                    + predictors[name].of_drafter(hidden[:m])
                    for name, each in target_odds.items()
                }
                for part in row_chunks(m, drafted.logits.shape[-1], device):
                    rows, own = batch[part], drafted[part]
                    free = sequence_scores(own, rows + slot)
                    token[part], columns[1, rows, slot] = picks(own, free)
                    columns[0, rows, slot] = token[part].double()
                    along = drafted[m + part.start : m + part.stop]
                    scores = sequence_scores(along, rows + slot)
                    columns[2, rows, slot] = along.rank(scores, token[m:][part]).double()
                    if names:
                        columns[3:, rows, slot] = feature_values(
                            names,
                            own.logits,
                            rule.temperature,
                            {name: value[part] for name, value in odds.items()},
                            own.place(token[part])[0],
                        ).T
                if slot + 1 < depth:
                    step = parallel.extend(root, token[:, None])
    chain, draft_margin, rank, *feature = columns.cpu().numpy()
    drafts = FullDrafts(
        offered=np.where(np.arange(n) < first, 0, depth),
        chain=chain.astype(np.int64),
        margin=draft_margin,
        feature=np.stack(feature, -1) if names else np.zeros((n, K, 0)),
        rank=rank.astype(np.int64),
    )
    return rows_of(settings, tokens, drafts)
