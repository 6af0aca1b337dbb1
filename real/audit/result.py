"""The result of an audit."""

import math
from dataclasses import asdict, dataclass

import numpy as np

from real.audit.rounding import Tolerance
from real.audit.runs import EmittedRun, EmittedSequence, RunError, recorded_run
from real.audit.sampling_tests import SamplingTests
from simspec import Trace
from simspec.trace.quantization import decode_margin


@dataclass(frozen=True)
class RecordingMismatch:
    """A token or a round that differs from the recording.

    | field | meaning |
    | --- | --- |
    | index, sequence | of its sequence in the run; the address of that sequence's draws |
    | position, round | among the new tokens; the round's number, None for a token |
    | margin | of the recorded decision, nats |
    | excused | whether rounding explains it: a margin below the tolerance |
    """

    index: int
    sequence: int
    position: int
    round: int | None
    margin: float
    excused: bool


@dataclass(frozen=True)
class RecordingComparison:
    """The differences between a run and a recording.

    | field | meaning |
    | --- | --- |
    | sequences, missing | sequences that the recording contains, and that it does not |
    | equal | sequences without a difference |
    | rounds | compared rounds: chains of the recorded drafter before the first differing token |
    | target_flips | excused first differing tokens |
    | draft_flips | excused rounds whose accepted length differs |
    | failures | differences of either kind that are not excused |
    """

    sequences: int
    missing: int
    equal: int
    rounds: int
    target_flips: tuple[RecordingMismatch, ...]
    draft_flips: tuple[RecordingMismatch, ...]
    failures: tuple[RecordingMismatch, ...]

    @property
    def compared(self) -> int:
        """Decisions that can differ: sequences and rounds."""
        return self.sequences + self.rounds


def compare_with_recording(run: EmittedRun, trace: Trace, nats: float) -> RecordingComparison:
    """Compares sequences with those of the same prompt (coupled rule: and the same draws).

    | compared | expected | margin |
    | --- | --- | --- |
    | tokens, up to the first difference | token[t] | margin[t] of the target |
    | rounds before it | accepted min(run[t], k), computed <= depth[t] | draft_margin[t] |

    t is a round's first row, k its draft length. A difference is excused where its margin is below
    `nats`. RunError where rule or target differ, no prompt is shared, or margins are missing.
    """
    recorded = recorded_run(trace)
    _check_comparable(run, recorded)
    if trace.margin is None:
        raise RunError(
            "the recording holds no margins, which differences are compared with; "
            "record its prompts again"
        )
    rule = run.header.rule
    recorded_index = {_key(s, rule): i for i, s in enumerate(recorded.sequences)}
    pairs = [
        (i, recorded_index[key])
        for i, sequence in enumerate(run.sequences)
        if (key := _key(sequence, rule)) in recorded_index
    ]
    if not pairs:
        raise RunError(
            "the recording holds none of the run's prompts (coupled rule: with their draws); "
            "name the recording that the run was made from"
        )
    same_drafter = run.header.drafter == recorded.header.drafter
    target_flips: list[RecordingMismatch] = []
    draft_flips: list[RecordingMismatch] = []
    failures: list[RecordingMismatch] = []
    equal = rounds = 0
    for i, s in pairs:
        sequence = run.sequences[i]
        difference = first_difference(sequence.token, recorded.sequences[s].token)
        mismatches = []
        if difference is not None:
            # codes are rounded up: a code that decodes to `nats` may be a smaller margin
            margin = float(decode_margin(trace.margin[int(trace.offset[s]) + difference]))
            mismatch = RecordingMismatch(
                i, sequence.sequence, difference, None, margin, margin < nats
            )
            mismatches.append(mismatch)
            (target_flips if mismatch.excused else failures).append(mismatch)
        if same_drafter and trace.draft_margin is not None:
            count, differing = _compare_rounds(i, sequence, trace, s, difference, nats)
            rounds += count
            mismatches += differing
            draft_flips += [m for m in differing if m.excused]
            failures += [m for m in differing if not m.excused]
        equal += not mismatches
    return RecordingComparison(
        sequences=len(pairs),
        missing=len(run.sequences) - len(pairs),
        equal=equal,
        rounds=rounds,
        target_flips=tuple(target_flips),
        draft_flips=tuple(draft_flips),
        failures=tuple(failures),
    )


def first_difference(a: tuple[int, ...], b: tuple[int, ...]) -> int | None:
    """The first position where two sequences differ; None if one is a prefix of the other."""
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), None)


def _check_comparable(run: EmittedRun, recorded: EmittedRun) -> None:
    ours, theirs = run.header, recorded.header
    if ours.sampling_rule != theirs.sampling_rule:
        raise RunError(
            f"the recording was made under {theirs.sampling_rule}, "
            f"the run under {ours.sampling_rule}; expected the same rule"
        )
    if ours.target and ours.target.split("/")[-1] != theirs.target.split("/")[-1]:
        raise RunError(
            f"the recording was made with target {theirs.target}, the run with {ours.target}; "
            "expected the same"
        )


