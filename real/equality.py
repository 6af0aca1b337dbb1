"""Whether a run equals its replay: rounds and tokens compared, each difference with its
evidence."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from real.decode.loop import DecodeResult
from real.decode.plans import BeamSearch
from simspec import Policy, Rounds, Trace
from simspec.trace.quantization import decode_margin
from simspec.tree.tree import TreePolicy

NEAR_TIE = 1e-4
"""A decision with a smaller margin may differ between two orders of float32 arithmetic."""
MAX_EXCEPTIONS = 1e-3
"""Largest share of rounds that may end in such a difference."""


@dataclass(frozen=True)
class Flip:
    """The first difference of one sequence.

    | field | meaning |
    | --- | --- |
    | sequence, round, row | where it is |
    | margin | of the decision nearest to a tie |
    | text | whether committed tokens differ |
    """

    sequence: int
    round: int
    row: int
    margin: float
    text: bool


@dataclass(frozen=True)
class Comparison:
    """The outcome of a comparison.

    | field | meaning |
    | --- | --- |
    | rounds | rounds compared: all up to and including each sequence's first difference |
    | exceptions | differences with a recorded margin, or a gap in a tree of the run, under \
NEAR_TIE |
    | failures | all other differences |
    """

    rounds: int
    exceptions: tuple[Flip, ...]
    failures: tuple[Flip, ...]

    @property
    def equal(self) -> bool:
        """No failure, and exceptions in at most a share MAX_EXCEPTIONS of the rounds."""
        return not self.failures and len(self.exceptions) <= MAX_EXCEPTIONS * self.rounds

    @property
    def exact(self) -> bool:
        """No difference at all."""
        return not self.failures and not self.exceptions

    @property
    def lossless(self) -> bool:
        """No failure in the committed tokens."""
        return not any(f.text for f in self.failures)

    @property
    def text_flips(self) -> tuple[Flip, ...]:
        """The differences in committed tokens."""
        return tuple(f for f in (*self.exceptions, *self.failures) if f.text)

    def __add__(self, other: "Comparison") -> "Comparison":
        return Comparison(
            self.rounds + other.rounds,
            self.exceptions + other.exceptions,
            self.failures + other.failures,
        )


NOTHING = Comparison(0, (), ())


def rounds_of(trace: Trace, results: Sequence[DecodeResult]) -> Rounds:
    """The rounds of runs of all of a trace's sequences, with the trace's row numbers."""
    columns = [np.stack((r.position, r.computed, r.drafted, r.accepted), 1) for r in results]
    return Rounds.join(columns, start=trace.offset)


def compare(
    trace: Trace,
    policy: Policy | TreePolicy | BeamSearch,
    replayed: Rounds,
    results: Sequence[DecodeResult],
) -> Comparison:
    """Compares runs of all sequences with their replay, each up to its first difference.

    ValueError for a recording of the rejection rule, whose runs commit other tokens.
    """
    if trace.meta.rule == "rejection":
        raise ValueError(
            "rounds under the rejection rule are equal in distribution, not one by one; "
            "compare on a greedy or coupled recording"
        )
    ran = rounds_of(trace, results)
    total = 0
    excused: list[Flip] = []
    failed: list[Flip] = []
    for s, result in enumerate(results):
        wanted, found = (_table(r, s) for r in (replayed, ran))
        tokens = trace.token[trace.offset[s] : trace.offset[s + 1]]
        first = _first_difference(wanted, found)
        token = _first_difference(tokens[:, None], result.token[:, None])
        if token is not None:  # the round whose pass committed the token that differs
            position = trace.offset[s] + token
            inside = int(np.searchsorted(wanted[:, 0], position, side="right")) - 1
            first = inside if first is None else min(first, inside)
        if first is None:
            total += len(wanted)
            continue
        total += first + 1
        expected = wanted[min(first, len(wanted) - 1)]
        depth = max(expected[1], found[first, 1] if first < len(found) else 0)
        row = int(expected[0])
        margin = _evidence(trace, policy, row, int(trace.offset[s + 1]), int(depth))
        margin = min(margin, float(result.gap[first]) if first < len(result.gap) else margin)
        flip = Flip(sequence=s, round=first, row=row, margin=margin, text=token is not None)
        (excused if flip.margin < NEAR_TIE else failed).append(flip)
    return Comparison(total, tuple(excused), tuple(failed))


def _table(rounds: Rounds, s: int) -> np.ndarray:
    part = slice(rounds.offset[s], rounds.offset[s + 1])
    return np.stack(
        (rounds.row[part], rounds.computed[part], rounds.drafted[part], rounds.accepted[part]), 1
    )


def _first_difference(a: np.ndarray, b: np.ndarray) -> int | None:
    shared = min(len(a), len(b))
    differ = (a[:shared] != b[:shared]).any(1)
    if differ.any():
        return int(differ.argmax())
    return None if len(a) == len(b) else shared


def _evidence(
    trace: Trace, policy: Policy | TreePolicy | BeamSearch, row: int, end: int, depth: int
) -> float:
    """Smallest recorded margin of the decisions at `row`, up to `depth` draft tokens; inf without
    any.

    A draft margin belongs to the drafter's own chain, and is no evidence for a tree's ranks.
    """
    assert trace.margin is not None  # recorded under every exact rule
    codes = [trace.margin[row : min(row + depth + 1, end)]]
    if policy.longest(trace.K):
        assert trace.draft_margin is not None
        codes.append(trace.draft_margin[row, :depth])
    if policy.reads:
        assert trace.feature_margin is not None
        codes.append(trace.feature_margin[row, :depth])
    margins = np.concatenate(codes)
    # a code is rounded up: the one of exactly NEAR_TIE may be of a smaller margin, and is not
    # excused
    return float(decode_margin(margins.min())) if len(margins) else float("inf")
