"""The page of a decision: recommendations first, then each recording's figures."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from simspec.evaluate.evaluation import covers_text
from simspec.numerics.stats import Estimate
from simspec.output.table import Table
from simspec.page import layout
from simspec.page.figures import (
    Recommendation,
    RecordingFigures,
    engine_lines,
    figures_of,
    recommend,
    short_name,
    times,
)
from simspec.reports.comparison import DEFAULTS, Question
from simspec.trace.trace import Trace, load_trace

SHOWN = 10
"""Most adaptive policies of a chart, the fastest first."""


def report(
    traces: Mapping[str, Trace | Path | str],
    costs: Any = 0.1,
    policies: Sequence[str] = (),
    replicates: int = 4,
    question: Question = DEFAULTS,
    notes: Sequence[str] = (),
    jobs: int = 1,
) -> str:
    """The HTML of the page; costs is a CostModel, a ratio or {name: either}.

    `notes` are shown under the title; recordings are replayed by `jobs` processes.
    ValueError for what cannot run.
    """
    figures = all_figures(traces, costs, policies, replicates, question, jobs)
    return page_of(list(figures), question, notes)


def all_figures(
    traces: Mapping[str, Trace | Path | str],
    costs: Any = 0.1,
    policies: Sequence[str] = (),
    replicates: int = 4,
    question: Question = DEFAULTS,
    jobs: int = 1,
) -> Iterator[RecordingFigures]:
    """The figures of each recording, in order, as soon as they are known."""
    work = [
        (name, source, costs[name] if isinstance(costs, Mapping) else costs)
        for name, source in traces.items()
    ]
    settings = policies, replicates, question
    if jobs == 1 or len(work) < 2:
        return (_figures(*source, *settings) for source in work)
    from joblib import Parallel, delayed

    # processes: most of the time is Python between the replays
    parallel = Parallel(n_jobs=min(jobs, len(work)), return_as="generator")
    figures: Iterator[RecordingFigures] = parallel(
        delayed(_figures)(*source, *settings) for source in work
    )
    return figures


def _figures(name: str, source: Trace | Path | str, cost: Any, *settings: Any) -> RecordingFigures:
    trace = source if isinstance(source, Trace) else load_trace(source)
    return figures_of(name, trace, cost, *settings)


def page_of(
    figures: Sequence[RecordingFigures],
    question: Question = DEFAULTS,
    notes: Sequence[str] = (),
    first: Sequence[str] = (),
) -> str:
    """The HTML of recordings' figures; `first` is HTML in place of what replay recommends."""
    found = recommend(figures, question)
    count = f"{len(figures)} recording{'s' * (len(figures) > 1)}"
    body = [
        layout.heading("Which draft length?", 1),
        layout.paragraph(
            f"{count}, replayed by simspec. Speedups are modeled from measured or given costs. "
            f"Brackets: {covers_text((f.cost for f in figures), question.level)} Lengths are "
            "chosen and counted on the same prompts.",
            quiet=True,
        ),
        *(layout.paragraph(note, quiet=True) for note in notes),
        *(first or [layout.advice(_about(r), r.sentence) for r in found]),
        layout.heading("Drafters"),
        _drafters(figures),
        *(part for f in figures for part in _recording(f, question)),
    ]
    return layout.page("simspec: which draft length?", body)


def _about(recommendation: Recommendation) -> str:
    target, rule, temperature, top_p = recommendation.key
    sampled = f", temperature {temperature:g}" if rule != "greedy" else ""
    return f"target {target[:24]}, {rule} verification{sampled}" + (
        f", top-p {top_p:g}" if top_p != 1 else ""
    )


def _drafters(figures: Sequence[RecordingFigures]) -> str:
    ordered = sorted(figures, key=lambda f: (f.trace.meta.rule, -f.best.speedup.value))
    rows = [
        (
            short_name(f.name), f.trace.meta.drafter, f.trace.meta.rule, str(f.best_k),
            times(f.best.speedup), f"{f.tokens_per_round:.2f}",
            f.policies[0].policy if f.policies else "-",
            times(f.policies[0].speedup) if f.policies else "-",
            f"{f.oracle.speedup.value:.2f}x",
        )
        for f in ordered
    ]  # fmt: skip
    headings = (
        "recording", "drafter", "rule", "best K", "speedup", "tokens a round", "best policy",
        "its speedup", "oracle",
    )  # fmt: skip
    return Table(headings, rows, names=3).html()


def _recording(f: RecordingFigures, question: Question) -> list[str]:
    meta = f.trace.meta
    about = (
        f"{meta.drafter}, {meta.rule}; {f.trace.sequences} prompts, {f.trace.rows:,} tokens; "
        f"recorded on {meta.device or 'an unknown device'}; costs of {f.cost.device or f.cost.name}"
    )
    shown = [
        (f"fixed:{f.best_k}", f.best.speedup, "best"),
        *((point.policy, point.speedup, "policy") for point in f.policies[:SHOWN]),
        ("signals, in hindsight", _exact(f.signals, f.best.speedup), "oracle"),
        ("oracle", f.oracle.speedup, "oracle"),
    ]
    shown.sort(key=lambda row: -row[1].value)
    drawn = [
        ("Draft length", layout.curve_chart(f.curve, f.oracle, f.best_k)),
        ("Policies", layout.policy_chart(shown)),
        ("Acceptance by depth, over all positions", layout.depth_chart(f.acceptance)),
    ]
    if f.calibration is not None and len(f.calibration) > 1:
        drawn.append(("Calibration of confidence", layout.calibration_chart(f.calibration)))
    parts = [
        layout.heading(short_name(f.name), anchor=short_name(f.name)),
        layout.paragraph(about, quiet=True),
        layout.charts(drawn),
        layout.paragraph(
            f"The oracle knows the text: {f.oracle.speedup.value:.2f}x. Rules on the recorded "
            f"signals, fitted in hindsight, reach {f.signals:.2f}x, that is {f.reach:.0%} of the "
            f"gap from fixed:{f.best_k} to the oracle; fitted on other prompts, "
            f"{f.crossed:.2f}x. The rest of the gap needs to know the future."
        ),
        layout.heading(f"Where the time goes at K = {f.best_k}", 3),
        Table(
            tuple(f.shares), [tuple(f"{share:.1%}" for share in f.shares.values())], names=0
        ).html(),
        layout.folded(f"All policies against fixed:{f.best_k}", [_comparisons(f, question)]),
    ]
    if lines := engine_lines(f):
        parts.append(layout.heading("As engines read it", 3))
        parts += [
            part
            for line in lines
            for part in (layout.paragraph(line.engine, quiet=True), layout.code(line.text))
        ]
    return parts


def _exact(value: float, like: Estimate) -> Estimate:
    return replace(like, value=value, low=value, high=value)


def _comparisons(f: RecordingFigures, question: Question) -> str:
    rows = [
        (
            c.policy, c.speedup.text(), f"{c.difference.value:+.3f}",
            f"[{c.difference.low:+.3f}, {c.difference.high:+.3f}]", f"{c.error:.3f}",
        )
        for c in sorted(f.comparisons, key=lambda c: -c.difference.value)
    ]  # fmt: skip
    headings = ("policy", "speedup", "difference", f"{question.level:.0%}", "standard error")
    return Table(headings, rows).html()
