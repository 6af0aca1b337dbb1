"""Figures that the page shows of one recording, computed by replay."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simspec.cost.model import CostModel
from simspec.engines import Export
from simspec.engines.choice import Evidence, best_length, choose
from simspec.engines.exports import EXPORTS, Request
from simspec.evaluate.evaluation import evaluate, priced_recordings
from simspec.numerics.stats import MIN_PROMPTS, Estimate
from simspec.policies import make
from simspec.policies.fixed import fixed
from simspec.policies.oracles import oracle
from simspec.policy.predictor import examples, reliability
from simspec.replay.replay import replay
from simspec.reports.comparison import DEFAULTS, Comparison, Question, compare_seconds, corrected
from simspec.reports.oracle_gap import DEFAULT_POLICIES
from simspec.reports.reachable import reachable
from simspec.reports.speedup_curve import Point, point
from simspec.trace.acceptance import depth_acceptance, drawn_trace
from simspec.trace.trace import Trace

LEAST_BIN = 40
"""Examples of a calibration bin that is shown."""


@dataclass(frozen=True)
class RecordingFigures:
    """A recording's figures; times are modeled, speedups over plain decoding.

    | field | meaning |
    | --- | --- |
    | name, trace, cost | the recording and its costs |
    | curve | Points of fixed:0 .. fixed:K |
    | policies | Points of adaptive policies, fastest first |
    | oracle | Point of the clairvoyant schedule |
    | signals | speedup of rules on the recorded signals in hindsight; never below a policy |
    | crossed | the same, fitted on other prompts |
    | best_k | the smallest K within 1% of the best throughput |
    | comparisons | policies against the best fixed K, before Holm's correction |
    | acceptance | float64[K]: by depth, all rows; NaN: never tried |
    | calibration | float64[bins, 3]: count, mean confidence, share accepted; None: no confidence |
    | shares | {part of a round: share of the time} at best_k |
    | tokens_per_round | at best_k |
    """

    name: str
    trace: Trace
    cost: CostModel
    curve: tuple[Point, ...]
    policies: tuple[Point, ...]
    oracle: Point
    signals: float
    crossed: float
    best_k: int
    comparisons: tuple[Comparison, ...]
    acceptance: NDArray[np.float64]
    calibration: NDArray[np.float64] | None
    shares: Mapping[str, float]
    tokens_per_round: float

    @property
    def best(self) -> Point:
        """The point of the best fixed length."""
        return self.curve[self.best_k]

    @property
    def reach(self) -> float:
        """Share of the gap from the best fixed length to the oracle that signals could close."""
        gap = self.oracle.speedup.value - self.best.speedup.value
        share = (self.signals - self.best.speedup.value) / gap if gap > 1e-9 else 0.0
        return min(max(share, 0.0), 1.0)

    @property
    def pays(self) -> bool:
        """Whether the best fixed length is faster than plain decoding by its whole interval."""
        return self.best_k > 0 and self.best.speedup.low > 1


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
    adaptive = [make(policy, trace, cost) for policy in policies or DEFAULT_POLICIES]
    if not policies:
        features = {feature for feature, _ in trace.meta.features}
        adaptive = [policy for policy in adaptive if features.issuperset(policy.reads)]
    lengths = [fixed(k) for k in range(min(trace.K, cost.K) + 1)]
    every = {policy.name: policy for policy in (*lengths, *adaptive)}
    chosen, options = list(every.values()), (question.level, question.seed)
    found = evaluate(trace, chosen, cost, replicates, question.seed)
    curve = tuple(point(found, p.name, k, *options) for k, p in enumerate(lengths))
    others = [
        point(found, policy, None, *options)
        for policy in found.seconds
        if not policy.startswith("fixed:")
    ]
    draw = drawn_trace(trace, question.seed)
    ideal = oracle.resolve(draw, cost)
    planned = evaluate(draw, [ideal], cost, 1, question.seed)
    clairvoyant = point(planned, ideal.name, None, *options)
    best = best_length([1 / length.speedup.value for length in curve])
    fitted = reachable(trace, cost, question.seed)
    known = [fitted.hindsight, *(other.speedup.value for other in others)]
    rounds = replay(draw, fixed(best), question.seed)
    compared: list[Comparison] = []
    if trace.sequences >= MIN_PROMPTS:
        baseline = fixed(best).name
        compared = [
            compare_seconds(
                name, found.plain, (policy.name, found.seconds[policy.name]),
                (baseline, found.seconds[baseline]), question,
            )
            for policy in adaptive
            if policy.name != baseline
        ]  # fmt: skip
    return RecordingFigures(
        name,
        trace,
        cost,
        curve,
        tuple(sorted(others, key=lambda point: -point.speedup.value)),
        clairvoyant,
        max(known),
        fitted.crossed,
        best,
        tuple(compared),
        depth_acceptance(trace)[1],
        _calibration(trace),
        _shares(cost, rounds),
        trace.rows / len(rounds),
    )


def _calibration(trace: Trace) -> NDArray[np.float64] | None:
    if "confidence" not in dict(trace.meta.features) or trace.ratio is not None:
        return None
    values, _, label, _ = examples(trace, ("confidence",))
    if not len(label):
        return None
    table = reliability(np.clip(values[:, 0], 0, 1), label)
    return table[table[:, 0] >= LEAST_BIN]


def _shares(cost: CostModel, rounds: Any) -> dict[str, float]:
    """Shares of the time by part; in catch-up the drafter reads tokens that it has not yet seen."""
    total = float(cost.seconds(rounds).sum())
    parts = {
        "drafting": float(cost.draft[rounds.computed].sum()),
        "verification": float(cost.verify[rounds.drafted].sum()),
        "overhead": len(rounds) * cost.overhead,
    }
    parts["catch-up"] = max(total - sum(parts.values()), 0.0)
    return {part: seconds / total for part, seconds in parts.items()}


def short_name(name: str) -> str:
    """The recording's name without its folder and ending."""
    return Path(name).name.removesuffix(".parquet")


