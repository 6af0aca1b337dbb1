"""Arguments of a policy tuned on one half of the prompts and reported on the other."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simspec.cost.gate import no_interval
from simspec.cost.model import CostModel
from simspec.numerics.stats import MIN_PROMPTS, Estimate, holm
from simspec.output.frames import frame
from simspec.policies import KINDS, make, parse, read_arguments
from simspec.policy.policy import Policy, PolicyError
from simspec.policy.predictor import split_by_task
from simspec.policy_kind import Argument
from simspec.replay.evaluation import evaluate, priced_recordings
from simspec.replay.replay import replays
from simspec.replay.sweep import is_random
from simspec.reports.comparison import UNSETTLED, paired_p
from simspec.trace.trace import Trace

PER_ARGUMENT = 8
"""Settings of the first design for each tuned argument; the design is a power of 2."""
TINY = 1e-12
RESAMPLES = 9999


@dataclass(frozen=True)
class Search:
    """How arguments are looked for."""

    trials: int = 256  # settings to replay, about
    replicates: int = 4  # draws of each policy that draws; those reported follow those tuned with
    seed: int = 0  # of the design, of draws and of resamples
    level: float = 0.95  # of the intervals; 1 - level is the chance of any false 'holds'


@dataclass(frozen=True)
class Half:
    """One half of a recording's prompts: speedups over plain decoding, paired by prompt.

    p: `paired_p` of modelled seconds, of this recording alone; 1 at costs without intervals.
    """

    default: Estimate
    tuned: Estimate
    difference: Estimate
    p: float

    @property
    def gain(self) -> float:
        """tuned / default - 1."""
        return self.tuned.value / self.default.value - 1


@dataclass(frozen=True)
class Tuned:
    """One recording under the default and the tuned policy.

    | verdict | meaning |
    | --- | --- |
    | default kept | no other setting was faster on the prompts tuned on |
    | holds | faster on held-out prompts: p is at most 1 - level |
    | over-fitted | faster on the prompts tuned on by their interval, and not on those held out |
    | no gain | faster on neither |
    | not settled | the costs give no intervals |

    p: of the held-out half, after Holm's step-down over the recordings.
    """

    recording: str
    fit: Half
    held_out: Half
    p: float
    verdict: str


@dataclass(frozen=True)
class Tuning:
    """The tuned policy: its texts, the number of settings replayed, and each recording."""

    default: str
    tuned: str
    settings: int
    recordings: tuple[Tuned, ...]

    def gain(self, half: str) -> float:
        """Geometric mean over recordings of tuned / default, minus 1; half: fit or held_out."""
        gains = [1 + getattr(recording, half).gain for recording in self.recordings]
        return float(np.exp(np.log(gains).mean()) - 1)


@dataclass(frozen=True)
class _Problem:
    """A tuning task: fixed arguments, the space of the others, and the halves to tune on."""

    name: str
    kept: Mapping[str, Any]
    space: Mapping[str, Argument]
    halves: tuple[tuple[Trace, CostModel], ...]
    search: Search

    def text(self, point: NDArray[np.float64]) -> str:
        values = {key: where.value(x) for (key, where), x in zip(self.space.items(), point)}
        return policy_text(self.name, {**self.kept, **values})

    def seconds(self, text: str) -> NDArray[np.float64]:
        """Of each half, averaged over draws."""
        found = []
        for trace, cost in self.halves:
            policy = _chain(text, trace, cost)
            draws = self.search.replicates if is_random(trace, policy) else 1
            seeds = range(self.search.seed, self.search.seed + draws)
            charged = cost.reading(policy.reads)
            rounds = replays(trace, policy, seeds, cost)
            found.append(np.mean([charged.seconds(draw).sum() for draw in rounds]))
        return np.array(found)


def tune(
    traces: Mapping[str, Trace],
    policy: str,
    costs: Mapping[str, Any],
    search: Search | None = None,
    progress: Callable[[int], None] = lambda settings: None,
) -> Tuning:
    """Arguments of least mean log time over the recordings, on every second prompt of each task.

    Arguments given in the policy's text are kept. Differential evolution from a Sobol design
    (Storn and Price 1997; scipy): replays are steps of their arguments, some of which are whole
    numbers or names, so that a simplex would stall. progress receives the number of settings
    replayed. ValueError (PolicyError) for a policy without arguments to tune, and for fewer than 8
    prompts in a half.
    """
    search = search or Search()
    name, kept, space = _parts(policy)
    parts = {recording: split_by_task(trace) for recording, trace in traces.items()}
    for recording, halves_of in parts.items():
        if (fewest := min(map(len, halves_of))) < MIN_PROMPTS:
            raise ValueError(
                f"{recording}: {fewest} prompts in a half are too few for an interval: record "
                f" at least {2 * MIN_PROMPTS}"
            )
    priced = {name: cost for name, _, cost in priced_recordings(traces, costs)}
    halves = tuple((traces[r].select(parts[r][0]), priced[r]) for r in traces)
    problem = _Problem(name, kept, space, halves, search)
    start = default_text(policy)
    tuned, settings = _search(problem, start, progress)
    recordings = [
        _reported(recording, trace, priced[recording], parts[recording], (start, tuned), search)
        for recording, trace in traces.items()
    ]
    return Tuning(start, tuned, settings, corrected(recordings, search.level))


def corrected(recordings: Sequence[Tuned], level: float) -> tuple[Tuned, ...]:
    """The recordings with Holm's p over all of them, and verdicts; `default kept` stays."""
    adjusted = holm(np.array([row.held_out.p for row in recordings]))
    return tuple(
        replace(row, p=float(p), verdict=row.verdict or _verdict(row, float(p), level))
        for row, p in zip(recordings, adjusted)
    )


