"""Policies compared with one of them on the same prompts: difference, error, and verdict."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

from simspec.numerics.stats import (
    MIN_PROMPTS,
    Estimate,
    difference,
    holm,
    jackknife,
    stacked,
    swap_test,
)
from simspec.output.frames import frame
from simspec.policies import make
from simspec.policies.fixed import fixed
from simspec.replay.evaluation import Evaluation, evaluate, priced_recordings
from simspec.trace.trace import Trace

BEST_FIXED = "best_fixed"
"""The baseline that is the best fixed draft length in hindsight."""

UNSETTLED = "not settled"
"""The verdict at costs that give no intervals."""

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Question:
    """Settings of every comparison."""

    # of the intervals; 1 - level is the chance of any false 'faster' or 'slower'
    level: float = 0.95
    margin: float = 0.01  # speedups within this share of the baseline's are a tie
    power: float = 0.8  # chance to find a difference as large as `Comparison.detectable`
    # resamples, seed: of the bootstrap and of the swap test
    resamples: int = 9999
    seed: int = 0

    def __post_init__(self) -> None:
        for name, low in (("level", 0.5), ("power", 0.5), ("margin", 0.0)):
            value = getattr(self, name)
            if not low <= value < 1:
                raise ValueError(f"{name} is {value}, expected {low:g} or more and below 1")


DEFAULTS = Question()


@dataclass(frozen=True)
class Comparison:
    """One policy against the baseline, on one recording; T: modelled seconds of a prompt."""

    # recording, policy, against: what was compared
    recording: str
    policy: str
    against: str
    # speedup, baseline: Estimate of plain seconds / T, sums over prompts
    speedup: Estimate
    baseline: Estimate
    difference: Estimate  # Estimate of speedup - baseline, paired by prompt
    error: float  # standard error of the difference, see `difference_error`
    p: float  # of `paired_p`; after Holm's step-down over the family
    verdict: str  # tie, faster, slower or undecided, see `verdict`
    detectable: float  # least difference that this number of prompts shows with the power asked for
    prompts_needed: int | None  # to show the difference that was seen; None: it is 0


def comparisons(
    traces: Mapping[str, Trace | Path | str],
    policies: Sequence[Any],
    costs: Any,
    against: str = BEST_FIXED,
    replicates: int = 4,
    question: Question = DEFAULTS,
) -> list[Comparison]:
    """Each policy against the baseline on each recording: p of each alone, and no verdict until
    `corrected` knows the whole family.

    `against` names a policy, or is 'best_fixed': the fixed length of least modelled time on the
    same prompts, which favors the baseline. Policies that draw are averaged over replicates. costs
    is a CostModel, a ratio or {name: either}. ValueError for what cannot run, and for fewer than 8
    prompts.
    """
    rows = []
    for name, trace, cost in priced_recordings(traces, costs):
        contestants = [make(policy, trace, cost) for policy in policies]
        others = [make(against, trace, cost)] if against != BEST_FIXED else []
        others = others or [fixed(k) for k in range(trace.K + 1)]
        every = {policy.name: policy for policy in (*contestants, *others)}
        found = evaluate(trace, list(every.values()), cost, replicates, question.seed)
        baseline = found.fastest(policy.name for policy in others)
        names = dict.fromkeys(policy.name for policy in contestants)
        rows += [
            compare_seconds(name, found, policy, baseline, question)
            for policy in names
            if policy != baseline
        ]
    return rows


def compare_seconds(
    recording: str, found: Evaluation, policy: str, baseline: str, question: Question = DEFAULTS
) -> Comparison:
    """One comparison of the seconds of the same prompts, without regard to others.

    Without intervals, and without p, at costs that give none. ValueError for fewer than 8 prompts.
    """
    options = {"level": question.level, "resamples": question.resamples, "seed": question.seed}
    plain, ours, theirs = found.plain, found.seconds[policy], found.seconds[baseline]
    error, p, verdict = math.nan, math.nan, UNSETTLED
    if not found.unsettled:
        error, verdict = difference_error(plain, ours, theirs), ""
        p = paired_p(plain, ours, theirs, question.resamples, question.seed)
    speedup, other = (found.speedup(name, **options) for name in (policy, baseline))
    gain = found.gain(policy, baseline, **options)
    return Comparison(
        recording, policy, baseline, speedup, other, gain, error, p, verdict, math.nan, None
    )


def difference_error(plain: Array, ours: Array, theirs: Array) -> float:
    """Standard error of sum(plain) / sum(ours) - sum(plain) / sum(theirs), see `jackknife`."""
    return jackknife(stacked(plain, ours, plain, theirs), difference)[1]


def paired_p(plain: Array, ours: Array, theirs: Array, resamples: int, seed: int) -> float:
    """p of the swap test of seconds [P] or [P, 1 + R] within prompts, at the costs as measured.

    With replicates it is at least that of Student's t of the difference over its
    `difference_error`: swaps know nothing of the prices.
    """
    first, second = (part.reshape(len(plain), -1) for part in (ours, theirs))
    p = swap_test(first[:, :1], second[:, :1], lambda t: t[..., 0], resamples, seed)
    error = difference_error(plain, ours, theirs)
    if first.shape[1] == 1 or error == 0:
        return p
    total, a, b = plain.sum(), first[:, 0].sum(), second[:, 0].sum()
    return max(p, float(2 * stdtr(len(plain) - 1, -abs(total / a - total / b) / error)))


def corrected(found: Sequence[Comparison], question: Question) -> list[Comparison]:
    """The comparisons with Holm's p-values over all of them, verdicts, and what more would show.

    detectable = (t_{1 - alpha / 2m} + t_power) error, alpha = 1 - level, m comparisons, Student's t
    of P - 1 degrees; prompts_needed = P (detectable / |difference|)^2, at least 8.
    """
    judged = [c for c in found if c.verdict != UNSETTLED]
    if not judged:
        return list(found)
    alpha = 1 - question.level
    adjusted = dict(zip(map(id, judged), holm(np.array([c.p for c in judged]))))
    rows = []
    for c in found:
        if id(c) not in adjusted:
            rows.append(c)
            continue
        p = adjusted[id(c)]
        prompts = c.difference.prompts
        tails = stdtrit(prompts - 1, np.array([1 - alpha / 2 / len(judged), question.power]))
        detectable, seen = float(tails.sum() * c.error), abs(c.difference.value)
        needed = None
        if seen > 0 and detectable / seen < 1e6:
            needed = max(MIN_PROMPTS, math.ceil(prompts * (detectable / seen) ** 2))
        rows.append(
            replace(
                c,
                p=float(p),
                verdict=verdict(c, float(p), question),
                detectable=detectable,
                prompts_needed=needed,
            )
        )
    return rows


def verdict(comparison: Comparison, p: float, question: Question) -> str:
    """tie: the whole interval is within the margin; else faster or slower at p; else undecided."""
    d, margin = comparison.difference, question.margin * comparison.baseline.value
    if -margin <= d.low and d.high <= margin:
        return "tie"
    if p <= 1 - question.level:
        return "faster" if d.value > 0 else "slower"
    return "undecided"


def comparison_frame(rows: Sequence[Comparison], question: Question) -> Any:
    """The comparisons as a table."""
    notes = (
        f"{len(rows)} comparisons, paired by prompt; p by Holm over all of them. tie: the interval "
        f"lies within {question.margin:.1%} of the baseline. detectable: found with a chance of "
        f"{question.power:.0%}.",
    )
    return frame(
        map(vars, rows), [field.name for field in fields(Comparison)], names=3, notes=notes,
        formats={"difference": "+.3f", "p": ".2g", "prompts_needed": ","},
        optional=("error", "p", "baseline", "detectable", "speedup"),
    )  # fmt: skip
