"""The audit of an emitted run: every token against the target that should have picked or drawn it. A report, not a boolean."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from scipy import stats

from real.audit.against_recording import Reference, refer
from real.audit.drafter_bias import Lean, lean, offered
from real.audit.run_file import Emitted, RunError
from real.audit.sampling_tests import Floor, floor
from real.audit.teacher_forcing import Gaps, Odds, gaps, logits_of, odds
from real.draft import Drafter
from real.equality import ALLOWED, THIN
from real.model.target import Target
from real.progress import Progress, quiet
from simspec import Trace


@dataclass(frozen=True)
class Tolerance:
    """What rounding may do in a dtype: a gap up to max(nats, ulps units in the last place) is excused, in at most this share of tokens.

    float64: 1e-9 nats. float32: 1e-4, the engine's own near-tie. bfloat16: 0.3; texts of its own differ in about 0.2% of tokens.
    """

    dtype: str
    nats: float
    ulps: float
    share: float


TOLERANCES = tuple(
    Tolerance(*line)
    for line in (
        ("float64", 1e-9, 3, ALLOWED),
        ("float32", THIN, 3, ALLOWED),
        ("bfloat16", 0.3, 3, 0.02),
    )
)


@dataclass(frozen=True)
class Divergence:
    """A token that is not the target's pick: where, which, by how much (the fields of `Gaps`), and whether rounding excuses it."""

    text: int
    sequence: int
    position: int
    token: int
    best: int
    gap: float
    ulps: float
    margin: float
    excused: bool


@dataclass(frozen=True)
class Impossible:
    """A token whose probability under the processed distribution is 0; excused where top-k or top-p cut within rounding of it."""

    text: int
    sequence: int
    position: int
    token: int
    excused: bool


@dataclass(frozen=True)
class Audit:
    """What an audit found.

    | field | meaning |
    | --- | --- |
    | rule | greedy, coupled or rejection |
    | texts, tokens | judged |
    | tolerance | of the coarser of two dtypes, the run's and the audit's |
    | near_ties, ties | positions whose best two scores lie within the tolerance, and with no gap at all; greedy and coupled rules |
    | divergences | tokens that are not the target's pick; greedy and coupled rules |
    | impossible | tokens of probability 0; coupled and rejection rules |
    | floor | whether the rest are draws from p; coupled and rejection rules, else None |
    | reference | the run against a recording, where one was given |
    | alarms | what failed, in words; empty for a clean run |
    """

    rule: str
    texts: int
    tokens: int
    tolerance: Tolerance
    near_ties: int
    ties: int
    divergences: tuple[Divergence, ...]
    impossible: tuple[Impossible, ...]
    floor: Floor | None
    reference: Reference | None
    alarms: tuple[str, ...]

    @property
    def clean(self) -> bool:
        """Nothing that rounding and chance do not explain."""
        return not self.alarms

    @property
    def first(self) -> tuple[Divergence, ...]:
        """The first divergence of each text that has one: what follows it may have no other cause."""
        found: dict[int, Divergence] = {}
        for d in self.divergences:
            found.setdefault(d.text, d)
        return tuple(found.values())

    @property
    def failures(self) -> tuple[Divergence | Impossible, ...]:
        """Tokens that nothing excuses."""
        return tuple(d for d in (*self.divergences, *self.impossible) if not d.excused)

    def summary(self) -> dict:
        """For machines; what is infinite is null."""
        return _finite(
            {
                "clean": self.clean,
                "alarms": self.alarms,
                "rule": self.rule,
                "texts": self.texts,
                "tokens": self.tokens,
                "tolerance": asdict(self.tolerance),
                "near_ties": self.near_ties,
                "ties": self.ties,
                "divergences": len(self.divergences),
                "largest_gap_nats": max((d.gap for d in self.divergences), default=0.0),
                "largest_gap_ulps": max((d.ulps for d in self.divergences), default=0.0),
                "first_divergences": [asdict(d) for d in self.first],
                "failures": [asdict(d) for d in self.failures],
                "impossible": len(self.impossible),
                "floor": None if self.floor is None else asdict(self.floor),
                "reference": None if self.reference is None else self.reference.summary(),
            }
        )


def tolerance_of(*dtypes: str) -> Tolerance:
    """That of the coarsest of these dtypes."""
    return max((t for t in TOLERANCES if t.dtype in dtypes), key=lambda t: t.nats)


