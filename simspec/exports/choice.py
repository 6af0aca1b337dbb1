"""Choice: the draft length of each batch size, chosen by replay, and what it gains."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from simspec.evaluate.evaluation import DRAWS, evaluate
from simspec.exports.evidence import Evidence
from simspec.numerics.stats import Estimate, estimate, joined, quotient, stacked
from simspec.policies import parse
from simspec.policies.fixed import fixed
from simspec.policy.policy import Policy
from simspec.policy_kind import DeferredPolicy

MAX_LENGTH = 255
CAPTURED = 512
"""Rows that vLLM's largest CUDA graph holds by default."""


@dataclass(frozen=True)
class Schedule:
    """Draft lengths by batch size; batches of batch[i - 1] + 1 to batch[i] draft length[i] tokens.

    | field  | type, shape                   | meaning                                  |
    | ------ | ----------------------------- | ---------------------------------------- |
    | batch  | (int,) [n], growing, >= 1     | largest batch size of each step          |
    | length | (int,) [n], 0..255            | tokens drafted for each sequence         |

    Batches beyond the last size are not covered. ValueError for other values.
    """

    batch: tuple[int, ...]
    length: tuple[int, ...]

    def __post_init__(self) -> None:
        growing = all(a < b for a, b in zip((0, *self.batch), self.batch))
        if not self.batch or not growing or len(self.batch) != len(self.length):
            raise ValueError(
                f"schedule has batch sizes {list(self.batch)} and {len(self.length)} lengths, "
                "expected growing sizes from 1 on with one length each"
            )
        if not all(0 <= k <= MAX_LENGTH for k in self.length):
            raise ValueError(
                f"schedule has lengths {list(self.length)}, expected 0 to {MAX_LENGTH}"
            )

    @property
    def longest(self) -> int:
        """The longest draft of any batch size."""
        return max(self.length)

    @property
    def single(self) -> bool:
        """Whether all batch sizes draft alike."""
        return len(set(self.length)) == 1

    @property
    def steps(self) -> list[tuple[int, int, int]]:
        """[(first batch size, last, length)]: neighbours of equal length are one step."""
        steps: list[tuple[int, int, int]] = []
        for low, high, length in zip((1, *(b + 1 for b in self.batch)), self.batch, self.length):
            if steps and steps[-1][2] == length:
                low = steps.pop()[0]
            steps.append((low, high, length))
        return steps

    def at(self, batch: int) -> int:
        """The draft length at that batch size; ValueError beyond the last."""
        if not 1 <= batch <= self.batch[-1]:
            raise ValueError(f"batch is {batch}, expected 1 to {self.batch[-1]}")
        return self.length[bisect_left(self.batch, batch)]


@dataclass(frozen=True)
class Limits:
    """What an engine allows of a schedule.

    | field    | type | meaning                                                              |
    | -------- | ---- | -------------------------------------------------------------------- |
    | captured | int  | rows of the largest captured graph, batch (k + 1) at most; 0: any    |
    | shortest | int  | the shortest draft to choose from                                    |
    | longest  | int  | the longest draft                                                    |
    | falling  | bool | no batch size drafts more than the smallest                          |
    """

    captured: int = 0
    shortest: int = 0
    longest: int = MAX_LENGTH
    falling: bool = False

    def cap(self, batch: int) -> int:
        """The longest draft of that batch size: batch (k + 1) <= captured, and `longest`."""
        rows = MAX_LENGTH if self.captured == 0 else self.captured // batch - 1
        return max(self.shortest, min(rows, self.longest))

    def of(self, schedule: Schedule) -> Schedule:
        """The schedule with each length at most its cap."""
        caps = [self.cap(batch) for batch in schedule.batch]
        if self.falling:
            first = min(schedule.length[0], caps[0])
            caps = [min(cap, first) for cap in caps]
        return replace(schedule, length=tuple(map(min, schedule.length, caps)))


NO_LIMITS = Limits()


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
    | gains    | (Estimate,) [n]   | speedup over plain decoding at each; NaN limits: unknown   |
    | chosen   | bool              | whether lengths are the best by replay, not given          |

    speedup = sum over prompts of plain seconds / sum of modelled seconds, resampled by prompt and
    by replicate of the costs.
    Fewer than 8 prompts have no interval.
    """

    policies: tuple[str, ...]
    schedule: Schedule | None
    gains: tuple[Estimate, ...]
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
        found = evaluate(trace, policies, cost, draws, seed)
        plain.append(found.plain)
        spent.append(list(found.seconds.values()))
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
) -> tuple[Estimate, ...]:
    """The speedup of each batch size's policy."""
    times = (_times(evidence, i, [policy], seed) for i, policy in enumerate(policies))
    return tuple(_gain(plain, spent[0], level, seed) for plain, spent in times)


def _gain(plain: Array, spent: Array, level: float, seed: int) -> Estimate:
    return estimate(stacked(plain, spent), quotient, level=level, seed=seed)