ENGINES = ("vllm", "sglang", "llamacpp", "transformers")
SETTINGS = Export("vllm", (), Path("-"), draft_model="DRAFT_MODEL")
"""A recording does not name the files of its draft model."""


@dataclass(frozen=True)
class EngineLine:
    """Text that an engine reads, as `simspec export` writes it."""

    engine: str
    text: str


def engine_lines(figures: RecordingFigures) -> list[EngineLine]:
    """Lines of the engines that have a counterpart of the drafter; none where drafts do not pay."""
    if not figures.pays:
        return []
    evidence = Evidence({figures.name: figures.trace}, (1,), {figures.name: (figures.cost,)})
    lines = []
    for engine in ENGINES:
        try:
            choice = choose(evidence, figures.best.policy)
            text = EXPORTS[engine].write(Request(evidence, choice, SETTINGS))
        except ValueError:  # the engine has no such drafter
            continue
        lines.append(EngineLine(engine, text.strip()))
    return lines


Key = tuple[str, str, float, float]
"""Target, rule, temperature, top-p: recordings that differ in them answer different questions."""


@dataclass(frozen=True)
class Recommendation:
    """The policy to run for one target and rule.

    | field | meaning |
    | --- | --- |
    | key | target, rule, temperature and top-p |
    | figures | of the fastest recording, at its best fixed length or under `gain` |
    | gain | the policy that is clearly faster than its best fixed length; None: none is |
    """

    key: Key
    figures: RecordingFigures
    gain: Comparison | None

    @property
    def speedup(self) -> Estimate:
        """Of the fixed length over plain decoding."""
        return self.figures.best.speedup

    @property
    def sentence(self) -> str:
        """The recommendation in words."""
        drafter, name = self.figures.trace.meta.drafter, short_name(self.figures.name)
        if self.gain is not None and not self.figures.pays and self.gain.speedup.low > 1:
            return (
                f"Draft with {drafter} under {self.gain.policy}: {times(self.gain.speedup)} over "
                f"plain decoding ({name}). No fixed length is clearly faster than plain decoding."
            )
        if not self.figures.pays:
            return (
                f"Do not draft: nothing is clearly faster than plain decoding. The best is "
                f"{drafter} with K = {self.figures.best_k} at {times(self.speedup)} ({name})."
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

    def reached(f: RecordingFigures) -> float:
        gain = gains.get(f.name)
        return f.best.speedup.value if gain is None else gain.speedup.value

    fastest = {key: max(members, key=reached) for key, members in groups.items()}
    return [Recommendation(key, f, gains.get(f.name)) for key, f in fastest.items()]


def times(speedup: Estimate) -> str:
    """'1.39x [1.36, 1.43]'."""
    return speedup.text(unit="x")
