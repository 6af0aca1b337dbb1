"""Rows of a text from one pass over it, for drafters that see the token prefix alone (`real.record` has the definition)."""

import numpy as np
import torch

from real.block import Decoder
from real.draft import Drafter
from real.features import FEATURES, learnt, read
from real.rows import Rows, Settings, rank_of, runs
from real.sampling import margin
from real.target import Target
from simspec.grid import encode_margin
from simspec.policy import IDENTITY


@torch.inference_mode()
def states(lm: Decoder, prompt: list[int], text: np.ndarray, ahead: int) -> torch.Tensor:
    """Last hidden states `[n, width]` of one pass over a text of n tokens: row t's produced token t + `ahead`, 0 or -1.

    Where ahead = -1 reaches in front of the first token of the prompt, the row is zeros (as for `decode`).
    """
    true = torch.tensor([[*prompt, *text[:-1].tolist()]], device=lm.device)
    x = lm.run(lm.embed(true), range(len(lm.layers)), lm.rotation(torch.arange(true.shape[1], device=lm.device)))[0]
    first = len(prompt) - 1 + ahead
    return x[first : first + len(text)] if first >= 0 else torch.cat((torch.zeros_like(x[:1]), x[: len(text) - 1]))


@torch.inference_mode()
def one_bit(target: Target, drafter: Drafter, settings: Settings, prompt: list[int], text: np.ndarray, sequence: int) -> Rows:
    """Rows of `text` for a drafter that is a stand-alone language model, `drafter.lm`: equal to those of `chains`."""
    lm = drafter.lm
    n, K, names, rule, device = len(text), settings.K, settings.features, settings.rule, lm.device
    token = np.zeros((n, K), np.int64)  # [s, j]: the chain behind a miss at text position s; column 0 is the pick there
    plain = [i for i, name in enumerate(names) if name in FEATURES or name in IDENTITY]
    predictors = learnt(names, drafter)
    feature = np.zeros((n, K, len(names)), np.uint8)
    gap, edge = np.zeros((n, K), np.uint8), np.full((n, K), 255 if names else 0, np.uint8)
    hidden = torch.zeros(n, K, lm.shape.width, dtype=lm.dtype, device=device)

    def judge(rows, at, slot, x):
        logits = lm.logits(x)
        scores = rule.scores(logits, sequence, (at + slot).tolist())
        token[rows, slot] = scores.argmax(-1).cpu().numpy()
        gap[rows, slot] = encode_margin(margin(scores).cpu().numpy())
        hidden[rows, slot] = x
        if plain:
            picked = torch.from_numpy(token[rows, slot])
            code, distance = read(tuple(names[i] for i in plain), logits, rule.temperature, token=picked)
            feature[rows[:, None], slot, plain], edge[rows, slot] = code, encode_margin(distance.min(-1))
        return scores

    true = [*prompt, *text[:-1].tolist()]
    first = len(prompt) - 1
    cache = lm.cache(capacity=len(true) + n * (K - 1))
    layers = range(len(lm.layers))
    causal = torch.ones(len(true), len(true), dtype=torch.bool, device=device).tril()
    x = lm.embed(torch.tensor([true], device=device))
    x = lm.run(x, layers, lm.rotation(torch.arange(len(true), device=device)), causal, cache, 0)
    every = np.arange(n)
    scores = judge(every, every, 0, x[0, first:])
    wanted = torch.from_numpy(text.astype(np.int64)).to(device)
    straight = rank_of(scores, wanted).clamp(max=255).cpu().numpy().astype(np.uint8)

    miss = np.flatnonzero(token[:, 0] != text)
    seen = torch.arange(len(true), device=device) < torch.from_numpy(miss + len(prompt)).to(device)[:, None]
    own = torch.eye(len(miss), dtype=torch.bool, device=device)
    mask, start = seen, len(true)
    for slot in range(1, K if len(miss) else 0):
        mask = torch.cat((mask, own), 1)
        position = torch.from_numpy(miss + len(prompt) + slot - 1).to(device)
        x = lm.embed(torch.from_numpy(token[miss, slot - 1])[None].to(device))
        x = lm.run(x, layers, lm.rotation(position), mask, cache, start)
        start += len(miss)
        judge(miss, miss, slot, x[0])

    # row t follows the text up to its first miss s, then the tail behind s
    following = np.append(miss, n)[np.searchsorted(miss, every)]
    ahead = every[:, None] + np.arange(K)
    source = np.minimum(np.minimum(ahead, following[:, None]), n - 1)
    column = np.maximum(ahead - following[:, None], 0)
    chain = token[source, column]
    reach = np.minimum(K, settings.budget - every)
    ends = np.isin(chain, settings.end_tokens) & (np.arange(K) < reach[:, None])
    depth = np.where(ends.any(1), ends.argmax(1) + 1, K).astype(np.uint8)
    live = np.arange(K) < np.minimum(depth, reach)[:, None]
    rank = np.where(ahead < n, straight[np.minimum(ahead, n - 1)], 0).astype(np.uint8)
    feature, edge = feature[source, column], edge[source, column]
    if predictors:
        before, odds = states(target.decoder, prompt, text, -1), {}
        for name, predictor in predictors.items():
            folded, slots = predictor.folded(), np.minimum(np.arange(K), predictor.depths - 1)
            odds[name] = (folded.of_target(before)[:, slots] + folded.of_drafter(hidden)[source, column]).flatten()
        code, distance = read(tuple(odds), None, rule.temperature, odds)
        feature[..., [names.index(name) for name in odds]] = code.reshape(n, K, -1)
        edge = np.minimum(edge, encode_margin(distance.min(-1)).reshape(n, K))
    cut = [np.where(live, a, 0).astype(np.uint8) for a in (gap[source, column], edge)]
    shown = np.where(live[..., None], feature, 0).astype(np.uint8)
    chain = np.where(live, chain, -1)
    return Rows(text, depth, runs(chain, text, depth), shown, rank, np.zeros(n, np.uint8), *cut)
