"""Rows of a text, all positions at once (`real.record.recorder` has the definition).

`one_bit` is for drafters that see the token prefix alone, `forked` for those with a parallel form. Nothing leaves the device before the end.
"""

import numpy as np
import torch

from real.decode.features import feature_values, required_predictors
from real.draft import Drafter
from real.draft.parallel import position_batches
from real.drafters import parallel_form
from real.model.decoder import Decoder
from real.model.full_pass import TargetPass, causal_mask
from real.model.target import Target
from real.record.rows import Rows, Scores, Settings, finished, rank_of
from real.sampling import margin


@torch.inference_mode()
def states(lm: Decoder, prompt: list[int], text: np.ndarray, ahead: int) -> torch.Tensor:
    """Last hidden states `[n, width]` of one pass over a text of n tokens: row t's produced token t + `ahead`, 0 or -1.

    Where ahead = -1 reaches in front of the first token of the prompt, the row is zeros (as for `decode`).
    """
    true = torch.tensor([[*prompt, *text[:-1].tolist()]], device=lm.device)
    x = lm.run(
        lm.embed(true),
        range(len(lm.layers)),
        lm.rotation(torch.arange(true.shape[1], device=lm.device)),
    )[0]
    first = len(prompt) - 1 + ahead
    return (
        x[first : first + len(text)]
        if first >= 0
        else torch.cat((torch.zeros_like(x[:1]), x[: len(text) - 1]))
    )


@torch.inference_mode()
def one_bit(
    target: Target,
    drafter: Drafter,
    settings: Settings,
    prompt: list[int],
    text: np.ndarray,
    sequence: int,
) -> Rows:
    """Rows of `text` for a drafter that is a stand-alone language model, `drafter.lm`: equal to those of `chains`."""
    lm = drafter.lm
    n, K, names, device = len(text), settings.K, settings.features, lm.device
    predictors = {
        name: predictor.folded() for name, predictor in required_predictors(names, drafter).items()
    }
    plain = tuple(name for name in names if name not in predictors)
    scored = Scores(settings.rule, sequence, n + K)
    wide = {"dtype": torch.float64, "device": device}
    # [s, j]: the chain behind a miss at text position s; column 0 is the pick there
    token = torch.zeros(n, K, dtype=torch.int64, device=device)
    gap, value, odds = (
        torch.zeros(n, K, **wide),
        torch.zeros(n, K, len(plain), **wide),
        torch.zeros(len(predictors), n, K, **wide),
    )

    def judge(rows, slot, x):
        logits = lm.logits(x)
        scores = scored(logits, rows + slot)
        token[rows, slot], gap[rows, slot] = scores.argmax(-1), margin(scores)
        if plain:
            value[rows, slot] = feature_values(
                plain, logits, settings.rule.temperature, token=token[rows, slot]
            )
        for i, folded in enumerate(predictors.values()):
            odds[i, rows, slot] = folded.of_drafter(x)
        return scores

    known = TargetPass(target.decoder, prompt, text.tolist())
    first, rows = len(prompt), len(known.token)
    cache, layers = lm.cache(capacity=rows + n * (K - 1)), range(len(lm.layers))
    x = lm.run(
        lm.embed(known.token[None]),
        layers,
        lm.rotation(torch.arange(rows, device=device)),
        causal_mask(rows, device),
        cache,
    )
    wanted = torch.from_numpy(text.astype(np.int64)).to(device)
    straight = rank_of(judge(torch.arange(n, device=device), 0, x[0, first - 1 :]), wanted)

    miss = (token[:, 0] != wanted).nonzero()[:, 0]
    mask, start = torch.arange(rows, device=device) < (miss + first)[:, None], rows
    own = torch.eye(len(miss), dtype=torch.bool, device=device)
    for slot in range(1, K if len(miss) else 0):
        mask = torch.cat((mask, own), 1)
        x = lm.run(
            lm.embed(token[miss, slot - 1][None]),
            layers,
            lm.rotation(miss + first + slot - 1),
            mask,
            cache,
            start,
        )
        start += len(miss)
        judge(miss, slot, x[0])

    # row t follows the text up to its first miss s, then the tail behind s
    every = torch.arange(n, device=device)
    following = torch.cat((miss, miss.new_tensor([n])))[torch.searchsorted(miss, every)][:, None]
    ahead = every[:, None] + torch.arange(K, device=device)
    source, column = ahead.minimum(following).clamp(max=n - 1), (ahead - following).clamp(min=0)
    shown = dict(zip(plain, value[source, column].unbind(-1)))
    if predictors:
        before = known.before(every)
        for i, (name, folded) in enumerate(predictors.items()):
            standing = folded.of_target(before)
            slots = torch.arange(K, device=device).clamp(max=standing.shape[1] - 1)
            shown[name] = (standing[:, slots] + odds[i, source, column]).sigmoid()
    found = [
        token[source, column].double(),
        gap[source, column],
        straight[ahead.clamp(max=n - 1)].double(),
    ]
    chain, gaps, rank, *features = (
        torch.stack([*found, *(shown[name] for name in names)]).cpu().numpy()
    )
    features = np.stack(features, -1) if names else np.zeros((n, K, 0))
    return finished(
        settings, text, np.full(n, K), chain.astype(np.int64), gaps, features, rank.astype(np.int64)
    )