def audit(
    target: Target,
    run: Emitted,
    against: Trace | None = None,
    drafter: Drafter | None = None,
    risk: float = 1e-4,
    progress: Progress = quiet,
) -> Audit:
    """Forces each text of `run` through `target` and judges every token by the rule that the run says it was made under.

    Greedy and coupled: a token is the pick, or its gap is at most max(nats, ulps) of the tolerance, or it is a failure; of what is excused
    no more than the tolerance's share, by a binomial test at `risk`. Coupled and rejection: no token of probability 0, and the tests of
    `floor` at `risk`; with the `drafter` of a run under the rejection rule that includes whether the text leans to it. `against`: a
    recording of the same prompts, to which `refer` holds texts and rounds. The texts' own rounds are not needed. ValueError, one line, for
    tokens or a recording that are not this target's.
    """
    decoder, rule = target.decoder, run.header.how
    if not 0 < risk < 1:
        raise ValueError(f"risk is {risk}; expected a chance in (0, 1)")
    run.check_vocabulary(decoder.config.vocab)
    tolerance = tolerance_of(run.header.dtype, str(decoder.dtype).removeprefix("torch."))
    dtype, slack = getattr(torch, tolerance.dtype), tolerance.nats
    picked, drawn, leaned, where = [], [], [], []
    for i, text in enumerate(run.texts):
        q = (
            offered(target, drafter, rule, text)
            if drafter is not None and rule.name == "rejection"
            else None
        )
        for at, logits in logits_of(decoder, text.prompt, text.token):
            token = text.token[at : at + len(logits)]
            if rule.name != "rejection":
                picked.append(gaps(rule, logits, token, text.sequence, at, dtype, slack))
            if rule.name != "greedy":
                drawn.append(odds(rule, logits, token, text.sequence, at, slack))
            if q is not None:
                leaned.append(lean(rule.probs(logits), q[at : at + len(logits)], token))
        where += [(i, text.sequence, at, token) for at, token in enumerate(text.token)]
        progress("auditing", i + 1, len(run.texts))
    alarms: list[str] = []
    apart, near, ties = (), 0, 0
    if picked:
        g = _joined(Gaps, picked)
        apart = tuple(
            Divergence(
                *where[n],
                int(g.best[n]),
                float(g.gap[n]),
                float(g.ulps[n]),
                float(g.margin[n]),
                _excused(tolerance, g, n),
            )
            for n in np.flatnonzero(g.best != [token for *_, token in where])
        )
        near, ties = int((g.margin <= slack).sum()), int((g.margin == 0).sum())
        alarms += too_many(
            apart, len(where), tolerance.share, risk, "tokens are not the target's pick"
        )
    odd, law = (), None
    if drawn:
        o = _joined(Odds, drawn)
        never = ~np.isfinite(o.surprise)
        odd = tuple(Impossible(*where[n], bool(o.edge[n])) for n in np.flatnonzero(never))
        alarms += too_many(odd, len(where), tolerance.share, risk, "tokens have probability 0")
        if not never.all():
            toward = _only(_joined(Lean, leaned), ~never) if len(leaned) == len(drawn) else None
            law = floor(_only(o, ~never), toward, risk)
            alarms += (
                [f"not drawn from the target's distributions: {', '.join(law.alarms)}"]
                if law.alarms
                else []
            )
    reference = None
    if against is not None:
        if rule.name == "rejection":
            raise RunError(
                "a run under the rejection rule has texts of its own; leave the recording out, its law is audited without"
            )
        both = tolerance_of(run.header.dtype, against.meta.dtype)
        reference = refer(run, against, both.nats)
        flips = reference.target_flips + reference.draft_flips
        alarms += too_many(
            reference.failures + flips,
            reference.compared,
            both.share,
            risk,
            "differences from the recording",
        )
    return Audit(
        rule.name,
        len(run.texts),
        len(where),
        tolerance,
        near,
        ties,
        apart,
        odd,
        law,
        reference,
        tuple(alarms),
    )


def too_many(found: Sequence, of: int, share: float, risk: float, what: str) -> list[str]:
    """At most one alarm: differences that nothing excuses, or excused ones so many that a share of them this large has chance < risk."""
    bad = sum(not f.excused for f in found)
    if bad:
        return [f"{bad} of {of} {what}"]
    if found and stats.binom.sf(len(found) - 1, of, share) < risk:
        return [
            f"{len(found)} of {of} {what}, each within rounding, yet more than a share of {share:g} allows"
        ]
    return []


def _excused(tolerance: Tolerance, g: Gaps, n: int) -> bool:
    return bool(g.near[n] <= tolerance.nats or g.ulps[n] <= tolerance.ulps)


def _joined(kind, parts):
    return kind(
        *(
            np.concatenate([getattr(part, name) for part in parts])
            for name in kind.__dataclass_fields__
        )
    )


def _only(columns, rows: np.ndarray):
    return type(columns)(*(getattr(columns, name)[rows] for name in columns.__dataclass_fields__))


def _finite(value):
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
