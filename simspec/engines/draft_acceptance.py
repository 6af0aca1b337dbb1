"""DraftAcceptance: accepted tokens of the rounds of one draft length, counted by replay."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simspec.evaluate.evaluation import DRAWS
from simspec.policies.fixed import fixed
from simspec.replay.replay import replay
from simspec.trace.trace import Trace


@dataclass(frozen=True, eq=False)
class DraftAcceptance:
    """Rounds of draft length K by their accepted tokens.

    | field  | dtype, shape     | meaning                                                      |
    | ------ | ---------------- | ------------------------------------------------------------ |
    | counts | int64[S, K + 1]  | rounds of each sequence with a draft, by accepted tokens     |
    | tasks  | (str,) [S]       | task of each sequence                                        |

    Rounds without a draft are left out, as engines leave them out. A length is accepted + 1, also
    after an accepted end token, as engines count it.
    """

    counts: NDArray[np.int64]
    tasks: tuple[str, ...]

    @property
    def K(self) -> int:
        return self.counts.shape[1] - 1

    @property
    def histogram(self) -> NDArray[np.int64]:
        """int64[K + 1]: rounds by accepted tokens, over all sequences."""
        total: NDArray[np.int64] = self.counts.sum(axis=0)
        return total

    @property
    def marginals(self) -> list[float]:
        """P(the first i + 1 drafted tokens are accepted), [K]."""
        at_least = self.histogram[::-1].cumsum()[::-1]
        return [float(n / at_least[0]) for n in at_least[1:]]

    @property
    def conditionals(self) -> list[float]:
        """P(token i + 1 is accepted, given all before it), [K]; 0 where none got so far."""
        rates = self.marginals
        return [now / before if before else 0.0 for before, now in zip([1.0, *rates], rates)]

    @property
    def mean_length(self) -> float:
        """1 + accepted tokens per round: mean over rounds."""
        return _mean_length(self.histogram)

    @property
    def mean_length_by_sequence(self) -> float:
        """The mean over sequences of each one's mean length."""
        return float(np.mean([_mean_length(row) for row in self.counts if row.any()]))

    def of_task(self, task: str) -> "DraftAcceptance":
        """The same of the sequences of one task."""
        chosen = [i for i, name in enumerate(self.tasks) if name == task]
        return DraftAcceptance(self.counts[chosen], tuple(self.tasks[i] for i in chosen))


def acceptance_at(traces: Iterable[Trace], k: int, seed: int = 0) -> DraftAcceptance:
    """The acceptance of fixed(k), from one replay of every recording.

    A recording of the rejection rule is replayed with 16 draws. ValueError where no round has a
    draft.
    """
    if k < 1:
        raise ValueError(f"K is {k}, expected at least 1: plain decoding accepts no drafts")
    counts, tasks = [], list[str]()
    for trace in traces:
        total = np.zeros((trace.sequences, k + 1), np.int64)
        for draw in range(1 if trace.ratio is None else DRAWS):
            rounds = replay(trace, fixed(k), seed=seed + draw)
            sequence = np.repeat(np.arange(trace.sequences), np.diff(rounds.offset))
            drafted = rounds.drafted > 0
            np.add.at(total, (sequence[drafted], rounds.accepted[drafted]), 1)
        counts.append(total)
        tasks += trace.task
    every = np.concatenate(counts)
    if not every.any():
        raise ValueError(f"no round of the recordings drafts a token at K = {k}: record others")
    return DraftAcceptance(every, tuple(tasks))


def _mean_length(histogram: NDArray[np.int64]) -> float:
    return float(1 + np.arange(len(histogram)) @ histogram / histogram.sum())
