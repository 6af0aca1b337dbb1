"""The audit of an emitted run: every token is checked against the target's distribution."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch

from real.audit import checks
from real.audit.runs import EmittedRun, RunHeader
from real.draft import Drafter
from real.model.target import Target
from real.progress import Progress, quiet
from simspec.trace.file import SAMPLED


@dataclass(frozen=True)
class Divergence:
    """An emitted token that is not the target's pick `best`; figures as in `ScoreGaps`."""

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
    """Results of an audit, at the tolerance of the coarser of two dtypes, the run's and its own.

    near_ties, ties: positions whose best two scores differ by the tolerance at most, by 0;
    divergences: tokens that are not the target's pick, greedy and coupled rules; impossible: tokens
    of probability 0, all rules but greedy; sampling: tests of the others; alarms: one line
    for each failed check, none for a clean run.
    """

    rule: str
    sequences: int
    tokens: int
    tolerance: checks.Tolerance
    near_ties: int
    ties: int
    divergences: tuple[Divergence, ...]
    impossible: tuple[ImpossibleToken, ...]
    sampling: checks.SamplingTests | None
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
            {"clean": self.clean}
            | asdict(self)
            | {
                "divergences": len(self.divergences),
                "impossible": len(self.impossible),
                "largest_gap_nats": max((d.gap for d in self.divergences), default=0.0),
                "largest_gap_ulps": max((d.ulps for d in self.divergences), default=0.0),
                "first_divergences": [asdict(d) for d in self.first],
                "failures": [asdict(d) for d in self.failures],
            }
        )


def _finite(value):
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


Place = tuple[int, int, int, int]
"""Index of a sequence in the run, address of its draws, position among its new tokens, token."""


def audit(
    target: Target, run: EmittedRun, drafter: Drafter | None = None, risk: float = 1e-4,
    progress: Progress = quiet
) -> AuditResult:  # fmt: skip
    """Teacher-forces each sequence of `run` through `target` and checks every token.

    | rule | check |
    | --- | --- |
    | greedy, coupled | a token is the target's pick, or its gap is within the tolerance |
    | greedy, coupled | excused gaps exceed the tolerance's share at most with probability `risk` |
    | all but greedy | no token has probability 0; `sampling_tests` at `risk` |
    | rejection, block, with `drafter` | the tokens are not biased towards the drafter |
    | and with rounds of chains | drafted tokens are accepted as the rule accepts them |

    ValueError for tokens outside the vocabulary.
    """
    decoder, rule = target.decoder, run.header.sampling_rule
    run.check_vocabulary(decoder.config.vocab)
    tolerance = checks.tolerance_of(run.header.dtype, str(decoder.dtype).removeprefix("torch."))
    dtype, slack = getattr(torch, tolerance.dtype), tolerance.nats
    gaps, statistics, biases, acceptances = [], [], [], []
    depth = 0
    if drafter is not None and rule.sampled and drafter.history_free:
        depth = checks.chain_depth(run.sequences)
    for i, sequence in enumerate(run.sequences):
        q = None
        if drafter is not None and rule.sampled:
            q = checks.drafter_distributions(target, drafter, rule, sequence)
        for start, logits in checks.teacher_forced_logits(decoder, sequence.prompt, sequence.token):
            token = sequence.token[start : start + len(logits)]
            address = sequence.sequence, start
            if not rule.sampled:
                gaps.append(checks.score_gaps(rule, logits, token, *address, dtype, slack))
            if rule.name != "greedy":
                statistics.append(checks.sampling_statistics(rule, logits, token, *address, slack))
            if q is not None:
                biases.append(
                    checks.drafter_bias(rule.probs(logits), q[start : start + len(logits)], token)
                )
        if drafter is not None and depth:
            acceptances.append(checks.acceptance_bias(target, drafter, rule, sequence, depth))
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
    sampling: checks.SamplingTests | None = None
    if statistics:
        impossible, sampling = _sampling(statistics, biases, acceptances, places, risk)
    alarms += excess_alarms(impossible, *of, "tokens have probability 0")
    if sampling is not None:
        drawn = [name for name in sampling.alarms if name != "acceptance"]
        if drawn:
            alarms.append(f"not drawn from the target's distributions: {', '.join(drawn)}")
        if "acceptance" in sampling.alarms:
            alarms.append(f"drafted tokens are not accepted as rule {rule.name!r} accepts them")
    return AuditResult(
        rule=rule.name, sequences=len(run.sequences), tokens=len(places), tolerance=tolerance,
        near_ties=near_ties, ties=ties, divergences=divergences, impossible=impossible,
        sampling=sampling, alarms=tuple(alarms)
    )  # fmt: skip


