"""Recording under the rejection rule: the chance that each draft token is accepted, given the text that the target wrote."""

from collections.abc import Callable

import numpy as np
import torch

from real.decode.along import along
from real.decode.loop import decode
from real.decode.plan import chain_plan
from real.decode.result import Round
from real.draft import Drafter, Silent
from real.model.target import Target
from real.record.parallel import states
from real.record.rows import RecordError, Rows, Settings
from simspec import CostModel, policies


def alone(
    target: Target,
    settings: Settings,
    prompt: list[int],
    sequence: int,
    on_round: Callable[[Round], None],
) -> np.ndarray:
    """The target's own text, int32 `[n]`: plain decoding, one token a pass, `on_round` is called with each."""
    plan = chain_plan(
        policies.BUILTIN["fixed"](0), settings.K, 0, CostModel.from_ratio(0.0, settings.K)
    )
    result = decode(
        target,
        Silent(),
        plan,
        settings.rule,
        prompt,
        settings.budget,
        settings.end_tokens,
        sequence,
        on_round,
    )
    return result.token


def ratios(
    target: Target, drafter: Drafter, settings: Settings, prompt: list[int], sequence: int
) -> Rows:
    """A text drawn from the target and, for each row t and slot j, min(1, q(y) / p(y)) of its token y = token[t + j].

    p is the target's distribution there, q the drafter's in a draft from row t that followed the text so far, both as the rule processes
    them. A drafter without logits is sure of its tokens: 1 as long as they are the text's, then 0. Past the text's end 0. `depth` is what the
    drafter offers, for drafts do not end at end tokens under this rule. RecordError for a drafter that is not history-free.
    """
    if not drafter.history_free:
        raise RecordError(
            f"drafter {drafter.name!r} depends on earlier rounds; a recording of it would not replay exactly"
        )
    draws: list[float] = []
    text = alone(
        target,
        settings,
        prompt,
        sequence,
        lambda r: draws.append(float(r.verified.scores[0, r.verified.token[0]].exp())),
    )
    p, n, K = np.array(draws), len(text), settings.K
    if drafter.prefix_only and drafter.lm is not None:
        q, depth = _straight(drafter, settings, prompt, text), np.full(n, K, np.uint8)
        ahead = np.arange(n)[:, None] + np.arange(K)
        ratio = np.where(ahead < n, np.minimum(1.0, q / p)[np.minimum(ahead, n - 1)], 0.0)
    else:
        ratio, depth = _stepwise(target, drafter, settings, prompt, text, p)
    return Rows(
        text,
        depth,
        np.zeros(n, np.uint8),
        np.zeros((n, K, 0), np.uint8),
        ratio=ratio.astype(np.float32),
    )


def _straight(drafter, settings, prompt, text) -> np.ndarray:
    """q of each token of the text, of a drafter that sees the prefix alone: one pass."""
    wanted = torch.from_numpy(text.astype(np.int64)).to(drafter.lm.device)
    logits = drafter.lm.logits(states(drafter.lm, prompt, text, 0))
    return settings.rule.probs(logits).gather(-1, wanted[:, None])[:, 0].cpu().numpy()


def _stepwise(target, drafter, settings, prompt, text, p):
    """(ratio, depth) through the protocol, position by position: a draft along the text from each."""
    n, K, rule = len(text), settings.K, settings.rule
    ratio, depth, t = np.zeros((n, K)), np.full(n, K, np.uint8), 0
    quiet = not drafter.has_logits

    def pick(logits, slot: int, hidden=None) -> int:
        if t + slot >= n:
            return int(logits.argmax())
        token = int(text[t + slot])
        ratio[t, slot] = min(1.0, float(rule.probs(logits[None])[0, token]) / p[t + slot])
        return token

    for t, _, _ in along(target, drafter, prompt, text, pick):
        right = True
        for slot in range(min(K, settings.budget - t)):
            step = drafter.next()
            if step is None:
                depth[t] = slot
                break
            if quiet:
                right = right and t + slot < n and step.token == text[t + slot]
                ratio[t, slot] = right
        drafter.rollback(0)
    return ratio, depth
