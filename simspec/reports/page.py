"""One self-contained HTML page of a decision: which drafter, which draft length, and why."""

import io
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simspec.cost.model import CostModel
from simspec.cost.why import Why, split_rounds, why_frame
from simspec.engines import Export
from simspec.engines.choice import Evidence, best_length, choose
from simspec.engines.exports import EXPORTS, Request
from simspec.numerics.stats import MIN_PROMPTS, Estimate
from simspec.output.frames import frame, texts
from simspec.output.names import label_text, printable_lines
from simspec.policies.fixed import fixed
from simspec.policies.oracles import oracle
from simspec.policy.predictor import examples, reliability
from simspec.replay.evaluation import (
    Evaluation,
    covers_text,
    evaluate,
    priced_recordings,
    unsettled,
)  # fmt: skip
from simspec.replay.replay import replay
from simspec.reports.comparison import DEFAULTS, Comparison, Question, compare_seconds, corrected
from simspec.reports.oracle_gap import contestants
from simspec.trace.acceptance import depth_acceptance, drawn_trace
from simspec.trace.recordings import measured_on
from simspec.trace.trace import Trace, load_trace

LEAST_BIN = 40
"""Examples of a calibration bin that is shown."""
SHOWN = 10
"""Most adaptive policies of a chart, the fastest first."""


@dataclass(frozen=True)
class RecordingFigures:
    """A recording's figures; times are modeled, speedups over plain decoding."""

    # name, trace, cost: the recording and its costs
    name: str
    trace: Trace
    cost: CostModel
    # speedups; of fewer than 8 prompts an interval is the value alone: low = high = value
    curve: tuple[Estimate, ...]  # of fixed:0 .. fixed:K
    policies: dict[str, Estimate]  # of adaptive policies, fastest first
    oracle: Estimate  # of the clairvoyant schedule
    best_k: int  # the smallest K within 1% of the best throughput
    # policies against the best fixed K, before Holm's correction
    comparisons: tuple[Comparison, ...]
    acceptance: NDArray[np.float64]  # float64[K]: by depth, all rows; NaN: never tried
    # float64[bins, 3]: count, mean confidence, share accepted; None: no confidence
    calibration: NDArray[np.float64] | None
    # where the mean round goes: plain, the best K that drafts and the best policy that adapts
    whys: tuple[Why, ...]
    tokens_per_round: float  # at best_k

    @property
    def short(self) -> str:
        """The recording's name without its folder and ending."""
        return Path(self.name).name.removesuffix(".parquet")

    @property
    def best(self) -> Estimate:
        """The speedup of the best fixed length."""
        return self.curve[self.best_k]

    @property
    def unsettled(self) -> str:
        """Why these costs settle nothing; "" where they give intervals."""
        return unsettled(self.cost)

    @property
    def pays(self) -> bool:
        """Whether the best fixed length is faster than plain decoding by its whole interval."""
        return self.best_k > 0 and self.best.low > 1


@dataclass(frozen=True)
class TokenFigures:
    """What a recording without costs says: tokens a round, and no time.

    tokens_per_round: float64[K + 1] by fixed length; the others as in `RecordingFigures`.
    """

    name: str
    trace: Trace
    tokens_per_round: NDArray[np.float64]
    acceptance: NDArray[np.float64]
    calibration: NDArray[np.float64] | None


def token_figures(name: str, trace: Trace, seed: int = 0) -> TokenFigures:
    """The figures of a recording without costs."""
    draw = drawn_trace(trace, seed)
    rounds = [len(replay(draw, fixed(k), seed)) for k in range(trace.K + 1)]
    tokens, depths = trace.rows / np.array(rounds), depth_acceptance(trace)[1]
    return TokenFigures(name, trace, tokens, depths, _calibration(trace))