def _divergences(
    parts: list[checks.ScoreGaps], places: list[Place], tolerance: checks.Tolerance
) -> tuple[tuple[Divergence, ...], int, int]:
    """(divergences, near ties, exact ties) of all tokens."""
    gaps = _concatenated(parts)
    divergences = tuple(
        Divergence(
            *places[n], best=int(gaps.best[n]), gap=float(gaps.gap[n]), ulps=float(gaps.ulps[n]),
            margin=float(gaps.margin[n]),
            excused=bool(gaps.least_gap[n] <= tolerance.nats or gaps.ulps[n] <= tolerance.ulps)
        )
        for n in np.flatnonzero(gaps.best != [token for *_, token in places])
    )  # fmt: skip
    return divergences, int((gaps.margin <= tolerance.nats).sum()), int((gaps.margin == 0).sum())


def _sampling(
    parts: list[checks.SamplingStatistics], biases: list[checks.Bias],
    acceptances: list[checks.Bias], places: list[Place], risk: float
) -> tuple[tuple[ImpossibleToken, ...], checks.SamplingTests | None]:  # fmt: skip
    """(tokens of probability 0, tests of the others); no tests where none is left."""
    statistics = _concatenated(parts)
    possible = np.isfinite(statistics.surprisal)
    impossible = tuple(
        ImpossibleToken(*places[n], bool(statistics.at_cutoff[n]))
        for n in np.flatnonzero(~possible)
    )
    if not possible.any():
        return impossible, None
    bias = None
    if len(biases) == len(parts):
        bias = _selected(_concatenated(biases), possible)
    acceptance = _concatenated(acceptances) if acceptances else None
    return impossible, checks.sampling_tests(
        _selected(statistics, possible), bias, risk, acceptance
    )


def excess_alarms(
    differences: Sequence, of: int, share: float, risk: float, what: str
) -> list[str]:
    """At most one alarm: for unexcused differences, or for more excused ones than `share` explains.

    The second is a binomial test of `len(differences)` in `of` at level `risk`.
    """
    from scipy import stats  # most commands start sooner without

    unexcused = sum(not d.excused for d in differences)
    if unexcused:
        return [f"{unexcused} of {of} {what}"]
    test = stats.binomtest(len(differences), of, share, alternative="greater")
    if differences and test.pvalue < risk:
        return [
            f"{len(differences)} of {of} {what}, each within rounding, "
            f"yet more than a share of {share:g} allows"
        ]
    return []


def _concatenated(parts):
    names = parts[0].__dataclass_fields__
    return type(parts[0])(*(np.concatenate([getattr(p, name) for p in parts]) for name in names))


def _selected(columns, rows: np.ndarray):
    return type(columns)(*(getattr(columns, name)[rows] for name in columns.__dataclass_fields__))


SHOWN = 5
"""Most divergences and failures that are printed, each."""


def report_rows(result: AuditResult) -> list[tuple[str, str]]:
    """(name, figures) of each line of the report."""
    rows = [("sequences, tokens", f"{result.sequences}, {result.tokens}")]
    if result.rule not in SAMPLED:
        rows += _divergence_rows(result)
    if result.sampling is not None:
        cut = sum(d.excused for d in result.impossible)
        shown = f"{len(result.impossible) - cut} tokens, {cut} more at the edge of top-k or top-p"
        rows += [("probability 0", shown), *_sampling_rows(result.sampling)]
    return rows


