"""The recommendation: one drafter and draft length for each target and verification rule."""

from collections.abc import Sequence
from dataclasses import dataclass

from simspec.numerics.stats import Interval
from simspec.page.figures import RecordingFigures, short_name
from simspec.reports.comparison import Comparison, Question, corrected

Key = tuple[str, str, float, float]
"""Target, rule, temperature, top-p: recordings that differ in them answer different questions."""


@dataclass(frozen=True)
class Recommendation:
    """What to run for one target and rule.

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
    def speedup(self) -> Interval:
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
        d = self.gain.difference
        return f"{text} {self.gain.policy} adds {d.value:.2f} [{d.low:.2f}, {d.high:.2f}] to that."


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


def times(speedup: Interval) -> str:
    """'1.39x [1.36, 1.43]'."""
    return f"{speedup.value:.2f}x [{speedup.low:.2f}, {speedup.high:.2f}]"
