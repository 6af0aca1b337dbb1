"""Rounds: what happened, in a simulator or an engine."""

from dataclasses import dataclass

import numpy as np

from simspec.trace import Trace


@dataclass(frozen=True, eq=False)
class Rounds:
    """What happened, from the simulator or from an engine: `==` between the two is the whole proof.

    | field    | dtype, shape | meaning                                                           |
    | -------- | ------------ | ----------------------------------------------------------------- |
    | offset   | int64[S + 1] | rounds offset[s] .. offset[s + 1] - 1 belong to sequence s        |
    | row      | int64[R]     | row of the trace at which the round starts                        |
    | computed | int64[R]     | draft tokens computed (paid for)                                  |
    | drafted  | int64[R]     | of these, submitted to the target: computed or computed - 1       |
    | accepted | int64[R]     | of these, emitted; committed tokens are one more, see `committed` |
    """

    offset: np.ndarray
    row: np.ndarray
    computed: np.ndarray
    drafted: np.ndarray
    accepted: np.ndarray

    def __len__(self):
        return len(self.row)

    def __eq__(self, other):
        return isinstance(other, Rounds) and all(
            np.array_equal(getattr(self, name), getattr(other, name))
            for name in self.__dataclass_fields__
        )

    @classmethod
    def join(cls, sequences, start=None) -> "Rounds":
        """From one int64[R_s, 4] per sequence with columns (row, computed, drafted, accepted).

        start[s] is added to the rows of sequence s: pass trace.offset when rows count from the
        sequence's start.
        """
        sequences = [np.asarray(rounds, dtype=np.int64).reshape(-1, 4) for rounds in sequences]
        offset = np.concatenate(([0], np.cumsum([len(rounds) for rounds in sequences]))).astype(
            np.int64
        )
        columns = np.concatenate(sequences) if sequences else np.zeros((0, 4), np.int64)
        row, computed, drafted, accepted = (np.ascontiguousarray(column) for column in columns.T)
        if start is not None:
            row = row + np.repeat(np.asarray(start)[: len(sequences)], np.diff(offset))
        return cls(offset, row, computed, drafted, accepted)

    def select(self, indices, trace: Trace | None = None) -> "Rounds":
        """The rounds of these sequences; given the trace they were made on, rows are counted as in
        trace.select(indices).
        """
        columns = np.stack((self.row, self.computed, self.drafted, self.accepted), axis=1)
        parts = [columns[self.offset[s] : self.offset[s + 1]] for s in indices]
        if trace is None:
            return Rounds.join(parts)
        length = np.diff(trace.offset)[np.asarray(indices)]
        return Rounds.join(
            parts, start=np.cumsum(length) - length - trace.offset[np.asarray(indices)]
        )


def committed(rounds: Rounds, trace: Trace) -> np.ndarray:
    """Tokens each round adds to the text, int64[R]: accepted + 1, or accepted if an accepted end
    token ends it.
    """
    ends = np.append(rounds.row, trace.rows)[1:]
    last = rounds.offset[1:] - 1
    ends[last] = trace.offset[1:]
    return ends - rounds.row