@torch.inference_mode()
def forked(
    target: Target,
    drafter: Drafter,
    settings: Settings,
    prompt: list[int],
    text: np.ndarray,
    sequence: int,
) -> Rows:
    """Rows of `text` for a drafter with a parallel form, of all positions at once: equal to those of `chains`.

    At each place two drafts stand beside each other, a free one and one along the text, whose ranks are recorded.
    """
    n, K, names, rule = len(text), settings.K, settings.features, settings.rule
    known = TargetPass(target.decoder, prompt, text.tolist())
    device, deep = (
        known.token.device,
        K if drafter.max_draft_length is None else min(K, drafter.max_draft_length),
    )
    predictors = {
        name: predictor.folded() for name, predictor in required_predictors(names, drafter).items()
    }
    scored = Scores(rule, sequence, n + K)
    wanted = torch.from_numpy(np.concatenate((text, np.repeat(text[-1:], K))).astype(np.int64)).to(
        device
    )
    found = torch.zeros(3 + len(names), n, K, dtype=torch.float64, device=device)
    factory = parallel_form(drafter)
    assert factory is not None
    first = max(0, factory.min_context - len(prompt))
    every = torch.arange(first, n, device=device)
    fork = factory(drafter, known) if first < n else None
    for at in position_batches(every, 1, known, fork, 2) if fork else ():
        places = torch.cat((at, at))
        standing = {name: folded.of_target(known.before(at)) for name, folded in predictors.items()}
        root = torch.zeros_like(places)[:, None]
        step = fork.start(places) if deep else None
        for slot in range(deep):
            logits, hidden = (t[:, 0] for t in step)
            free, forced = scored(logits, places + slot).chunk(2)
            logits, hidden = logits[: len(at)], hidden[: len(at)]
            token = torch.cat((free.argmax(-1), wanted[at + slot]))
            found[0, at, slot], found[1, at, slot] = token[: len(at)].double(), margin(free)
            found[2, at, slot] = rank_of(forced, token[len(at) :]).double()
            odds = {
                name: each[:, min(slot, each.shape[1] - 1)] + predictors[name].of_drafter(hidden)
                for name, each in standing.items()
            }
            if names:
                found[3:, at, slot] = feature_values(
                    names, logits, rule.temperature, odds, token[: len(at)]
                ).T
            if slot + 1 < deep:
                step = fork.extend(root, token[:, None])
    chain, gap, rank, *value = found.cpu().numpy()
    value = np.stack(value, -1) if names else np.zeros((n, K, 0))
    offers = np.where(np.arange(n) < first, 0, deep)
    return finished(
        settings, text, offers, chain.astype(np.int64), gap, value, rank.astype(np.int64)
    )
