"""What a round costs phase by phase, from runs of the decode loop on prompts: means, so that totals are predicted."""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from real.decode.loop import DecodeResult
from real.decode.phase_timer import DRAFTING, OTHER, POLICY, VERIFICATION
from real.measure.batched import OWED
from real.measure.loop import PLAIN, READ, READING, after
from simspec import CostModel, Policy, Rounds, policies
from simspec.cost import next_backlog

EVERY, THEN = 8, 4
"""Draft lengths that are run: all up to EVERY, and each THEN-th behind; those between are interpolated."""
FEW = 3
"""Rounds that a length needs to count; where no length has as many, one is enough."""


@dataclass(frozen=True)
class PhaseCost:
    """Seconds of a round by phase; K is the longest draft that it prices.

    | field | shape, dtype | meaning |
    | --- | --- | --- |
    | drafting | float64 `[K + 1]` | to draft j tokens with nothing owed |
    | verification | float64 `[K + 1]` | the target's pass over j drafts and the input |
    | policy | float64 `[K + 1]` | to ask the policy in a round of j drafts |
    | other | float64 `[K + 1]` | the walk and the bookkeeping after j drafts were submitted |
    | catch_up | float64 `[B + 1]` | what drafting takes longer with b rows owed, b > B as B |
    | feature | float | to read the features of one token |
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
        """float64 `[R, 4]`: drafting, verification, policy, other of every round, by a policy that reads these features."""
        seconds = np.zeros((len(rounds), 4))
        computed, drafted = rounds.computed, rounds.drafted
        owed = np.minimum(backlog(rounds), len(self.catch_up) - 1)
        seconds[:, DRAFTING] = self.drafting[computed] + np.where(
            computed > 0, self.catch_up[owed], 0.0
        )
        seconds[:, VERIFICATION] = self.verification[drafted]
        seconds[:, POLICY] = self.policy[computed] + (self.feature * computed if reads else 0.0)
        seconds[:, OTHER] = self.other[drafted]
        return seconds

    def model(self, name: str = "price", device: str = "") -> CostModel:
        """The same as a CostModel, where `overhead` is asking once and `draft[j]` the rest of asking and drafting: equal round by round."""
        asking = self.policy - self.policy[0]
        return CostModel(
            draft=np.maximum(self.drafting + asking, 0.0) * (np.arange(len(asking)) > 0),
            verify=self.verification + self.other,
            catch_up=self.catch_up,
            overhead=float(self.policy[0]),
            baseline=float(self.plain.sum()),
            name=name,
            device=device,
            feature=self.feature,
        )


def backlog(rounds: Rounds) -> np.ndarray:
    """int64 `[R]`: rows that the drafter owes when each round starts, 0 at a sequence's first."""
    owed = np.zeros(len(rounds), np.int64)
    for s in range(len(rounds.offset) - 1):
        now = 0
        for r in range(rounds.offset[s], rounds.offset[s + 1]):
            owed[r] = now
            now = next_backlog(now, rounds.computed[r], rounds.accepted[r])
    return owed


def jobs(K: int, has_logits: bool) -> dict:
    """Policies to run, by name: plain decoding, fixed lengths, those that leave rows owed, and one that reads features."""
    lengths = sorted({*range(min(K, EVERY) + 1), *range(EVERY, K + 1, THEN), K})
    found: dict = {PLAIN: policies.BUILTIN["fixed"](0)} | {
        j: policies.BUILTIN["fixed"](j) for j in lengths
    }
    if K:
        found |= {(b,): after(b) for b in range(1, OWED + 1)}
    if K and has_logits:
        found[READING] = reading(K)
    return found


def reading(K: int) -> Policy:
    """Drafts READ tokens and looks at the confidence of each."""
    return policies.BUILTIN["confidence"](0.0, K=min(READ, K))


class Pricing:
    """Gathers runs of `jobs` and makes of them a PhaseCost: `hear` each, then `cost`."""

    def __init__(self, K: int):
        self.K = K
        self.drafting = defaultdict(list)  # (computed, owed) -> seconds
        self.passing, self.asking, self.around = (
            defaultdict(list) for _ in range(3)
        )  # drafted, computed, drafted -> seconds
        self.read: list[tuple[int, float]] = []
        self.plain: list[np.ndarray] = []

    def hear(self, job, result: DecodeResult) -> None:
        """Takes the rounds of a run of that job."""
        if job == PLAIN:
            self.plain += list(result.seconds)
            return
        columns = (getattr(result, name).tolist() for name in ("computed", "drafted", "accepted"))
        owed = 0
        for computed, drafted, accepted, seconds in zip(*columns, result.seconds):
            if job == READING:
                self.read += [(computed, seconds[POLICY])] if computed else []
            else:
                self.drafting[computed, owed].append(seconds[DRAFTING])
                self.asking[computed].append(seconds[POLICY])
                self.passing[drafted].append(seconds[VERIFICATION])
                self.around[drafted].append(seconds[OTHER])
            owed = next_backlog(owed, computed, accepted)

    def cost(self) -> PhaseCost:
        """Means; ValueError where nothing was heard of plain decoding, or of drafts though K is not 0."""
        if not self.plain or (self.K and not any(j for j, _ in self.drafting)):
            raise ValueError(
                "no round of plain decoding, or none with a draft, was measured; take other prompts for the costs"
            )
        base = {}
        for j in {j for j, _ in self.drafting}:
            settled = self.drafting.get((j, 0), [])
            every = [s for (i, _), seconds in self.drafting.items() if i == j for s in seconds]
            base[j] = settled if len(settled) >= FEW else every
        drafting = self._line(base)
        drafting[0] = 0.0
        longer = [[] for _ in range(OWED + 1)]
        for (j, owed), seconds in self.drafting.items():
            if j and owed <= OWED and len(self.drafting.get((j, 0), [])) >= FEW:
                longer[owed] += [s - drafting[j] for s in seconds]
        catch_up = [0.0]
        for found in longer[1:]:
            catch_up.append(max(float(np.mean(found)), 0.0) if len(found) >= FEW else catch_up[-1])
        asking = self._line(self.asking)
        extra = [(seconds - asking[j]) / j for j, seconds in self.read if j <= self.K]
        return PhaseCost(
            drafting,
            self._line(self.passing),
            asking,
            self._line(self.around),
            np.array(catch_up),
            max(float(np.mean(extra)), 0.0) if extra else 0.0,
            np.mean(self.plain, 0),
        )

    def _line(self, found: dict) -> np.ndarray:
        """Means at 0 .. K: between measured lengths on straight lines, beyond the last one along the last of them, never below 0."""
        most = max(map(len, found.values()))
        at = sorted(j for j, seconds in found.items() if len(seconds) >= min(FEW, most))
        mean = [float(np.mean(found[j])) for j in at]
        lengths = np.arange(self.K + 1)
        line = np.interp(lengths, at, mean)
        if len(at) > 1 and at[-1] < self.K:
            slope = (mean[-1] - mean[-2]) / (at[-1] - at[-2])
            line = np.where(lengths > at[-1], mean[-1] + slope * (lengths - at[-1]), line)
        return np.maximum(line, 0.0)