def figures_of(
    name: str,
    trace: Trace,
    cost: CostModel | float,
    policies: Sequence[str] = (),
    replicates: int = 4,
    question: Question = DEFAULTS,
) -> RecordingFigures:
    """All figures of a recording; policies default to those whose features it has.

    ValueError for what cannot run.
    """
    ((_, _, cost),) = priced_recordings({name: trace}, cost)
    cost = cost.truncate(trace.K) if cost.K > trace.K else cost
    adaptive = contestants(policies, trace, cost)
    lengths = [fixed(k) for k in range(min(trace.K, cost.K) + 1)]
    every = {policy.name: policy for policy in (*lengths, *adaptive)}
    found = evaluate(trace, list(every.values()), cost, replicates, question.seed)
    curve = tuple(_speedup(found, policy.name, question) for policy in lengths)
    adapted = [policy for policy in found.seconds if not policy.startswith("fixed:")]
    others = {policy: _speedup(found, policy, question) for policy in adapted}
    others = dict(sorted(others.items(), key=lambda item: -item[1].value))
    draw = drawn_trace(trace, question.seed)
    ideal = oracle.resolve(draw, cost)
    planned = evaluate(draw, [ideal], cost, 1, question.seed)
    best = best_length([1 / speedup.value for speedup in curve])
    drafting = best or max(range(len(curve)), key=lambda k: curve[k].value * (k > 0))
    shown, whys = (lengths[0].name, lengths[drafting].name, *[*others][:1]), {}
    for policy in map(every.__getitem__, shown):
        rounds, label = replay(draw, policy, question.seed), policy.name.replace("fixed:", "K = ")
        tokens = trace.rows / len(rounds)
        whys[policy.name] = split_rounds(label, rounds, tokens, cost, policy.reads)
    compared: list[Comparison] = []
    if trace.sequences >= MIN_PROMPTS:
        baseline = fixed(best).name
        compared = [
            compare_seconds(name, found, policy.name, baseline, question)
            for policy in adaptive
            if policy.name != baseline
        ]
    return RecordingFigures(
        name,
        trace,
        cost,
        curve,
        others,
        _speedup(planned, ideal.name, question),
        best,
        tuple(compared),
        depth_acceptance(trace)[1],
        _calibration(trace),
        tuple(whys.values()),
        trace.rows / found.rounds[fixed(best).name],
    )


def _speedup(found: Evaluation, policy: str, question: Question) -> Estimate:
    """As `RecordingFigures` has it."""
    speedup = found.speedup(policy, level=question.level, seed=question.seed)
    if speedup.prompts < MIN_PROMPTS and not found.unsettled:
        speedup = replace(speedup, low=speedup.value, high=speedup.value)
    return speedup


def _calibration(trace: Trace) -> NDArray[np.float64] | None:
    if "confidence" not in dict(trace.meta.features) or trace.ratio is not None:
        return None
    values, _, label, _ = examples(trace, ("confidence",))
    if not len(label):
        return None
    table = reliability(np.clip(values[:, 0], 0, 1), label)
    return table[table[:, 0] >= LEAST_BIN]


ENGINES = ("vllm", "sglang", "llamacpp", "transformers")
SETTINGS = Export("vllm", (), Path("-"), draft_model="DRAFT_MODEL")
"""A recording does not name the files of its draft model."""


def engine_lines(figures: RecordingFigures) -> dict[str, str]:
    """{engine: text that it reads, as `simspec export` writes it}; {} where drafts do not pay."""
    if not figures.pays:
        return {}
    evidence = Evidence({figures.name: figures.trace}, (1,), {figures.name: (figures.cost,)})
    lines = {}
    for engine in ENGINES:
        try:
            choice = choose(evidence, fixed(figures.best_k).name)
            text = EXPORTS[engine].write(Request(evidence, choice, SETTINGS))
        except ValueError:  # the engine has no such drafter
            continue
        lines[engine] = text.strip()
    return lines


Key = tuple[str, str, float, float]
"""Target, rule, temperature, top-p: recordings that differ in them answer different questions."""


