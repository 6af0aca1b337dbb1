"""Estimates by trimmed means of timing blocks, the CostModel made of them, and warnings."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import hypot, inf, isfinite, nan, sqrt
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtri, stdtrit

from real.decode.features import PREDICTOR_NAMES
from real.decode.verify import DRAFTING, OTHER, POLICY
from real.measure.timing import (
    ALONE,
    DRAFT,
    FEATURES,
    FIXED,
    MAX_BACKLOG,
    NODES,
    PASS,
    PLAIN,
    WIDTH,
    Job,
    Samples,
    Timed,
    measured_lengths,
)
from simspec import CostModel
from simspec.cost.provenance import CostPrecision

LEVEL = 0.95
TRIM = 0.2
"""Share of the weight that is left out at each end: bursts of a shared machine are one-sided."""
FEWEST_BLOCKS = 4
"""Fewest blocks of an interval."""


class Estimate(NamedTuple):
    """Seconds, the half-width of their interval (nan: unknown), and how many blocks were timed."""

    seconds: float
    half_width: float
    samples: int


ZERO = Estimate(0.0, 0.0, 0)


def estimate(timed: Timed) -> Estimate:
    """Trimmed mean over blocks of their rounds' means, each block by its weight.

    The half-width is Student's with the error of a trimmed mean (Tukey and McLaughlin 1963),
    infinite below FEWEST_BLOCKS. ValueError for no round.
    """
    if not len(timed.seconds):
        raise ValueError("no round to take a mean of; expected at least one")
    rounds: np.ndarray = np.bincount(timed.block)
    weight: np.ndarray = np.bincount(timed.block, timed.weight)
    if not weight.any():
        weight = np.minimum(rounds, 1.0)
    counted = weight > 0
    value = np.bincount(timed.block, timed.seconds)[counted] / rounds[counted]
    weight = weight[counted] / rounds[counted]
    mean, error = trimmed_mean(value, weight)
    return Estimate(mean, error, len(value))


def trimmed_mean(value: np.ndarray, weight: np.ndarray) -> tuple[float, float]:
    """(mean of the middle 1 - 2 TRIM of the weight, half-width of its interval)."""
    order = np.argsort(value, kind="stable")
    value, share = value[order], weight[order] / weight.sum()
    end = np.cumsum(share)
    inside = np.clip(end, TRIM, 1 - TRIM) - np.clip(end - share, TRIM, 1 - TRIM)
    middle = float(value[np.searchsorted(end, 0.5)])
    # around the median, so that equal seconds give exactly themselves
    mean = middle + float(inside @ (value - middle)) / (1 - 2 * TRIM)
    blocks = 1 / float((share**2).sum())
    if len(value) < FEWEST_BLOCKS:
        return mean, inf
    places = np.minimum(np.searchsorted(end, (TRIM, 1 - TRIM)), len(value) - 1)
    low, high = value[places]
    winsorized = np.clip(value, low, high)
    variance = float(share @ (winsorized - share @ winsorized) ** 2) * blocks / (blocks - 1)
    kept = max(blocks * (1 - 2 * TRIM), 2.0)
    error = sqrt(variance / blocks) / (1 - 2 * TRIM)
    return mean, float(stdtrit(kept - 1, (1 + LEVEL) / 2)) * error


def difference(a: Estimate, b: Estimate) -> Estimate:
    """a - b of independent estimates; the half-widths add as deviations do."""
    half_width = hypot(a.half_width, b.half_width)
    return Estimate(a.seconds - b.seconds, half_width, min(a.samples, b.samples))


def above_zero(e: Estimate) -> Estimate:
    """The estimate with at least 0 seconds."""
    return e._replace(seconds=max(e.seconds, 0.0))


def filled(measured: Mapping[int, Estimate], most: int) -> list[Estimate]:
    """Estimates 0 .. most: seconds between measured ones are linear, without width or sample."""
    sizes = sorted(measured)
    line = np.interp(range(most + 1), sizes, [measured[size].seconds for size in sizes])
    return [measured.get(i, Estimate(float(line[i]), nan, 0)) for i in range(most + 1)]


def mean_of(estimates: Iterable[Estimate]) -> Estimate:
    """Mean of independent estimates."""
    all_ = list(estimates)
    half_width = hypot(*(e.half_width for e in all_)) / len(all_)
    mean = float(np.mean([e.seconds for e in all_]))
    return Estimate(mean, half_width, sum(e.samples for e in all_))


def width_or_none(e: Estimate) -> float | None:
    """The half-width as files hold it."""
    return e.half_width if isfinite(e.half_width) and e.samples else None


def relative_width(timed: Timed, floor: float) -> float:
    """Half-width over max(estimate, floor); infinite for too few blocks."""
    if not len(timed.seconds):
        return inf
    e = estimate(timed)
    scale = max(e.seconds, floor)
    return e.half_width / scale if scale else (inf if e.half_width else 0.0)


DRIFT = 0.02
"""Two estimates of plain decoding may differ by this share,"""
WIDTHS = 1.7
"""or by this number of half-widths of their 95% interval: a false alarm in a thousand sittings."""
MOST_DISTURBED = 0.5
"""Share of blocks that may be left out."""
LEAST_BLOCKS = 8
"""Timing blocks of each of two passes that are compared."""
FASTER, SURE = 0.05, 5.0
"""A wider pass is faster beyond noise where it is by this share of a plain step, and by this
number of standard errors: some hundred pairs of passes are compared."""


def drift_warning(first: Timed, second: Timed, what: str) -> list[str]:
    """One line where two measurements of plain decoding differ beyond DRIFT and noise."""
    if not (len(first.seconds) and len(second.seconds)):
        return []
    base = estimate(first)
    shift = difference(estimate(second), base)
    if abs(shift.seconds) <= max(DRIFT * base.seconds, WIDTHS * shift.half_width):
        return []
    return [
        f"plain decoding drifted: {what} differ by {shift.seconds / base.seconds:+.1%} (interval "
        f"+-{shift.half_width / base.seconds:.1%}), measure again"
    ]


def halves(timed: Timed) -> tuple[Timed, Timed]:
    """The first and the second half of rounds in time."""
    cut = len(timed.seconds) // 2
    return Timed(*(part[:cut] for part in timed)), Timed(*(part[cut:] for part in timed))


def disturbed_warning(blocks: int, disturbed: int) -> list[str]:
    """One line where most timing blocks were left out."""
    if disturbed <= MOST_DISTURBED * blocks:
        return []
    return [
        f"{disturbed} of {blocks} timing blocks were disturbed by other work and left out; "
        "measure again on a quieter machine"
    ]


def faster_wider_warning(cost: CostModel) -> list[str]:
    """One line where a pass over more rows is faster than one over fewer, beyond noise.

    Such costs are not fit to publish: the narrow pass, often the plain step, is handicapped.
    """
    found = faster_wider(cost)
    if found is None:
        return []
    narrow, wide, gap = found
    return [
        f"a pass of {wide + 1} rows is faster than one of {narrow + 1} by "
        f"{gap:.0%} of a plain step: no speedup over it is fit to publish"
    ]


def faster_wider(cost: CostModel) -> tuple[int, int, float] | None:
    """(draft tokens of a pass, of a wider and faster one, the gap in plain steps), beyond noise."""
    precision = cost.precision
    if precision is None or not precision.replicates:
        return None
    drawn = np.array(precision.replicates["verify"])
    drawn[:, np.array(precision.samples["verify"]) < LEAST_BLOCKS] = np.nan  # too few to be sure
    gap = drawn[:, :, None] - drawn[:, None, :]  # of a pass over a pass
    mean, error = gap.mean(0), gap.std(0, ddof=1)
    with np.errstate(invalid="ignore"):
        worst = np.triu(np.where(mean > SURE * error, mean, 0.0), 1)
    narrow, wide = np.unravel_index(int(worst.argmax()), worst.shape)
    if worst[narrow, wide] <= FASTER:
        return None
    return int(narrow), int(wide), float(worst[narrow, wide])


@dataclass(frozen=True)
class Priced:
    """Properties of a drafter on which the assembly of its costs depends."""

    K: int
    nodes: int  # largest tree; 0: chains alone
    resumes: bool  # verification skips layers that its drafts have run: its passes are its own
    computes: bool  # it runs a model, so that a draft can slow the pass after it


def timed_cost(target: Samples, own: Samples, priced: Priced) -> CostModel:
    """Costs as `real.measure.measure` defines them, from rounds of the target and the drafter's.

    ValueError where some measured draft length never occurred.
    """
    plain = target.seconds(Job(PLAIN)) + target.seconds(Job(PLAIN, 1))
    policy = _plain(target, (POLICY,))
    kept = ZERO
    without = own.seconds(Job(FIXED, 0), (OTHER,))
    if len(without.seconds):
        kept = above_zero(difference(estimate(without), _plain(target, (OTHER,))))
    lengths = measured_lengths(priced.K)
    for length in lengths:
        if not len(own.drafting(length).seconds):
            raise ValueError(
                f"the drafter never drafted {length} tokens in a round; "
                "measure with a smaller depth, or a longer context"
            )
    passes = {0: _plain(target, PASS)} | {
        job.size: estimate(target.seconds(job, PASS))
        for job in target.rounds
        if job.kind in (ALONE, NODES)
    }

    def own_pass(job: Job) -> Estimate:
        return difference(estimate(own.seconds(job, PASS)), kept._replace(half_width=0.0))

    behind = {j: own_pass(Job(FIXED, j)) for j in lengths}
    verify = filled(passes, max(priced.K, priced.nodes))
    if priced.resumes:
        trees = {job.size: own_pass(job) for job in own.rounds if job.kind == NODES}
        verify[1:] = _resumed(behind | trees, verify)
    after = ZERO
    if priced.computes and not priced.resumes:
        mean = mean_of(difference(behind[j], passes[j]) for j in lengths)
        after = mean if mean.seconds > mean.half_width else ZERO  # a draft can only slow a pass
    draft = {0: ZERO} | {j: _draft(own, j, policy, after) for j in lengths}
    parts: dict[str, list[Estimate]] = {
        "draft": filled(draft, priced.K),
        "verify": verify,
        "catch_up": _catch_up(own),
    }
    single = {
        "overhead": Estimate(
            policy.seconds + kept.seconds, policy.half_width + kept.half_width, policy.samples
        ),
        "baseline": estimate(plain),
        "feature": _feature(own, policy.seconds),
        "node": _node(own),
    }

    def each(of: Callable[[Estimate], Any]) -> dict[str, Any]:
        lists = {name: [of(e) for e in part] for name, part in parts.items()}
        return lists | {name: of(e) for name, e in single.items()}

    widths, samples = each(width_or_none), each(lambda e: e.samples)
    precision = CostPrecision(LEVEL, widths, samples, after_draft=after.seconds)
    seconds = each(lambda e: e.seconds)
    return CostModel(**seconds, precision=precision, predictor=_predictor(own))


def _resumed(behind: Mapping[int, Estimate], verify: list[Estimate]) -> list[Estimate]:
    """Passes 1 .. after drafts; between measured ones their difference to `verify` is linear.

    Passes jump at some numbers of rows, and the difference does not.
    """
    lengths = sorted(behind)
    extra = [behind[j].seconds - verify[j].seconds for j in lengths]
    rows = range(len(verify))
    line = np.interp(rows, lengths, extra)
    between = (Estimate(verify[j].seconds + float(line[j]), nan, 0) for j in rows)
    return [above_zero(behind.get(j, e)) for j, e in enumerate(between) if j]


def _plain(target: Samples, phases: tuple[int, ...]) -> Estimate:
    return estimate(target.seconds(Job(PLAIN), phases) + target.seconds(Job(PLAIN, 1), phases))


def _draft(own: Samples, j: int, policy: Estimate, after: Estimate) -> Estimate:
    drafting = above_zero(difference(estimate(own.drafting(j)), policy))
    return above_zero(drafting._replace(seconds=drafting.seconds + after.seconds))


def _catch_up(own: Samples) -> list[Estimate]:
    """catch_up[0 .. MAX_BACKLOG] of one-token drafts; a missing backlog costs as the one before."""
    base, extra = estimate(own.drafting(1)), [ZERO]
    for backlog in range(1, MAX_BACKLOG + 1):
        seconds = own.seconds(Job(FIXED, 1), DRAFT, backlog)
        one = above_zero(difference(estimate(seconds), base)) if len(seconds.seconds) else None
        extra.append(one or Estimate(extra[-1].seconds, float("nan"), 0))
    return extra


def _feature(own: Samples, policy: float) -> Estimate:
    """Time to read the features of one token, beyond calling the policy."""
    # a round of j tokens calls the policy j + 1 times, which overhead and draft price
    for job in own.rounds:
        if job.kind == FEATURES and job.size:
            read = own.seconds(job, (POLICY,))
            extra = (read.seconds - policy * (job.size + 1)) / job.size
            return above_zero(estimate(read._replace(seconds=extra)))
    return ZERO


def _predictor(own: Samples) -> float | None:
    """Seconds of a predictor's value of one token; None where none was timed.

    Extra time of rounds that read it, in the policy's phase and after the pass, over rounds of as
    many tokens that read nothing. It includes the target's part, once a round.
    """
    for job in own.rounds:
        if job.kind in PREDICTOR_NAMES and job.size:
            phases = POLICY, OTHER
            without = estimate(own.seconds(Job(FIXED, job.size), phases))
            extra = difference(estimate(own.seconds(job, phases)), without)
            return max(extra.seconds, 0.0) / job.size
    return None


def _node(own: Samples) -> Estimate:
    """Slope of drafting time over the rows of a drafter's pass; zero for fewer than two widths."""
    widths = {
        job.size: estimate(own.seconds(job, (DRAFTING,))) for job in own.rounds if job.kind == WIDTH
    }
    if len(widths) < 2:
        return ZERO
    slope = float(np.polyfit(list(widths), [e.seconds for e in widths.values()], 1)[0])
    return Estimate(max(slope, 0.0), float("nan"), min(e.samples for e in widths.values()))


