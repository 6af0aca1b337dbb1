"""Acceptance ratios of drafters with a parallel form: K steps, each for all positions at once."""

import numpy as np
import torch

from real.draft import Drafter
from real.draft.drafted_logits import DraftedLogits
from real.draft.parallel import position_batches
from real.drafters import parallel_form
from real.model.full_pass import TargetPass
from real.record.scores import row_chunks
from real.record.settings import Settings


@torch.inference_mode()
def parallel_ratios(
    drafter: Drafter, settings: Settings, full: TargetPass, tokens: np.ndarray, p: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(ratio float64 `[n, K]`, depth uint8 `[n]`) as the protocol gives them position by position.

    `p [n]` is the target's probability of each of `tokens [n]`.
    """
    n, K, device = len(tokens), settings.K, full.token.device
    factory = parallel_form(drafter)
    assert factory is not None
    offered = drafter.longest(K)
    first = min(n, max(0, factory.min_context - full.prompt_length))
    padded = np.concatenate((tokens, np.repeat(tokens[-1:], K))).astype(np.int64)
    expected = torch.from_numpy(padded).to(device)
    q = torch.zeros(n, K, dtype=torch.float64, device=device)
    if first < n and offered:
        parallel = factory(drafter, full)
        positions = torch.arange(first, n, device=device)
        for batch in position_batches(positions, 1, full, parallel):
            step = parallel.start(batch)
            for slot in range(offered):
                drafted = DraftedLogits.of(step[0])[:, 0]
                token = expected[batch + slot][:, None]
                for part in row_chunks(len(batch), drafted.logits.shape[-1], device):
                    probabilities = settings.rule.probs(drafted.logits[part])
                    column, inside = drafted.place(token[part][:, 0])
                    found = probabilities.gather(-1, column[:, None])[:, 0]
                    q[batch[part], slot] = found.where(inside, 0.0)
                if slot + 1 < offered:
                    step = parallel.extend(torch.zeros_like(token), token)
    position = np.arange(n)[:, None] + np.arange(K)
    ratio = np.minimum(1.0, q.cpu().numpy() / p[np.minimum(position, n - 1)])
    offers = np.where(np.arange(n) < first, 0, offered)
    depth = np.where(offers < np.minimum(K, settings.budget - np.arange(n)), offers, K)
    return np.where(position < n, ratio, 0.0), depth.astype(np.uint8)