@dataclass(frozen=True)
class Recommendation:
    """The policy to run for one target and rule."""

    key: Key  # target, rule, temperature and top-p
    figures: RecordingFigures  # of the fastest recording, at its best fixed length or under `gain`
    # the policy that is clearly faster than its best fixed length; None: none is
    gain: Comparison | None

    @property
    def speedup(self) -> Estimate:
        """Of the fixed length over plain decoding."""
        return self.figures.best

    @property
    def sentence(self) -> str:
        """The recommendation in words."""
        drafter, name = self.figures.trace.meta.drafter, self.figures.short
        if self.figures.unsettled:
            return f"Not settled {self.figures.unsettled}."
        if self.gain is not None and not self.figures.pays and self.gain.speedup.low > 1:
            return (
                f"Draft with {drafter} under {self.gain.policy}: {times(self.gain.speedup)} over "
                f"plain decoding ({name}). No fixed length is clearly faster than plain decoding."
            )
        if not self.figures.pays:
            K, best = max(enumerate(self.figures.curve[1:], 1), key=lambda of: of[1].value)
            return (
                f"Do not draft: nothing is clearly faster than plain decoding. The best draft "
                f"length is K = {K} of {drafter}, at {times(best)} ({name})."
            )
        text = (
            f"Draft {self.figures.best_k} token{'s' * (self.figures.best_k > 1)} with {drafter}: "
            f"{times(self.speedup)} over plain decoding ({name})."
        )
        if self.gain is None:
            return f"{text} No policy that adapts its length is clearly faster there."
        return f"{text} {self.gain.policy} adds {self.gain.difference.text()} to that."


def recommend(figures: Sequence[RecordingFigures], question: Question) -> list[Recommendation]:
    """One recommendation for each target and rule; policies are judged by Holm over the page."""
    judged = corrected([c for f in figures for c in f.comparisons], question)
    groups: dict[Key, list[RecordingFigures]] = {}
    for f in figures:
        meta = f.trace.meta
        key = meta.target, meta.rule, meta.temperature, meta.top_p
        groups.setdefault(key, []).append(f)
    gains: dict[str, Comparison] = {}
    for c in sorted(judged, key=lambda c: c.difference.value):
        if c.verdict == "faster":
            gains[c.recording] = c

    def reached(f: RecordingFigures) -> tuple[bool, float]:
        gain = gains.get(f.name)
        value = f.best.value if gain is None else gain.speedup.value
        return not f.unsettled, value

    fastest = {key: max(members, key=reached) for key, members in groups.items()}
    return [Recommendation(key, f, gains.get(f.name)) for key, f in fastest.items()]


def times(speedup: Estimate) -> str:
    """'1.39x [1.36, 1.43]'."""
    return speedup.text(unit="x")


def all_figures(
    traces: Mapping[str, Trace | Path | str],
    costs: Any,
    policies: Sequence[str] = (),
    replicates: int = 4,
    question: Question = DEFAULTS,
    jobs: int = 1,
) -> Iterator[RecordingFigures | TokenFigures]:
    """The figures of each recording, in order, as soon as they are known; those without costs have
    TokenFigures.

    costs is a CostModel, a ratio, None or {name: one of these}; recordings are replayed by `jobs`
    processes. ValueError for what cannot run.
    """
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
    figures: Iterator[RecordingFigures | TokenFigures] = parallel(
        delayed(_figures)(*source, *settings) for source in work
    )
    return figures


def _figures(
    name: str, source: Trace | Path | str, cost: Any, *settings: Any
) -> RecordingFigures | TokenFigures:
    trace = source if isinstance(source, Trace) else load_trace(source)
    if cost is None:
        return token_figures(name, trace, settings[-1].seed)
    return figures_of(name, trace, cost, *settings)


def page_of(
    figures: Sequence[RecordingFigures | TokenFigures],
    question: Question = DEFAULTS,
    notes: Sequence[str] = (),
    advice: Sequence[tuple[str, str]] = (),
    first: Sequence[Any] = (),
    code: Mapping[str, str] | None = None,
) -> str:
    """The HTML of recordings' figures.

    advice, first, code: (about, sentence), frames and {title: text} in place of what replay
    recommends.
    """
    from jinja2 import Environment, PackageLoader

    loader = PackageLoader("simspec.reports", ".")
    pages = Environment(loader=loader, autoescape=True, finalize=_printable)
    pages.filters["texts"] = texts
    counted = [f for f in figures if isinstance(f, TokenFigures)]
    priced = [f for f in figures if isinstance(f, RecordingFigures)]
    advice = advice or [(_about(r), r.sentence) for r in recommend(priced, question)]
    return pages.get_template("page.html").render(
        counted=[_counted(f) for f in counted],
        notes=notes,
        advice=advice,
        first=first,
        code=code or {},
        covered=covers_text((f.cost for f in priced), question.level),
        drafters=_drafters(priced),
        recordings=[_recording(f, question) for f in priced],
    )


