"""Seconds of a round by phase, which predict the total time of a run."""

from dataclasses import dataclass

import numpy as np

from real.decode.phase_timer import DRAFTING, OTHER, POLICY, VERIFICATION
from simspec import CostModel, Rounds
from simspec.cost.rounds import next_backlog


@dataclass(frozen=True)
class PhaseCosts:
    """Seconds of a round by phase; K is the longest draft that it prices.

    | field | shape, dtype | seconds of |
    | --- | --- | --- |
    | drafting | float64 `[K + 1]` | drafting j tokens without a backlog |
    | verification | float64 `[K + 1]` | the target's pass over j drafted tokens and the input |
    | policy | float64 `[K + 1]` | calling the policy in a round of j drafted tokens |
    | other | float64 `[K + 1]` | acceptance and bookkeeping after j tokens were submitted |
    | catch_up | float64 `[B + 1]` | what drafting takes longer behind b rows; b > B costs as B |
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
