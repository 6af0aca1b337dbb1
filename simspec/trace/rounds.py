"""Rounds: drafted and accepted tokens, of a simulator or an engine."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from simspec.trace.trace import Trace


@dataclass(frozen=True, eq=False)
class Rounds:
    """Rounds of a simulator or an engine; `==` between the two proves that they agree.

    | field    | dtype, shape | meaning                                                     |
    | -------- | ------------ | ----------------------------------------------------------- |
    | offset   | int64[S + 1] | rounds offset[s] .. offset[s + 1] - 1 belong to sequence s  |
    | row      | int64[R]     | row of the trace at which the round starts                  |
    | computed | int64[R]     | draft tokens computed                                       |
    | drafted  | int64[R]     | of these, submitted to the target: computed or computed - 1 |
    | accepted | int64[R]     | of these, accepted; `committed` tokens are usually one more |
    """

    offset: np.ndarray
    row: np.ndarray
    computed: np.ndarray
    drafted: np.ndarray
    accepted: np.ndarray

    def __len__(self) -> int:
        return len(self.row)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rounds) and all(
            np.array_equal(getattr(self, name), getattr(other, name))
            for name in self.__dataclass_fields__
        )

    @classmethod
    def join(cls, sequences: Iterable[Any], start: Any = None) -> "Rounds":
        """From one int64[R_s, 4] per sequence with columns (row, computed, drafted, accepted).

        start[s] is added to the rows of sequence s: pass trace.offset when rows count from the
        sequence's start.
        """
        blocks = [np.asarray(rounds, dtype=np.int64).reshape(-1, 4) for rounds in sequences]
        counts = [len(block) for block in blocks]
        offset = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        columns = np.concatenate(blocks) if blocks else np.zeros((0, 4), np.int64)
        row, computed, drafted, accepted = (np.ascontiguousarray(column) for column in columns.T)
        if start is not None:
            row = row + np.repeat(np.asarray(start)[: len(blocks)], np.diff(offset))
        return cls(offset, row, computed, drafted, accepted)

    def as_set(self) -> set[tuple[int, int, int, int]]:
        """(row, computed, drafted, accepted) of all rounds."""
        columns = self.row, self.computed, self.drafted, self.accepted
        return set(zip(*(column.tolist() for column in columns)))

    def select(self, indices: Any, trace: Trace | None = None) -> "Rounds":
        """The rounds of these sequences; with their trace, rows are those of
        trace.select(indices).
        """
        columns = np.stack((self.row, self.computed, self.drafted, self.accepted), axis=1)
        blocks = [columns[self.offset[s] : self.offset[s + 1]] for s in indices]
        if trace is None:
            return Rounds.join(blocks)
        length = np.diff(trace.offset)[np.asarray(indices)]
        start = np.cumsum(length) - length - trace.offset[np.asarray(indices)]
        return Rounds.join(blocks, start=start)


def committed(rounds: Rounds, trace: Trace) -> np.ndarray:
    """int64[R]: tokens that each round commits: accepted + 1, or accepted where an end token is
    accepted.
    """
    ends = np.append(rounds.row, trace.rows)[1:]
    last = rounds.offset[1:] - 1
    ends[last] = trace.offset[1:]
    tokens: np.ndarray = ends - rounds.row
    return tokens


def broken_rounds(trace: Trace, rounds: Rounds, K: int) -> int:
    """Rounds that break a rule.

    | rule |
    | --- |
    | accepted = min(drafted, run[row]) |
    | 0 <= drafted, computed <= min(K, budget left - 1, depth[row]) |
    | drafted is computed, or one less: a token that was dropped |
    | the next round begins after the accepted tokens and the bonus token |
    """
    first, last = rounds.offset[:-1], rounds.offset[1:] - 1
    sequence = np.repeat(np.arange(trace.sequences), np.diff(rounds.offset))
    row, end = rounds.row, trace.offset[1:][sequence]
    left = trace.budget[sequence] - (row - trace.offset[sequence])
    cap = np.minimum(np.minimum(K, left - 1), trace.depth[row])
    follows = np.append(row[1:], 0)
    follows[last] = trace.offset[1:]
    wrong = rounds.accepted != np.minimum(rounds.drafted, trace.run[row])
    wrong |= (rounds.computed > cap) | (rounds.drafted < 0)
    wrong |= (rounds.drafted > rounds.computed) | (rounds.drafted < rounds.computed - 1)
    wrong |= np.minimum(row + rounds.accepted + 1, end) != follows
    wrong[first] |= row[first] != trace.offset[:-1]
    return int(wrong.sum())