def _counted(f: TokenFigures) -> dict[str, Any]:
    """What the template shows of a recording without costs."""
    lengths = enumerate(f.tokens_per_round)
    return {
        "name": Path(f.name).name.removesuffix(".parquet"),
        "about": _recorded(f.trace),
        "charts": _acceptance_charts(f),
        "table": frame([{f"K = {k}": f"{tokens:.2f}" for k, tokens in lengths}], names=0),
    }


def _recorded(trace: Trace) -> str:
    meta = trace.meta
    return (
        f"{meta.drafter}, {meta.rule}; {trace.sequences} prompts, {trace.rows:,} tokens; "
        f"recorded on {meta.device or 'an unknown device'}"
    )


def _acceptance_charts(f: RecordingFigures | TokenFigures) -> list[tuple[str, str]]:
    charts = [("Acceptance by depth, over all positions", depth_chart(f.acceptance))]
    if f.calibration is not None and len(f.calibration) > 1:
        charts.append(("Calibration of confidence", calibration_chart(f.calibration)))
    return charts


def _printable(value: Any) -> Any:
    return printable_lines(value) if type(value) is str else value


def _about(recommendation: Recommendation) -> str:
    target, rule, temperature, top_p = recommendation.key
    sampled = f", temperature {temperature:g}" if rule != "greedy" else ""
    return f"target {target[:24]}, {rule} verification{sampled}" + (
        f", top-p {top_p:g}" if top_p != 1 else ""
    )


def _drafters(figures: Sequence[RecordingFigures]) -> Any:
    ordered = sorted(figures, key=lambda f: (f.trace.meta.rule, -f.best.value))
    rows = [
        {
            "recording": f.short,
            "drafter": f.trace.meta.drafter,
            "rule": f.trace.meta.rule,
            "best K": None if f.unsettled else f.best_k,
            "speedup": times(f.best),
            "tokens a round": f.tokens_per_round,
            "best policy": next(iter(f.policies), None),
            "its speedup": next(map(times, f.policies.values()), None),
            "oracle": f"{f.oracle.value:.2f}x",
        }
        for f in ordered
    ]
    return frame(rows, names=3, formats={"tokens a round": ".2f"})


def _recording(f: RecordingFigures, question: Question) -> dict[str, Any]:
    """What the template shows of a recording."""
    shown = [
        (f"fixed:{f.best_k}", f.best, "best"),
        *((policy, speedup, "policy") for policy, speedup in [*f.policies.items()][:SHOWN]),
        ("oracle", f.oracle, "oracle"),
    ]
    charts = [
        ("Draft length", curve_chart(f.curve, f.oracle, f.best_k)),
        ("Policies", policy_chart(sorted(shown, key=lambda row: -row[1].value))),
        *_acceptance_charts(f),
    ]
    compared = [
        {
            "policy": c.policy,
            "speedup": c.speedup,
            f"difference [{question.level:.0%}]": c.difference,
            "standard error": c.error,
        }
        for c in sorted(f.comparisons, key=lambda c: -c.difference.value)
    ]
    formats = {f"difference [{question.level:.0%}]": "+.3f"}
    return {
        "figures": f,
        "about": f"{_recorded(f.trace)}; costs of {_priced_on(f.cost)}",
        "charts": charts,
        "why": why_frame(f.whys),
        "comparisons": frame(compared, formats=formats),
        "lines": engine_lines(f),
    }


def _priced_on(cost: CostModel) -> str:
    given = not cost.device and cost.origin is None and cost.name.startswith("c=")
    return f"given ratio {cost.name[2:]}" if given else f"{cost.name} ({measured_on(cost)})"


COLORS = {
    "#010101": "var(--ink)",
    "#020202": "var(--quiet)",
    "#030303": "var(--band)",
    "#040404": "var(--accent)",
    "#050505": "var(--second)",
}
"""Colors that matplotlib draws with, and the variable that replaces each on the page."""

INK, QUIET, BAND, ACCENT, SECOND = COLORS
WIDTH = 4.4
"""Inches of a chart: its text keeps its size on a phone."""


