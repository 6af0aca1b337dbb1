"""A run against a recording of the same prompts: where they part, and whether the target's pick flipped or the drafter's."""

from dataclasses import asdict, dataclass

import numpy as np

from real.audit.run_file import EmittedRun, RunError, EmittedSequence, run_of_recording
from simspec import Trace
from simspec.quantization import decode_margin


@dataclass(frozen=True)
class RecordingMismatch:
    """A difference: which text, at which new token (and round), how near the recorded decision was, and whether that excuses it."""

    text: int
    sequence: int
    position: int
    round: int | None
    margin: float
    excused: bool


@dataclass(frozen=True)
class RecordingComparison:
    """What comparing with a recording showed.

    | field | meaning |
    | --- | --- |
    | texts, missing | texts that the recording has too, and that it has not |
    | equal | those of them without a difference |
    | rounds | rounds that could be compared: chains of the recording's own drafter, up to the text's first difference |
    | target_flips | texts that part where the recorded margin of the target is thin; the first difference of each |
    | draft_flips | rounds of equal text that accepted otherwise, where a recorded margin of the drafter is thin |
    | failures | differences of either kind without that excuse |
    """

    texts: int
    missing: int
    equal: int
    rounds: int
    target_flips: tuple[RecordingMismatch, ...]
    draft_flips: tuple[RecordingMismatch, ...]
    failures: tuple[RecordingMismatch, ...]

    @property
    def compared(self) -> int:
        """Decisions that could differ: texts and rounds."""
        return self.texts + self.rounds

    def summary(self) -> dict:
        """For machines."""
        return asdict(self)


def compare_with_recording(run: EmittedRun, trace: Trace, thin: float) -> RecordingComparison:
    """Compares texts with those of the same prompt in `trace` (under the coupled rule: and of the same draws).

    The text's first difference is judged by the target's recorded margin there. Before it each round is held to the recording on its
    own, whatever the policy: a chain of k tokens from row t accepts min(run[t], k), and is computed no further than depth[t]; a difference
    there is the drafter's, judged by its margins in that row. A margin is excused under `thin` nats. RunError where rules, targets or
    all prompts differ, or the recording holds no margins.
    """
    theirs = run_of_recording(trace)
    a, b = run.header, theirs.header
    if a.how != b.how:
        raise RunError(
            f"the recording was made under {b.how}, the run under {a.how}; expected the same rule"
        )
    if a.target and a.target.split("/")[-1] != b.target.split("/")[-1]:
        raise RunError(
            f"the recording was made with target {b.target}, the run with {a.target}; expected the same"
        )
    if trace.margin is None:
        raise RunError(
            "the recording holds no margins, so that no difference could be judged; record its prompts anew"
        )
    known = {_key(text, a.rule): s for s, text in enumerate(theirs.texts)}
    pairs = [
        (i, known[key]) for i, text in enumerate(run.texts) if (key := _key(text, a.rule)) in known
    ]
    if not pairs:
        raise RunError(
            "the recording holds none of the run's prompts (and, if coupled, draws); name the one that it was run from"
        )
    chains = a.drafter == b.drafter and trace.draft_margin is not None
    flips, drafts, failures, equal, rounds = [], [], [], 0, 0
    for i, s in pairs:
        text, row = run.texts[i], int(trace.offset[s])
        parts = first_difference(text.token, theirs.texts[s].token)
        found = []
        if parts is not None:
            # a code is rounded up: the one that stands for exactly `thin` may be of a smaller margin, and is not excused
            margin = float(decode_margin(trace.margin[row + parts]))
            found.append(RecordingMismatch(i, text.sequence, parts, None, margin, margin < thin))
            (flips if margin < thin else failures).append(found[-1])
        if chains:
            count, differ = _rounds(i, text, trace, s, parts, thin)
            rounds += count
            found += differ
            drafts += [f for f in differ if f.excused]
            failures += [f for f in differ if not f.excused]
        equal += not found
    return RecordingComparison(
        len(pairs),
        len(run.texts) - len(pairs),
        equal,
        rounds,
        tuple(flips),
        tuple(drafts),
        tuple(failures),
    )


def first_difference(a: tuple[int, ...], b: tuple[int, ...]) -> int | None:
    """The first position at which two texts differ; None where one only goes on longer, as a larger budget lets it."""
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), None)


def _key(text: EmittedSequence, rule: str) -> tuple:
    return text.prompt, text.sequence if rule == "coupled" else 0


def _rounds(
    i: int, text: EmittedSequence, trace: Trace, s: int, parts: int | None, thin: float
) -> tuple[int, list[RecordingMismatch]]:
    row, length = int(trace.offset[s]), int(np.diff(trace.offset)[s])
    stop = length if parts is None else parts
    ended = int(trace.token[row + length - 1]) in trace.meta.end_tokens
    count, found = 0, []
    for n, (position, computed, drafted, accepted) in enumerate(text.rounds):
        t = row + position
        if (
            position + accepted + (accepted < drafted or parts is not None) > stop
            or position >= length
        ):
            break  # what this round committed lies behind the difference, or behind the recording
        if drafted > computed or computed > trace.K or (position + drafted >= length and not ended):
            continue  # a tree, or a chain longer than was recorded
        count += 1
        if accepted != min(int(trace.run[t]), drafted) or computed > trace.depth[t]:
            margins = trace.draft_margin[t, : max(computed, 1)]
            margin = float(decode_margin(margins.min()))
            found.append(RecordingMismatch(i, text.sequence, position, n, margin, margin < thin))
    return count, found
