"""The audit of an emitted run: every token is checked against the target's distribution."""

from collections.abc import Sequence

import numpy as np
import torch

from real.audit.bias import (
    AcceptanceBias,
    DrafterBias,
    acceptance_bias,
    chain_depth,
    drafter_bias,
    drafter_distributions,
    teacher_forced_logits,
)
from real.audit.result import (
    AuditResult,
    Divergence,
    ImpossibleToken,
    RecordingComparison,
    compare_with_recording,
)
from real.audit.rounding import ScoreGaps, Tolerance, score_gaps, tolerance_of
from real.audit.runs import EmittedRun, RunError
from real.audit.sampling_tests import (
    SamplingStatistics,
    SamplingTests,
    sampling_statistics,
    sampling_tests,
)
from real.draft import Drafter
from real.model.target import Target
from real.progress import Progress, quiet
from simspec import Trace

Place = tuple[int, int, int, int]
"""Index of a sequence in the run, address of its draws, position among its new tokens, token."""


def audit(
    target: Target,
    run: EmittedRun,
    recording: Trace | None = None,
    drafter: Drafter | None = None,
    risk: float = 1e-4,
    progress: Progress = quiet,
) -> AuditResult:
    """Teacher-forces each sequence of `run` through `target` and checks every token.

    | rule | check |
    | --- | --- |
    | greedy, coupled | a token is the target's pick, or its gap is within the tolerance |
    | greedy, coupled | excused gaps exceed the tolerance's share at most with probability `risk` |
    | coupled, rejection | no token has probability 0; `sampling_tests` at `risk` |
    | rejection, with `drafter` | the tokens are not biased towards the drafter |
    | and with rounds of chains | drafted tokens are accepted with probability min(1, p / q) |
    | any, with `recording` | sequences and rounds equal those of the same prompts |

    ValueError for a risk outside (0, 1), tokens outside the vocabulary, or an unfit recording.
    """
    decoder, rule = target.decoder, run.header.sampling_rule
    if not 0 < risk < 1:
        raise ValueError(f"risk is {risk}; expected a probability in (0, 1)")
    if recording is not None and rule.name == "rejection":
        raise RunError(
            "a run under the rejection rule cannot equal a recording; audit it without one"
        )
    run.check_vocabulary(decoder.config.vocab)
    tolerance = tolerance_of(run.header.dtype, str(decoder.dtype).removeprefix("torch."))
    dtype, slack = getattr(torch, tolerance.dtype), tolerance.nats
    gaps, statistics, biases, acceptances = [], [], [], []
    depth = 0
    if drafter is not None and rule.name == "rejection" and drafter.history_free:
        depth = chain_depth(run.sequences)
    for i, sequence in enumerate(run.sequences):
        q = None
        if drafter is not None and rule.name == "rejection":
            q = drafter_distributions(target, drafter, rule, sequence)
        for start, logits in teacher_forced_logits(decoder, sequence.prompt, sequence.token):
            token = sequence.token[start : start + len(logits)]
            address = sequence.sequence, start
            if rule.name != "rejection":
                gaps.append(score_gaps(rule, logits, token, *address, dtype, slack))
            if rule.name != "greedy":
                statistics.append(sampling_statistics(rule, logits, token, *address, slack))
            if q is not None:
                biases.append(
                    drafter_bias(rule.probs(logits), q[start : start + len(logits)], token)
                )
        if drafter is not None and depth:
            acceptances.append(acceptance_bias(target, drafter, rule, sequence, depth))
        progress("auditing", i + 1, len(run.sequences))
    places = [
        (i, sequence.sequence, position, token)
        for i, sequence in enumerate(run.sequences)
        for position, token in enumerate(sequence.token)
    ]
    alarms: list[str] = []
    divergences, near_ties, ties = _divergences(gaps, places, tolerance) if gaps else ((), 0, 0)
    of = len(places), tolerance.share, risk
    alarms += excess_alarms(divergences, *of, "tokens are not the target's pick")
    impossible: tuple[ImpossibleToken, ...] = ()
    sampling: SamplingTests | None = None
    if statistics:
        impossible, sampling = _sampling(statistics, biases, acceptances, places, risk)
    alarms += excess_alarms(impossible, *of, "tokens have probability 0")
    if sampling is not None:
        alarms += _sampling_alarms(sampling)
    comparison = None
    if recording is not None:
        comparison, alarm = _compared(run, recording, risk)
        alarms += alarm
    return AuditResult(
        rule=rule.name,
        sequences=len(run.sequences),
        tokens=len(places),
        tolerance=tolerance,
        near_ties=near_ties,
        ties=ties,
        divergences=divergences,
        impossible=impossible,
        sampling=sampling,
        recording=comparison,
        alarms=tuple(alarms),
    )