def curve_chart(curve: Sequence[Estimate], oracle: Estimate, best_k: int) -> str:
    """Speedup of fixed lengths with its band; the best length and the oracle are marked."""

    def draw(axes: Any) -> None:
        lengths = range(len(curve))
        axes.fill_between(
            lengths, [s.low for s in curve], [s.high for s in curve], color=BAND, lw=0
        )
        axes.plot(lengths, [s.value for s in curve], "-", color=INK, lw=1.4)
        axes.plot([best_k], [curve[best_k].value], "o", color=ACCENT, ms=7)
        axes.axhline(oracle.value, color=SECOND, lw=1.2, ls="--")
        axes.annotate("oracle", (lengths[-1], oracle.value), color=SECOND, ha="right", va="bottom")
        axes.axhline(1, color=QUIET, lw=0.8, ls=":")
        axes.set(xlabel="draft length K", ylabel="speedup over plain decoding")
        axes.xaxis.get_major_locator().set_params(integer=True)

    return svg(draw, 3.1)


def policy_chart(points: Sequence[tuple[str, Estimate, str]]) -> str:
    """(label, speedup, kind) from the top down, as points with intervals.

    kind: best (the best fixed length), policy or oracle.
    """
    colors = {"best": ACCENT, "policy": INK, "oracle": SECOND}

    def draw(axes: Any) -> None:
        for at, (_, speedup, kind) in enumerate(points):
            axes.plot([speedup.low, speedup.high], [at, at], color=colors[kind], lw=1.4)
            axes.plot([speedup.value], [at], "o", color=colors[kind], ms=5)
        axes.axvline(1, color=QUIET, lw=0.8, ls=":")
        axes.set_yticks(range(len(points)), [label_text(label) for label, _, _ in points])
        axes.invert_yaxis()
        axes.set(xlabel="speedup over plain decoding")

    return svg(draw, 0.9 + 0.22 * len(points))


def depth_chart(acceptance: NDArray[np.float64]) -> str:
    """Acceptance of the drafted token at each depth, given that all before it were accepted."""

    def draw(axes: Any) -> None:
        axes.bar(np.arange(1, len(acceptance) + 1), np.nan_to_num(acceptance), color=ACCENT)
        axes.set(xlabel="depth of the drafted token", ylabel="accepted, given those before")
        axes.set_ylim(0, 1)
        axes.xaxis.get_major_locator().set_params(integer=True)

    return svg(draw, 2.6)


def calibration_chart(table: NDArray[np.float64]) -> str:
    """Share accepted against the drafter's confidence; on the diagonal both agree."""

    def draw(axes: Any) -> None:
        axes.plot([0, 1], [0, 1], color=QUIET, lw=0.8, ls=":")
        axes.plot(table[:, 1], table[:, 2], "o-", color=ACCENT, ms=4, lw=1.4)
        axes.set(xlabel="confidence of the drafter", ylabel="share accepted")
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1)

    return svg(draw, 2.6)


def svg(draw: Callable[[Any], None], height: float) -> str:
    """The drawing as an `<svg>` element without size, script or outer reference."""
    import matplotlib
    from matplotlib.figure import Figure

    style: Any = {
        "svg.fonttype": "none", "svg.hashsalt": "simspec", "font.size": 9, "text.color": INK,
        "font.family": "sans-serif", "axes.edgecolor": QUIET, "axes.labelcolor": INK,
        "xtick.color": QUIET, "ytick.color": QUIET, "xtick.labelcolor": INK,
        "ytick.labelcolor": INK, "axes.spines.top": False, "axes.spines.right": False,
    }  # fmt: skip
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(WIDTH, height), dpi=72, layout="constrained")
        draw(figure.subplots())
        if (engine := figure.get_layout_engine()) is not None:
            engine.execute(figure)
        figure.set_layout_engine(None)  # savefig would draw a second time for the layout
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return themed(buffer.getvalue())


def themed(text: str) -> str:
    """matplotlib's SVG for use in a page: colors as variables, ids its own, no header, no size."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    text = re.sub(r' (width|height)="[\d.]+pt"', "", text, count=2)
    text = text.replace(' xmlns:xlink="http://www.w3.org/1999/xlink"', "").replace(
        "xlink:href", "href"
    )
    text = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font: \1 sans-serif", text)
    for drawn, variable in COLORS.items():
        text = text.replace(drawn, variable)
    mark = f"c{zlib.crc32(text.encode()):08x}-"  # ids are unique on a page of many charts
    return re.sub(r'((?:id=|href=)"#?|url\(#)', rf"\g<1>{mark}", text)