DRAWS, KEPT = 200, 64
"""Replicates that intervals come from, and those that a file holds."""

Ratios = dict[str, np.ndarray]
"""The parts of a cost in plain steps."""


def draw_blocks(blocks: int, seed: int, draws: int = DRAWS) -> np.ndarray:
    """int64 [draws, blocks]: how often each block is drawn, with replacement."""
    if not blocks:
        return np.zeros((0, 0), np.int64)
    return np.random.default_rng(seed).multinomial(blocks, np.full(blocks, 1 / blocks), size=draws)


def replicate_costs(
    target: Samples, own: Samples, priced: Priced, cost: CostModel, draws: np.ndarray
) -> list[Ratios]:
    """`timed_cost` of every row of `draws`, in plain steps.

    They lie about `cost`, wider than resamples by Student's t of their blocks over the normal.
    """
    assert cost.precision is not None  # timed_cost gives one
    point = _ratios(cost)
    wider = {part: _widening(cost.precision.samples.get(part, 0)) for part in point}
    found = []
    for drawn in draws:
        target.draws = own.draws = drawn
        try:
            resampled = _ratios(timed_cost(target, own, priced))
        finally:
            target.draws = own.draws = None
        found.append(
            {p: np.maximum(point[p] + wider[p] * (r - point[p]), 0) for p, r in resampled.items()}
        )
    return found


