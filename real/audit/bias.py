"""Signs of a biased sampler: acceptance other than min(1, p / q), tokens towards the drafter."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from real.audit.runs import EmittedSequence
from real.decode.loop import along
from real.draft import Drafter
from real.model.decoder import Decoder
from real.model.target import Target
from real.record.rows import emitted_rows
from real.sampling import Rule


def teacher_forced_logits(
    decoder: Decoder, prompt: tuple[int, ...], token: tuple[int, ...], rows: int = 64
) -> Iterator[tuple[int, Tensor]]:
    """Yields (position, logits `[m, vocab]`) that predict `token`, at most `rows` at a time.

    One causal pass without a KV cache, so that a faulty cache of the run cannot hide itself.
    ValueError for logits that are not finite.
    """
    with torch.inference_mode():
        inputs = torch.tensor([[*prompt, *token[:-1]]], device=decoder.device)
        rotation = decoder.rotation(torch.arange(inputs.shape[1], device=decoder.device))
        hidden = decoder.run(decoder.embed(inputs), range(len(decoder.layers)), rotation)
        hidden = hidden[0, len(prompt) - 1 :]
        for start in range(0, len(token), rows):
            logits = decoder.logits(hidden[start : start + rows])
            if not logits.isfinite().all():
                raise ValueError(
                    "the target's logits are not finite; expected numbers: "
                    "its weights are damaged, or the dtype too narrow"
                )
            yield start, logits


ACCEPTANCE_TILTS = np.array([sign * 2.0**-i for i in range(1, 8) for sign in (1, -1)])
"""Alternatives h of the acceptance test: acceptance with probability r + h r (1 - r)."""


@dataclass(frozen=True)
class AcceptanceBias:
    """The drafted tokens that the rounds tested, given the emitted tokens y.

    | field | shape, dtype | meaning |
    | --- | --- | --- |
    | score | float64 `[n]` | accepted (0 or 1) minus r |
    | chance | float64 `[n]` | r = min(1, q(y) / p(y)), the probability of acceptance given y |
    | tilt | float64 `[n, len(ACCEPTANCE_TILTS)]` | log(1 + h score) |
    """

    score: np.ndarray
    chance: np.ndarray
    tilt: np.ndarray


def acceptance_bias(
    target: Target, drafter: Drafter, rule: Rule, sequence: EmittedSequence, K: int
) -> AcceptanceBias:
    """The tested tokens of a sequence's rounds of chains, at most K deep."""
    tokens = np.array(sequence.token, np.int32)
    prompt = list(sequence.prompt)
    rows = emitted_rows(target, drafter, rule, prompt, tokens, K, len(tokens))
    assert rows.ratio is not None
    return bias_of_rounds(rows.ratio, sequence.rounds, len(tokens))


def bias_of_rounds(
    ratio: np.ndarray, rounds: Sequence[tuple[int, ...]], length: int
) -> AcceptanceBias:
    """The tokens that `rounds` of chains tested in a sequence of that length, given `ratio [n, K]`.

    A token is tested if all before it in the round are accepted. Whether the next one is drafted
    may depend on these, and never on the token itself (`Policy.anticipates`): so acceptances are
    Bernoulli(r) one after the other, whatever the policy.
    """
    score, chance = [np.zeros(0)], [np.zeros(0)]
    for position, _, drafted, accepted in rounds:
        ended = position + accepted == length
        tested = accepted + (accepted < drafted and not ended)
        r = ratio[position, :tested].astype(np.float64)
        chance.append(r)
        score.append((np.arange(tested) < accepted) - r)
    scores = np.concatenate(score)
    tilt = np.log1p(scores[:, None] * ACCEPTANCE_TILTS)
    return AcceptanceBias(scores, np.concatenate(chance), tilt)


def chain_depth(sequences: tuple[EmittedSequence, ...]) -> int:
    """The longest chain of all rounds; 0 where rounds are unknown, or some drafted a tree."""
    rounds = [r for sequence in sequences for r in sequence.rounds]
    if any(drafted > computed for _, computed, drafted, _ in rounds):
        return 0
    return max((drafted for _, _, drafted, _ in rounds), default=0)


BIAS_TILTS = np.array([sign * 2.0**-i for i in range(2, 9) for sign in (1, -1)])
"""Alternatives h of the bias test: p (1 + h s), towards the drafter or away from it."""


@dataclass(frozen=True)
class DrafterBias:
    """The emitted tokens between target p and drafter q.

    r = (q - p) / (q + p) and s = r - Σ p r: p (1 + h s) is a distribution for |h| <= 1/4.

    | field | shape, dtype | meaning |
    | --- | --- | --- |
    | score | float64 `[n]` | s(token); mean 0 under p |
    | variance | float64 `[n]` | Σ p s^2 |
    | drafter_mean, drafter_square | float64 `[n]` | Σ q s and Σ q s^2 |
    | tilt | float64 `[n, len(BIAS_TILTS)]` | log(1 + h s(token)) |
    """

    score: np.ndarray
    variance: np.ndarray
    drafter_mean: np.ndarray
    drafter_square: np.ndarray
    tilt: np.ndarray


@torch.inference_mode()
def drafter_bias(p: Tensor, q: Tensor, token: tuple[int, ...]) -> DrafterBias:
    """The bias of `token [n]`, given `p [n, vocab]` and `q [n, vocab]`."""
    r = ((q - p) / (q + p)).nan_to_num(0)  # 0 / 0 where both remove a token
    s = r - (p * r).sum(-1, keepdim=True)
    score = s.gather(-1, torch.tensor(token, device=p.device)[:, None])[:, 0]
    tilt = torch.log1p(score[:, None] * torch.from_numpy(BIAS_TILTS).to(score))
    square = s.square()
    columns = score, (p * square).sum(-1), (q * s).sum(-1), (q * square).sum(-1), tilt
    return DrafterBias(*(column.cpu().numpy() for column in columns))


@torch.inference_mode()
def drafter_distributions(
    target: Target, drafter: Drafter, rule: Rule, sequence: EmittedSequence
) -> Tensor | None:
    """The drafter's processed distribution before every token, float64 `[n, vocab]`.

    One pass for a language model of the token prefix; any other drafter drafts one token at each
    position. None for a drafter without logits.
    """
    prompt, token, device = sequence.prompt, sequence.token, target.decoder.device
    if not drafter.has_logits:
        return None
    if drafter.prefix_only and drafter.lm is not None:
        parts = teacher_forced_logits(drafter.lm, prompt, token)
        return torch.cat([rule.probs(logits).to(device) for _, logits in parts])
    rows = []
    for _ in along(target, drafter, prompt, token):
        step = drafter.next()
        if step is None or step.logits is None:
            return None
        rows.append(rule.probs(step.logits[None])[0].to(device))
    return torch.stack(rows)
