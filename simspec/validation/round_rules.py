"""The rules that every round of a replay obeys."""

import numpy as np

from simspec.trace.rounds import Rounds
from simspec.trace.trace import Trace


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
