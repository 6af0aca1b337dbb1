"""Choice: the draft length of each batch size, chosen by replay, and what it gains."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simspec.exports.evidence import Evidence
from simspec.exports.schedule import NO_LIMITS, Limits, Schedule
from simspec.numerics.stats import MIN_PROMPTS, Interval, joined, ratio
from simspec.policies import parse
from simspec.policies.fixed import fixed
from simspec.policy.policy import Policy
from simspec.policy_kind import DeferredPolicy
from simspec.reports.drafters import DRAWS
from simspec.reports.prompt_seconds import replicated_seconds

TIE = 0.01
"""Draft lengths within this share of the best throughput tie, and the smallest wins."""

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Choice:
    """A policy for each batch size, and its modelled gain.

    | field    | type              | meaning                                                    |
    | -------- | ----------------- | ---------------------------------------------------------- |
    | policies | (str,) [n]        | name of the policy at each of the evidence's batch sizes   |
    | schedule | Schedule or None  | their draft lengths; None where a policy adapts its own    |
    | gains    | (Interval,) [n]   | speedup over plain decoding at each; NaN limits: unknown   |
    | chosen   | bool              | whether lengths are the best by replay, not given          |

    speedup = sum over prompts of plain seconds / sum of modelled seconds, resampled by prompt and
    by replicate of the costs.
    Fewer than 8 prompts have no interval.
    """

    policies: tuple[str, ...]
    schedule: Schedule | None
    gains: tuple[Interval, ...]
    chosen: bool = False


def best_length(
    seconds: Sequence[float] | Array, longest: int | None = None, shortest: int = 0
) -> int:
    """The smallest length whose throughput is within TIE of the best; seconds[k] for length k.

    Lengths from shortest to longest count. All produce the same tokens, so throughput is 1 / time.
    """
    times = np.asarray(seconds, np.float64)[shortest : None if longest is None else longest + 1]
    return shortest + int(np.flatnonzero(times.min() >= (1 - TIE) * times)[0])


def choose(
    evidence: Evidence,
    policy: str | None = None,
    limits: Limits = NO_LIMITS,
    level: float = 0.95,
    seed: int = 0,
) -> Choice:
    """The given policy, or the best fixed length at each batch size by modelled throughput.

    A given fixed length is cut to the captured rows like a chosen one. ValueError, one line, for a
    policy that cannot run, a tree, or a length that the engine does not take.
    """
    parsed = None if policy is None else parse(policy)
    if parsed is None:
        wanted = _best_lengths(evidence, limits, seed)
    elif not isinstance(parsed, Policy | DeferredPolicy) or parsed.submitted(evidence.K):
        raise ValueError(f"policy {policy!r} submits trees, expected one of chains: fixed:3")
    elif (given := fixed_length(parsed)) is None:
        adaptive = [parsed] * len(evidence.batch)
        return Choice((parsed.name,) * len(adaptive), None, _gains(evidence, adaptive, level, seed))
    elif given > limits.longest:
        raise ValueError(
            f"policy {policy!r} drafts {given} tokens, and this engine takes at most "
            f"{limits.longest}: lower it"
        )
    else:
        wanted = (given,) * len(evidence.batch)
    schedule = limits.of(Schedule(evidence.batch, wanted))
    lengths = [fixed(k) for k in schedule.length]
    gains = _gains(evidence, lengths, level, seed)
    return Choice(tuple(p.name for p in lengths), schedule, gains, parsed is None)


def fixed_length(policy: Policy | DeferredPolicy) -> int | None:
    """k of fixed(k), None of any other policy."""
    return policy.K if isinstance(policy, Policy) and policy.name.startswith("fixed:") else None


def _times(
    evidence: Evidence, size: int, policies: Sequence[Policy | DeferredPolicy], seed: int
) -> tuple[Array, Array]:
    """(plain seconds [P], modelled seconds [policies, P, 1 + R]) of all recordings' prompts."""
    plain, spent = [], list[list[Array]]()
    for name, trace in evidence.traces.items():
        random = any(isinstance(policy, Policy) and policy.random for policy in policies)
        cost, draws = evidence.costs[name][size], DRAWS if random or trace.ratio is not None else 1
        seconds, tokens = replicated_seconds(trace, policies, cost, draws, seed)
        plain.append(tokens * cost.baseline)
        spent.append(list(seconds.values()))
    return np.concatenate(plain), np.stack([joined(of_policy) for of_policy in zip(*spent)])


def _best_lengths(evidence: Evidence, limits: Limits, seed: int) -> tuple[int, ...]:
    lengths = [fixed(k) for k in range(min(limits.longest, evidence.K) + 1)]
    best = []
    for i, size in enumerate(evidence.batch):
        _, spent = _times(evidence, i, lengths, seed)
        best.append(best_length(spent[..., 0].sum(axis=1), limits.cap(size), limits.shortest))
    return tuple(best)


def _gains(
    evidence: Evidence, policies: Sequence[Policy | DeferredPolicy], level: float, seed: int
) -> tuple[Interval, ...]:
    """The speedup of each batch size's policy."""
    times = (_times(evidence, i, [policy], seed) for i, policy in enumerate(policies))
    return tuple(_gain(plain, spent[0], level, seed) for plain, spent in times)


def _gain(plain: Array, spent: Array, level: float, seed: int) -> Interval:
    if len(plain) < MIN_PROMPTS:
        value = float(plain.sum() / spent[:, 0].sum())
        return Interval(value, np.nan, np.nan, level, len(plain))
    return ratio(plain, spent, level=level, seed=seed)
