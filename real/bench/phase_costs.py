"""Seconds of a round by phase, which predict the total time of a run."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from real.decode.loop import DecodeResult
from real.decode.verify import DRAFTING, OTHER, POLICY, VERIFICATION
from real.measure.timing import (
    BACKLOG,
    FEATURE_TOKENS,
    FEATURES,
    FIXED,
    MAX_BACKLOG,
    PLAIN,
    Job,
    TimedRound,
)
from simspec import CostModel, Rounds
from simspec.cost.rounds import next_backlog
from simspec.numerics.stats import MIN_PROMPTS


@dataclass
class RoundTimes:
    """Rounds of all runs of chain jobs, in the order in which they ran.

    | field | rounds of |
    | --- | --- |
    | plain | plain decoding |
    | features | policies that read features |
    | chains | all other jobs |
    """

    plain: list[TimedRound] = field(default_factory=list)
    features: list[TimedRound] = field(default_factory=list)
    chains: list[TimedRound] = field(default_factory=list)

    def add(self, job: Job, result: DecodeResult) -> None:
        """Collects the rounds of one run of that job."""
        {PLAIN: self.plain, FEATURES: self.features}.get(job.kind, self.chains).extend(
            timed_rounds(result)
        )


def timed_rounds(result: DecodeResult) -> Iterator[TimedRound]:
    """The rounds of one sequence with the backlog before each."""
    backlog = 0
    columns = (getattr(result, name).tolist() for name in ("computed", "drafted", "accepted"))
    for i, (computed, drafted, accepted, seconds) in enumerate(zip(*columns, result.seconds)):
        yield TimedRound(i == 0, computed, drafted, backlog, seconds)
        backlog = next_backlog(backlog, computed, accepted)


def chain_jobs(lengths: Iterable[int], has_logits: bool) -> list[Job]:
    """Jobs that price chains: plain decoding, every draft length, catching up, reading features.

    Drafters without logits expose no features; a longest length of 0 leaves nothing to catch up.
    """
    lengths = list(lengths)
    jobs = [Job(PLAIN), *(Job(FIXED, length) for length in lengths)]
    if K := max(lengths):
        jobs += [Job(BACKLOG, rows) for rows in range(1, MAX_BACKLOG + 1)]
        if has_logits:
            jobs.append(Job(FEATURES, min(FEATURE_TOKENS, K)))
    return jobs


@dataclass(frozen=True)
class PhaseCosts:
    """Seconds of a round by phase; K is the longest draft that it prices.

    | field | shape, dtype | seconds of |
    | --- | --- | --- |
    | drafting | float64 `[K + 1]` | drafting j tokens without a backlog |
    | verification | float64 `[K + 1]` | the target's pass over j drafted tokens and the input |
    | policy | float64 `[K + 1]` | calling the policy in a round of j drafted tokens |
    | other | float64 `[K + 1]` | acceptance and bookkeeping after j tokens were submitted |
    | catch_up | float64 `[B + 1]` | extra drafting time after a backlog of b rows; b > B: as B |
    | feature | float | reading the features of one token |
    | plain | float64 `[4]` | a round of plain decoding |
    """

    drafting: np.ndarray
    verification: np.ndarray
    policy: np.ndarray
    other: np.ndarray
    catch_up: np.ndarray
    feature: float
    plain: np.ndarray

    def seconds(self, rounds: Rounds, reads: tuple[str, ...] = ()) -> np.ndarray:
        """float64 `[R, 4]`: phases of every round under a policy that reads these features."""
        seconds = np.zeros((len(rounds), 4))
        computed, drafted = rounds.computed, rounds.drafted
        backlog = np.minimum(backlogs(rounds), len(self.catch_up) - 1)
        seconds[:, DRAFTING] = self.drafting[computed] + np.where(
            computed > 0, self.catch_up[backlog], 0.0
        )
        seconds[:, VERIFICATION] = self.verification[drafted]
        seconds[:, POLICY] = self.policy[computed] + (self.feature * computed if reads else 0.0)
        seconds[:, OTHER] = self.other[drafted]
        return seconds

    def cost_model(self, name: str = "phase costs", device: str = "") -> CostModel:
        """The CostModel with the same seconds for every round.

        `overhead` is one policy call; `draft[j]` is drafting and the remaining calls.
        """
        calls = self.policy - self.policy[0]
        return CostModel(
            draft=np.maximum(self.drafting + calls, 0.0) * (np.arange(len(calls)) > 0),
            verify=self.verification + self.other,
            catch_up=self.catch_up,
            overhead=float(self.policy[0]),
            baseline=float(self.plain.sum()),
            name=name,
            device=device,
            feature=self.feature,
        )


def backlogs(rounds: Rounds) -> np.ndarray:
    """int64 `[R]`: rows that the drafter lags by before each round; 0 at a sequence's first."""
    backlog = np.zeros(len(rounds), np.int64)
    for s in range(len(rounds.offset) - 1):
        current = 0
        for r in range(rounds.offset[s], rounds.offset[s + 1]):
            backlog[r] = current
            current = next_backlog(current, rounds.computed[r], rounds.accepted[r])
    return backlog