def _divergences(
    parts: list[ScoreGaps], places: list[Place], tolerance: Tolerance
) -> tuple[tuple[Divergence, ...], int, int]:
    """(divergences, near ties, exact ties) of all tokens."""
    gaps = _concatenated(ScoreGaps, parts)
    divergences = tuple(
        Divergence(
            *places[n],
            best=int(gaps.best[n]),
            gap=float(gaps.gap[n]),
            ulps=float(gaps.ulps[n]),
            margin=float(gaps.margin[n]),
            excused=bool(gaps.least_gap[n] <= tolerance.nats or gaps.ulps[n] <= tolerance.ulps),
        )
        for n in np.flatnonzero(gaps.best != [token for *_, token in places])
    )
    return divergences, int((gaps.margin <= tolerance.nats).sum()), int((gaps.margin == 0).sum())


def _sampling(
    parts: list[SamplingStatistics],
    biases: list[DrafterBias],
    acceptances: list[AcceptanceBias],
    places: list[Place],
    risk: float,
) -> tuple[tuple[ImpossibleToken, ...], SamplingTests | None]:
    """(tokens of probability 0, tests of the others); no tests where none is left."""
    statistics = _concatenated(SamplingStatistics, parts)
    possible = np.isfinite(statistics.surprisal)
    impossible = tuple(
        ImpossibleToken(*places[n], bool(statistics.at_cutoff[n]))
        for n in np.flatnonzero(~possible)
    )
    if not possible.any():
        return impossible, None
    bias = None
    if len(biases) == len(parts):
        bias = _selected(_concatenated(DrafterBias, biases), possible)
    acceptance = _concatenated(AcceptanceBias, acceptances) if acceptances else None
    return impossible, sampling_tests(_selected(statistics, possible), bias, risk, acceptance)


def _sampling_alarms(sampling: SamplingTests) -> list[str]:
    alarms, drawn = [], [name for name in sampling.alarms if name != "acceptance"]
    if drawn:
        alarms.append(f"not drawn from the target's distributions: {', '.join(drawn)}")
    if len(drawn) < len(sampling.alarms):
        alarms.append("drafted tokens are not accepted with probability min(1, p / q)")
    return alarms


def _compared(
    run: EmittedRun, recording: Trace, risk: float
) -> tuple[RecordingComparison, list[str]]:
    tolerance = tolerance_of(run.header.dtype, recording.meta.dtype)
    comparison = compare_with_recording(run, recording, tolerance.nats)
    mismatches = comparison.failures + comparison.target_flips + comparison.draft_flips
    of = comparison.compared, tolerance.share, risk
    return comparison, excess_alarms(mismatches, *of, "differences from the recording")


def excess_alarms(
    differences: Sequence, of: int, share: float, risk: float, what: str
) -> list[str]:
    """At most one alarm: for unexcused differences, or for more excused ones than `share` explains.

    The second is a binomial test of `len(differences)` in `of` at level `risk`.
    """
    unexcused = sum(not d.excused for d in differences)
    if unexcused:
        return [f"{unexcused} of {of} {what}"]
    from scipy import stats  # most commands start sooner without

    if differences and stats.binom.sf(len(differences) - 1, of, share) < risk:
        return [
            f"{len(differences)} of {of} {what}, each within rounding, "
            f"yet more than a share of {share:g} allows"
        ]
    return []


def _concatenated(kind, parts):
    return kind(
        *(
            np.concatenate([getattr(part, name) for part in parts])
            for name in kind.__dataclass_fields__
        )
    )


def _selected(columns, rows: np.ndarray):
    return type(columns)(*(getattr(columns, name)[rows] for name in columns.__dataclass_fields__))