def _verdict(row: Tuned, p: float, level: float) -> str:
    if row.held_out.difference.value > 0 and p <= 1 - level:
        return "holds"
    return "over-fitted" if row.fit.difference.low > 0 else "no gain"


def default_text(policy: str) -> str:
    """The policy that tuning starts from: its text, with a value for arguments without default."""
    name, kept, _ = _parts(policy)
    return policy_text(name, {**KINDS[name].required, **kept})


def policy_text(name: str, settings: Mapping[str, Any]) -> str:
    """name:key=value,... that reads back as the policy."""
    if not settings:
        return name
    words = {True: "true", False: "false", None: "none"}
    texts = (
        f"{key}={words[value] if value is None or isinstance(value, bool) else value}"
        for key, value in settings.items()
    )
    return f"{name}:{','.join(texts)}"


def _parts(policy: str) -> tuple[str, dict[str, Any], dict[str, Argument]]:
    """(the policy's name, arguments that were given, what is tuned)."""
    name, _, rest = policy.partition(":")
    if name not in KINDS:
        parse(name)  # the error of an unknown name
    space = KINDS[name].space
    if not space:
        tuned = ", ".join(name for name, kind in KINDS.items() if kind.space)
        raise PolicyError(f"policy {name!r} has nothing to tune, expected one of {tuned}")
    positional, named = read_arguments(rest)
    try:
        kept = dict(signature(KINDS[name].make).bind_partial(*positional, **named).arguments)
    except TypeError as error:
        raise PolicyError(f"policy {policy!r}: {error}: expected name:arg,key=value") from None
    free = {key: where for key, where in space.items() if key not in kept}
    if not free:
        raise PolicyError(f"policy {policy!r} gives every argument that is tuned: leave some out")
    return name, kept, free


def _chain(text: str, trace: Trace, cost: CostModel) -> Policy:
    policy = make(text, trace, cost)
    assert isinstance(policy, Policy)
    return policy


