"""Bias of acceptance in the rounds of sampled sequences: other chances than min(1, p / q)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from real.audit.emitted_run import EmittedSequence
from real.draft import Drafter
from real.model.target import Target
from real.record.emitted_sequences import emitted_rows
from real.sampling import Rule

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
