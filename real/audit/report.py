"""The printed report of an audit."""

import math

from real.audit.result import AuditResult, Divergence
from real.audit.runs import RunHeader
from real.audit.sampling_tests import POWER, SamplingTests

SHOWN = 5
"""Most divergences, failures and mismatches that are printed, each."""


def report_rows(result: AuditResult) -> list[tuple[str, str]]:
    """(name, figures) of each line of the report."""
    rows = [("sequences, tokens", f"{result.sequences}, {result.tokens}")]
    if result.rule != "rejection":
        rows += _divergence_rows(result)
    if result.sampling is not None:
        cut = sum(d.excused for d in result.impossible)
        impossible = (
            f"{len(result.impossible) - cut} tokens, {cut} more at the edge of top-k or top-p"
        )
        rows += [("probability 0", impossible), *_sampling_rows(result.sampling)]
    if result.recording is not None:
        recording = result.recording
        rows += [
            (
                "recording",
                f"{recording.sequences} sequences ({recording.missing} not in it), "
                f"{recording.equal} equal, {recording.rounds} rounds compared",
            ),
            (
                "flips",
                f"{len(recording.target_flips)} of the target, {len(recording.draft_flips)} of the "
                f"drafter; {len(recording.failures)} not excused",
            ),
        ]
    return rows


def _divergence_rows(result: AuditResult) -> list[tuple[str, str]]:
    tolerance, divergences = result.tolerance, result.divergences
    excused = sum(d.excused for d in divergences)
    rows = [
        (
            "excused",
            f"{tolerance.dtype}: gaps up to max({tolerance.nats:g} nats, {tolerance.ulps:g} units "
            f"in the last place), {tolerance.share:.1%} of tokens",
        ),
        (
            "near-ties",
            f"{result.near_ties} ({result.near_ties / result.tokens:.2%}) within that many nats, "
            f"{result.ties} exact ties",
        ),
        (
            "not the pick",
            f"{len(divergences)}: {excused} excused, {len(divergences) - excused} not; "
            f"in {len(result.first)} sequences",
        ),
    ]
    if divergences:
        gap, ulps = (max(getattr(d, name) for d in divergences) for name in ("gap", "ulps"))
        rows.append(("largest gap", f"{gap:.4g} nats, {ulps:.3g} units"))
    return rows


def _sampling_rows(tests: SamplingTests) -> list[tuple[str, str]]:
    detected = f"detected with probability {POWER}"
    temperature = _detectable(tests.detectable_temperature, "error over {:.1%}")
    variation = _detectable(tests.detectable_variation, "variation over {:.3f}")
    bias = "not tested: the run's drafter is not at hand"
    if tests.p_bias is not None and tests.detectable_bias is not None:
        share = _detectable(tests.detectable_bias, "over {:.1%} drawn from it")
        bias = f"z = {tests.bias_z:+.2f}, p <= {tests.p_bias:.3g}; {detected}: {share}"
    acceptance = "not tested: the run's rounds of chains, or its drafter, are not at hand"
    if tests.p_acceptance is not None and tests.detectable_loss is not None:
        loss = _detectable(tests.detectable_loss, "{:.1%} of accepted tokens lost")
        acceptance = (
            f"z = {tests.acceptance_z:+.2f}, p <= {tests.p_acceptance:.3g}; {detected}: {loss}"
        )
    return [
        (
            "surprisal",
            f"{tests.surprisal:.4f} nats/token, expected {tests.entropy:.4f} (z = {tests.z:+.2f})",
        ),
        (
            "temperature",
            f"likeliest at {tests.temperature_ratio:.3g} times the stated one, "
            f"p <= {tests.p_temperature:.3g}; {detected}: {temperature}",
        ),
        (
            "uniformity",
            f"chi-square {tests.chi2:.1f} in {tests.bins} bins, p = {tests.p_chi2:.3g}; "
            f"{detected}: {variation}",
        ),
        (
            "total variation",
            f"{tests.total_variation:.4f}, expected {tests.expected_variation:.4f}, "
            f"alarm over {tests.variation_limit:.4f}",
        ),
        ("drafter bias", bias),
        ("acceptance", acceptance),
        ("false alarm", f"probability {tests.risk:g} at most, these tests together"),
    ]


def _detectable(effect: float, text: str) -> str:
    return text.format(effect) if math.isfinite(effect) else "none: too few tokens"


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
    for m in result.recording.failures[:SHOWN] if result.recording else ():
        where = f"at {m.position}" if m.round is None else f"in round {m.round}, at {m.position}"
        print_text(
            f"sequence {m.index} (address {m.sequence}) differs from the recording {where}, "
            f"whose margin is {m.margin:.3g} nats: FAILED"
        )
    print_text("clean" if result.clean else f"NOT CLEAN: {'; '.join(result.alarms)}")