DENSE, STRIDE = 8, 4
"""Draft lengths that are run: all up to DENSE, then each STRIDE-th."""
MIN_ROUNDS = 3
"""Rounds that a length needs to count; where no length has as many, one is enough."""


def phase_jobs(K: int, has_logits: bool) -> list[Job]:
    """Jobs that price drafts of up to K tokens, at the lengths that follow DENSE and STRIDE."""
    lengths = sorted({*range(min(K, DENSE) + 1), *range(DENSE, K + 1, STRIDE), K})
    return chain_jobs(lengths, has_logits)


def phase_costs(times: RoundTimes, K: int) -> PhaseCosts:
    """Means by phase of collected rounds, first rounds included.

    ValueError without rounds of plain decoding, or without drafts although K is not 0.
    """
    drafting: dict[tuple[int, int], list[float]] = defaultdict(list)
    phases: dict[int, dict[int, list[float]]] = {
        phase: defaultdict(list) for phase in (VERIFICATION, POLICY, OTHER)
    }
    for r in times.chains:
        drafting[r.computed, r.backlog].append(r.seconds[DRAFTING])
        phases[POLICY][r.computed].append(r.seconds[POLICY])
        phases[VERIFICATION][r.drafted].append(r.seconds[VERIFICATION])
        phases[OTHER][r.drafted].append(r.seconds[OTHER])
    if not times.plain or (K and not any(j for j, _ in drafting)):
        raise ValueError(
            "no round of plain decoding, or none with a draft, was measured; "
            "take other prompts for the costs"
        )
    draft = interpolated_means(_without_backlog(drafting), K)
    draft[0] = 0.0
    policy = interpolated_means(phases[POLICY], K)
    extra = [
        (r.seconds[POLICY] - policy[r.computed]) / r.computed
        for r in times.features
        if 0 < r.computed <= K
    ]
    return PhaseCosts(
        drafting=draft,
        verification=interpolated_means(phases[VERIFICATION], K),
        policy=policy,
        other=interpolated_means(phases[OTHER], K),
        catch_up=_catch_up(drafting, draft),
        feature=max(float(np.mean(extra)), 0.0) if extra else 0.0,
        plain=np.mean([r.seconds for r in times.plain], 0),
    )


def phase_costs_without_each(
    prompts: Sequence[RoundTimes], K: int
) -> tuple[PhaseCosts, list[PhaseCosts]]:
    """(costs from the rounds of all prompts, costs without those of each prompt).

    The latter are [] for fewer than MIN_PROMPTS. ValueError as `phase_costs`.
    """
    costs = phase_costs(_joined(prompts), K)
    if len(prompts) < MIN_PROMPTS:
        return costs, []
    kept = ([*prompts[:i], *prompts[i + 1 :]] for i in range(len(prompts)))
    return costs, [phase_costs(_joined(others), K) for others in kept]


def _joined(prompts: Sequence[RoundTimes]) -> RoundTimes:
    whole = RoundTimes()
    for times in prompts:
        whole.plain += times.plain
        whole.features += times.features
        whole.chains += times.chains
    return whole


def _without_backlog(drafting: Mapping[tuple[int, int], list[float]]) -> dict[int, list[float]]:
    """Seconds by draft length without a backlog; of all rounds where MIN_ROUNDS had none."""
    by_length = {}
    for j in {j for j, _ in drafting}:
        clean = drafting.get((j, 0), [])
        pooled = [s for (length, _), seconds in drafting.items() if length == j for s in seconds]
        by_length[j] = clean if len(clean) >= MIN_ROUNDS else pooled
    return by_length


def _catch_up(drafting: Mapping[tuple[int, int], list[float]], draft: np.ndarray) -> np.ndarray:
    """Mean excess over `draft` by backlog; one of fewer than MIN_ROUNDS costs as the one before."""
    excess: list[list[float]] = [[] for _ in range(MAX_BACKLOG + 1)]
    for (j, backlog), seconds in drafting.items():
        if j and backlog <= MAX_BACKLOG and len(drafting.get((j, 0), [])) >= MIN_ROUNDS:
            excess[backlog] += [s - draft[j] for s in seconds]
    catch_up = [0.0]
    for seconds in excess[1:]:
        enough = len(seconds) >= MIN_ROUNDS
        catch_up.append(max(float(np.mean(seconds)), 0.0) if enough else catch_up[-1])
    return np.array(catch_up)


def interpolated_means(by_length: Mapping[int, list[float]], K: int) -> np.ndarray:
    """float64 `[K + 1]`: means >= 0, linear between and beyond the measured lengths."""
    most = max(map(len, by_length.values()))
    measured = sorted(j for j, s in by_length.items() if len(s) >= min(MIN_ROUNDS, most))
    mean = [float(np.mean(by_length[j])) for j in measured]
    lengths = np.arange(K + 1)
    line = np.interp(lengths, measured, mean)
    if len(measured) > 1 and measured[-1] < K:
        slope = (mean[-1] - mean[-2]) / (measured[-1] - measured[-2])
        line = np.where(lengths > measured[-1], mean[-1] + slope * (lengths - measured[-1]), line)
    return np.maximum(line, 0.0)
