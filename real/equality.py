"""The proof: a run's rounds and text against the replay and the recording, every difference with its evidence."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from real.decode.result import DecodeResult
from simspec import Policy, Rounds, Trace
from simspec.quantization import decode_margin
from simspec.tree_policy import TreePolicy

THIN = 1e-4
"""A pick or a feature nearer than this to its flip may flip between two orders of float32 arithmetic."""
ALLOWED = 1e-3
"""Largest share of rounds that may end in such a flip."""


@dataclass(frozen=True)
class Flip:
    """The first difference of one sequence: where, how near the recorded decision was, and whether the text differs."""

    sequence: int
    round: int
    row: int
    margin: float
    text: bool


@dataclass(frozen=True)
class Comparison:
    """What comparing showed.

    | field | meaning |
    | --- | --- |
    | rounds | rounds compared: all up to and including each sequence's first difference |
    | exceptions | differences whose recorded target, draft or feature margin, or gap in a tree of the run itself, is under THIN |
    | failures | differences without that excuse |
    """

    rounds: int
    exceptions: tuple[Flip, ...]
    failures: tuple[Flip, ...]

    @property
    def equal(self) -> bool:
        """No failure, and exceptions in at most ALLOWED of the rounds."""
        return not self.failures and len(self.exceptions) <= ALLOWED * self.rounds

    @property
    def exact(self) -> bool:
        """No difference at all."""
        return not self.failures and not self.exceptions

    @property
    def lossless(self) -> bool:
        """No difference in the text but where the target itself was within THIN of another token."""
        return not any(f.text for f in self.failures)

    @property
    def text_flips(self) -> tuple[Flip, ...]:
        """The differences that are in the text."""
        return tuple(f for f in (*self.exceptions, *self.failures) if f.text)

    def __add__(self, other: "Comparison") -> "Comparison":
        return Comparison(
            self.rounds + other.rounds,
            self.exceptions + other.exceptions,
            self.failures + other.failures,
        )


NOTHING = Comparison(0, (), ())


def rounds_of(trace: Trace, results: Sequence[DecodeResult]) -> Rounds:
    """The rounds of runs of a trace's sequences, in its order, with rows counted as the trace counts them."""
    columns = [np.stack((r.position, r.computed, r.drafted, r.accepted), 1) for r in results]
    return Rounds.join(columns, start=trace.offset)


def compare(
    trace: Trace, policy: Policy | TreePolicy, replayed: Rounds, results: Sequence[DecodeResult]
) -> Comparison:
    """Compares runs of all sequences of `trace` with a replay on it, each sequence up to its first difference.

    ValueError for a recording of the rejection rule, whose runs have texts of their own.
    """
    if trace.meta.rule == "rejection":
        raise ValueError(
            "rounds under the rejection rule are equal in law, not one by one; compare on a greedy or coupled recording"
        )
    ran = rounds_of(trace, results)
    total, excused, failed = 0, [], []
    for s, result in enumerate(results):
        a, b = (_table(r, s) for r in (replayed, ran))
        text = trace.token[trace.offset[s] : trace.offset[s + 1]]
        first = _first_difference(a, b)
        where = _first_difference(text[:, None], result.token[:, None])
        if where is not None:  # the round whose pass made the token that differs
            inside = int(np.searchsorted(a[:, 0], trace.offset[s] + where, side="right")) - 1
            first = inside if first is None else min(first, inside)
        if first is None:
            total += len(a)
            continue
        total += first + 1
        shown = a[min(first, len(a) - 1)]
        reach = max(shown[1], b[first, 1] if first < len(b) else 0)
        row = int(shown[0])
        near = _evidence(trace, policy, row, int(trace.offset[s + 1]), int(reach))
        near = min(near, float(result.gap[first]) if first < len(result.gap) else near)
        flip = Flip(s, first, row, near, where is not None)
        (excused if flip.margin < THIN else failed).append(flip)
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


def _evidence(trace: Trace, policy: Policy | TreePolicy, row: int, end: int, reach: int) -> float:
    """Smallest recorded margin of a decision that the round at `row` took, up to `reach` draft tokens; inf if none is.

    A draft margin is of the drafter's own chain, which tells nothing of a tree's ranks.
    """
    codes = [trace.margin[row : min(row + reach + 1, end)]]
    if policy.longest(trace.K):
        codes.append(trace.draft_margin[row, :reach])
    if policy.reads:
        codes.append(trace.feature_margin[row, :reach])
    codes = np.concatenate(codes)
    # a code is rounded up: the one that stands for exactly THIN may be of a smaller margin, and is not excused
    return float(decode_margin(codes.min())) if len(codes) else float("inf")