def with_replicates(cost: CostModel, replicates: Sequence[Ratios], kept: int = KEPT) -> CostModel:
    """The cost with intervals from all replicates, and the first `kept` of them for its file."""
    precision = cost.precision
    assert precision is not None  # as above
    if len(replicates) < 2:
        return cost
    half_width, point = dict(precision.half_width), _ratios(cost)
    for part in set(half_width) - {"baseline"}:
        away = np.abs(np.array([r[part] for r in replicates]) - point[part])
        error = np.quantile(away, LEVEL, axis=0) * cost.baseline
        samples = precision.samples[part]
        if isinstance(samples, list):
            half_width[part] = [float(e) if n > 1 else None for e, n in zip(error, samples)]
        else:
            half_width[part] = float(error) if samples > 1 else None
    rows = {
        part: [np.round(r[part], 5).tolist() for r in replicates[:kept]] for part in replicates[0]
    }
    return replace(cost, precision=replace(precision, half_width=half_width, replicates=rows))


def _ratios(cost: CostModel) -> Ratios:
    names = ["draft", "verify", "catch_up", "overhead", "feature", "node"]
    names += ["predictor"] if cost.predictor is not None else []
    return {name: np.asarray(getattr(cost, name), np.float64) / cost.baseline for name in names}


def _widening(samples: Any) -> Any:
    """Widening by an entry's number of blocks; entries between measured ones have the fewest."""
    counts = np.array(samples, np.float64)
    measured = counts[counts > 1]
    if not measured.size:
        return 1.0
    blocks = np.where(counts > 1, counts, measured.min())
    # a resample holds none to several of an entry's blocks, which widens it as n / (n - 1) would
    return stdtrit(blocks - 1, (1 + LEVEL) / 2) / ndtri((1 + LEVEL) / 2)