def _divergence_rows(result: AuditResult) -> list[tuple[str, str]]:
    tolerance, divergences = result.tolerance, result.divergences
    excused = sum(d.excused for d in divergences)
    limit = f"max({tolerance.nats:g} nats, {tolerance.ulps:g} units in the last place)"
    share = f"{result.near_ties} ({result.near_ties / result.tokens:.2%})"
    counts = f"{excused} excused, {len(divergences) - excused} not"
    rows = [
        ("excused", f"{tolerance.dtype}: gaps up to {limit}, {tolerance.share:.1%} of tokens"),
        ("near-ties", f"{share} within that many nats, {result.ties} exact ties"),
        ("not the pick", f"{len(divergences)}: {counts}; in {len(result.first)} sequences"),
    ]
    if divergences:
        gap, ulps = (max(getattr(d, name) for d in divergences) for name in ("gap", "ulps"))
        rows.append(("largest gap", f"{gap:.4g} nats, {ulps:.3g} units"))
    return rows


def _sampling_rows(t: checks.SamplingTests) -> list[tuple[str, str]]:
    def tested(figures: str, effect: float | None, shown: str) -> str:
        assert effect is not None
        found = shown.format(effect) if math.isfinite(effect) else "none: too few tokens"
        return f"{figures}; detected with probability {checks.POWER}: {found}"

    bias = "not tested: the run's drafter is not at hand"
    if t.p_bias is not None:
        figures = f"z = {t.bias_z:+.2f}, p <= {t.p_bias:.3g}"
        bias = tested(figures, t.detectable_bias, "over {:.1%} drawn from it")
    acceptance = "not tested: the run's rounds of chains, or its drafter, are not at hand"
    if t.p_acceptance is not None:
        figures = f"z = {t.acceptance_z:+.2f}, p <= {t.p_acceptance:.3g}"
        acceptance = tested(figures, t.detectable_loss, "{:.1%} of accepted tokens lost")
    ratio = f"likeliest at {t.temperature_ratio:.3g} times the stated one"
    ratio += f", p <= {t.p_temperature:.3g}"
    chi2 = f"chi-square {t.chi2:.1f} in {t.bins} bins, p = {t.p_chi2:.3g}"
    return [
        ("surprisal", f"{t.surprisal:.4f} nats/token, expected {t.entropy:.4f} (z = {t.z:+.2f})"),
        ("temperature", tested(ratio, t.detectable_temperature, "error over {:.1%}")),
        ("uniformity", tested(chi2, t.detectable_variation, "variation over {:.3f}")),
        ("drafter bias", bias),
        ("acceptance", acceptance),
        ("false alarm", f"probability {t.risk:g} at most, these tests together"),
    ]


def print_report(name: str, header: RunHeader, result: AuditResult, tokenizer) -> None:
    """Prints the figures, the first divergences, and the outcome in the last line."""
    from simspec.output.terminal import print_fields, print_text

    how = " ".join(filter(None, (header.rule, header.dtype, header.drafter, header.policy)))
    print_fields(dict(report_rows(result)), title=f"{name}: {how}")
    excused = [d for d in result.first if d.excused]
    for d in (*excused[:SHOWN], *result.failures[:SHOWN]):
        line = (
            f"sequence {d.index} (address {d.sequence}) at {d.position}: "
            f"{tokenizer.decode([d.token])!r} ({d.token})"
        )
        if isinstance(d, Divergence):
            line += (
                f", the target's pick {tokenizer.decode([d.best])!r} ({d.best}), "
                f"{d.gap:.4g} nats, {d.ulps:.3g} units"
            )
        print_text(f"{line}: {'excused' if d.excused else 'FAILED'}")
    print_text("clean" if result.clean else f"NOT CLEAN: {'; '.join(result.alarms)}")