def _search(problem: _Problem, start: str, progress: Callable[[int], None]) -> tuple[str, int]:
    """(the text of the best setting, settings replayed); the start is one of them."""
    from scipy.optimize import differential_evolution

    reference = problem.seconds(start)
    found = {start: 0.0}

    def loss(point: NDArray[np.float64]) -> float:
        text = problem.text(point)
        if text not in found:
            try:
                found[text] = float(np.log(problem.seconds(text) / reference).mean())
            except ValueError:  # deeper than a recording, or no draw lengths left
                found[text] = np.inf
            progress(len(found))
        return found[text]

    space = tuple(problem.space.values())
    members = 1 << (PER_ARGUMENT * len(space) - 1).bit_length()
    members = min(members, 1 << (problem.search.trials.bit_length() - 2))
    differential_evolution(
        loss,
        [where.bounds for where in space],
        maxiter=max(problem.search.trials // members - 1, 1),
        popsize=max(members // len(space), 1),
        tol=0.0,
        rng=np.random.default_rng(problem.search.seed),
        init="sobol",
        polish=False,
        integrality=[where.whole for where in space],
    )
    best = min(found, key=lambda text: found[text])
    return (best if found[best] < -TINY else start), len(found)


def _reported(
    recording: str,
    trace: Trace,
    cost: CostModel,
    parts: tuple[NDArray[np.int64], NDArray[np.int64]],
    texts: tuple[str, str],
    search: Search,
) -> Tuned:
    """Both halves, before `corrected`: that tuned on with the draws tuned with, else others."""
    fit = _half(trace.select(parts[0]), cost, texts, search, search.seed)
    held_out = _half(trace.select(parts[1]), cost, texts, search, search.seed + search.replicates)
    verdict = UNSETTLED if no_interval(cost) else ""
    verdict = "default kept" if texts[0] == texts[1] else verdict
    return Tuned(recording, fit, held_out, held_out.p, verdict)


def _half(trace: Trace, cost: CostModel, texts: tuple[str, str], search: Search, seed: int) -> Half:
    policies = [_chain(text, trace, cost) for text in dict.fromkeys(texts)]
    found = evaluate(trace, policies, cost, search.replicates, seed)
    names = list(found.seconds)  # one name where the default is kept
    before, after = names[0], names[-1]
    options: dict[str, Any] = {"level": search.level, "seed": search.seed}
    times = found.seconds[after], found.seconds[before]
    return Half(
        found.speedup(before, **options),
        found.speedup(after, **options),
        found.gain(after, before, **options),
        1.0 if found.unsettled else paired_p(found.plain, *times, RESAMPLES, search.seed),
    )


def tuning_frame(tuning: Tuning, covered: str) -> Any:
    """Two rows a recording, tuned on and held out, and the command that sweeps the result."""
    names = ("default", "tuned", "difference")
    rows = [
        {"recording": row.recording, "half": half, "prompts": figures.default.prompts}
        | {name: getattr(figures, name) for name in names}
        | {"p": p, "verdict": verdict}
        for row in tuning.recordings
        for half, figures, p, verdict in (
            ("tuned on", row.fit, None, ""), ("held out", row.held_out, row.p, row.verdict),
        )
    ]  # fmt: skip
    notes = [
        f"default {tuning.default}; {tuning.settings} settings replayed; "
        f"gain {tuning.gain('fit'):+.1%} on the prompts tuned on, "
        f"{tuning.gain('held_out'):+.1%} on those held out.",
        covered,
    ]
    if len(tuning.recordings) > 1:
        notes.append(f"p by Holm over {len(tuning.recordings)} recordings.")
    if tuning.tuned != tuning.default:
        notes.append(f"simspec sweep --policy {shlex.quote(tuning.tuned)}")
    formats = {"default": ".3f", "tuned": ".3f", "difference": "+.3f", "p": ".2g"}
    return frame(rows, names=2, notes=notes, formats=formats, optional=("default", "p"))