def _key(sequence: EmittedSequence, rule: str) -> tuple:
    return sequence.prompt, sequence.sequence if rule == "coupled" else 0


def _compare_rounds(
    i: int, sequence: EmittedSequence, trace: Trace, s: int, difference: int | None, nats: float
) -> tuple[int, list[RecordingMismatch]]:
    """(rounds compared, mismatches) of sequence s of the trace."""
    first, length = int(trace.offset[s]), int(np.diff(trace.offset)[s])
    stop = length if difference is None else difference
    ended = int(trace.token[first + length - 1]) in trace.meta.end_tokens
    count, mismatches = 0, []
    assert trace.draft_margin is not None
    for n, (position, computed, drafted, accepted) in enumerate(sequence.rounds):
        t = first + position
        committed = position + accepted + (accepted < drafted or difference is not None)
        if committed > stop or position >= length:
            break  # after the difference, or past the end of the recording
        if drafted > computed or computed > trace.K or (position + drafted >= length and not ended):
            continue  # a tree, or a chain deeper than the recording
        count += 1
        if accepted != min(int(trace.run[t]), drafted) or computed > trace.depth[t]:
            margins = trace.draft_margin[t, : max(computed, 1)]
            margin = float(decode_margin(margins.min()))
            mismatches.append(
                RecordingMismatch(i, sequence.sequence, position, n, margin, margin < nats)
            )
    return count, mismatches


@dataclass(frozen=True)
class Divergence:
    """An emitted token that is not the target's pick.

    | field | meaning |
    | --- | --- |
    | index, sequence | of its sequence in the run; the address of that sequence's draws |
    | position, token, best | among the new tokens; as emitted; the target's pick |
    | gap, ulps, margin | as in `real.audit.rounding.ScoreGaps` |
    | excused | whether rounding explains the gap |
    """

    index: int
    sequence: int
    position: int
    token: int
    best: int
    gap: float
    ulps: float
    margin: float
    excused: bool


@dataclass(frozen=True)
class ImpossibleToken:
    """An emitted token of probability 0, excused if it lies at the edge of top-k or top-p."""

    index: int
    sequence: int
    position: int
    token: int
    excused: bool


@dataclass(frozen=True)
class AuditResult:
    """Results of an audit.

    | field | meaning |
    | --- | --- |
    | rule | greedy, coupled or rejection |
    | sequences, tokens | how many were audited |
    | tolerance | of the coarser of two dtypes, the run's and the audit's |
    | near_ties, ties | positions whose best two scores differ by the tolerance at most; by 0 |
    | divergences | tokens that are not the target's pick; greedy and coupled rules |
    | impossible | tokens of probability 0; coupled and rejection rules |
    | sampling | tests whether the other tokens are draws from p; None under the greedy rule |
    | recording | comparison with a recording; None without one |
    | alarms | one line for each failed check; empty for a clean run |
    """

    rule: str
    sequences: int
    tokens: int
    tolerance: Tolerance
    near_ties: int
    ties: int
    divergences: tuple[Divergence, ...]
    impossible: tuple[ImpossibleToken, ...]
    sampling: SamplingTests | None
    recording: RecordingComparison | None
    alarms: tuple[str, ...]

    @property
    def clean(self) -> bool:
        """Whether rounding and chance explain every difference."""
        return not self.alarms

    @property
    def first(self) -> tuple[Divergence, ...]:
        """The first divergence of each sequence; it may cause all later ones."""
        first: dict[int, Divergence] = {}
        for divergence in self.divergences:
            first.setdefault(divergence.index, divergence)
        return tuple(first.values())

    @property
    def failures(self) -> tuple[Divergence | ImpossibleToken, ...]:
        """Differences that rounding does not explain."""
        differences: list[Divergence | ImpossibleToken] = [*self.divergences, *self.impossible]
        return tuple(d for d in differences if not d.excused)

    def summary(self) -> dict:
        """The result as JSON values; infinite numbers become null."""
        return _finite(
            {
                "clean": self.clean,
                "alarms": self.alarms,
                "rule": self.rule,
                "sequences": self.sequences,
                "tokens": self.tokens,
                "tolerance": asdict(self.tolerance),
                "near_ties": self.near_ties,
                "ties": self.ties,
                "divergences": len(self.divergences),
                "largest_gap_nats": max((d.gap for d in self.divergences), default=0.0),
                "largest_gap_ulps": max((d.ulps for d in self.divergences), default=0.0),
                "first_divergences": [asdict(d) for d in self.first],
                "failures": [asdict(d) for d in self.failures],
                "impossible": len(self.impossible),
                "sampling": None if self.sampling is None else asdict(self.sampling),
                "recording": None if self.recording is None else asdict(self.recording),
            }
        )


def _finite(value):
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
