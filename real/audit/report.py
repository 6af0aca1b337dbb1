"""What an audit found, as people read it."""

import math
import sys

from real.audit.auditor import Audit
from real.audit.run_file import RunHeader
from real.audit.sampling_tests import POWER, SamplingTests

SHOWN = 5


def figures(found: Audit) -> list[tuple[str, str]]:
    """The report: what was looked at and what it came to."""
    t, law, ref = found.tolerance, found.floor, found.reference
    rows = [("texts, tokens", f"{found.texts}, {found.tokens}")]
    if found.rule != "rejection":
        apart, excused = len(found.divergences), sum(d.excused for d in found.divergences)
        rows += [
            (
                "excused",
                f"{t.dtype}: gaps up to max({t.nats:g} nats, {t.ulps:g} units in the last place), {t.share:.1%} of tokens",
            ),
            (
                "near-ties",
                f"{found.near_ties} ({found.near_ties / found.tokens:.2%}) within that many nats, {found.ties} exact ties",
            ),
            (
                "not the pick",
                f"{apart}: {excused} excused, {apart - excused} not; in {len(found.first)} texts",
            ),
        ]
    if found.divergences:
        gap, ulps = (max(getattr(d, name) for d in found.divergences) for name in ("gap", "ulps"))
        rows.append(("largest gap", f"{gap:.4g} nats, {ulps:.3g} units"))
    if law is not None:
        at_cutoff = sum(d.excused for d in found.impossible)
        never = f"{len(found.impossible) - at_cutoff} tokens, {at_cutoff} more at the edge of top-k or top-p"
        temperature_ratio = (
            f"error over {law.detectable_temperature:.1%}"
            if math.isfinite(law.detectable_temperature)
            else "none: too few tokens"
        )
        apart = (
            f"over {law.detectable_variation:.3f}"
            if math.isfinite(law.detectable_variation)
            else "none: too few tokens"
        )
        rows += [
            ("probability 0", never),
            (
                "surprise",
                f"{law.surprisal:.4f} nats a token, expected {law.entropy:.4f} (z = {law.z:+.2f})",
            ),
            (
                "temperature",
                f"likeliest at {law.temperature_ratio:.3g} times the stated one, p <= {law.p_temperature:.3g}; found with chance {POWER}: {temperature_ratio}",
            ),
            (
                "places",
                f"chi-square {law.chi2:.1f} in {law.bins} bins, p = {law.p_chi2:.3g}; found with chance {POWER}: distance {apart}",
            ),
            (
                "distance",
                f"{law.distance:.4f}, by chance {law.expected:.4f}, alarm over {law.limit:.4f}",
            ),
            ("drafter", _leaning(law)),
            ("false alarm", f"chance {law.risk:g} at most, these tests together"),
        ]
    if ref is not None:
        rows += [
            (
                "recording",
                f"{ref.texts} texts ({ref.missing} not in it), {ref.equal} equal, {ref.rounds} rounds compared",
            ),
            (
                "flips",
                f"{len(ref.target_flips)} of the target, {len(ref.draft_flips)} of the drafter; {len(ref.failures)} not excused",
            ),
        ]
    return rows


def _leaning(law: SamplingTests) -> str:
    if law.p_bias is None:
        return "not tested whether the text leans to it"
    found = (
        f"over {law.detectable_bias:.1%} drawn from it"
        if math.isfinite(law.detectable_bias)
        else "none: too few tokens"
    )
    return f"leans {law.bias_z:+.2f} deviations to it, p <= {law.p_bias:.3g}; found with chance {POWER}: {found}"


def show(name: str, header: RunHeader, found: Audit, tokenizer) -> None:
    """Prints the report of the run called `name`: the figures, the first texts that part, and the verdict in the last line."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    made = " ".join(filter(None, (header.rule, header.dtype, header.drafter, header.policy)))
    table = Table("", "", title=escape(f"{name}: {made}"), show_header=False)
    for row in figures(found):
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    for d in [d for d in found.first if d.excused][:SHOWN] + list(found.failures)[:SHOWN]:
        told = f"text {d.text} (sequence {d.sequence}) at {d.position}: {tokenizer.decode([d.token])!r} ({d.token})"
        if hasattr(d, "best"):
            told += f", the target's pick {tokenizer.decode([d.best])!r} ({d.best}), {d.gap:.4g} nats, {d.ulps:.3g} units"
        print(f"{told}: {'excused' if d.excused else 'FAILED'}")
    for d in found.reference.failures[:SHOWN] if found.reference else ():
        where = f"at {d.position}" if d.round is None else f"in round {d.round}, at {d.position}"
        print(
            f"text {d.text} (sequence {d.sequence}) differs from the recording {where}, whose margin is {d.margin:.3g} nats: FAILED"
        )
    print("clean" if found.clean else f"NOT CLEAN: {'; '.join(found.alarms)}")
