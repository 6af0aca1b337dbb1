"""Contents of an import, as plain data for a table or JSON."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.special import ndtri

from simspec.engines.counts import PER_ROUND, mean_of
from simspec.engines.import_kinds import (
    CensoredRounds,
    DepthCounts,
    EngineSettings,
    ExactImport,
    Import,
    PooledCounts,
    of_rounds,
)
from simspec.numerics.stats import MIN_PROMPTS, bootstrap
from simspec.policies.fixed import fixed
from simspec.replay.replay import replay
from simspec.trace.rounds import Rounds
from simspec.trace.trace import Trace

ELSEWHERE = (
    "rounds of another draft length start at other tokens, so these rounds cannot be replayed: "
    "record the drafter (simspec record), or import accepted lengths from every position"
)
NO_ACCEPTANCE = (
    "a setting says how long drafts are, and nothing about what is accepted: replay its policies "
    "on a recording (simspec sweep --policy)"
)


def rounds_at(trace: Trace, k: int) -> Rounds:
    """The rounds of the constant draft length k; ValueError past the recording's K."""
    if not 1 <= k <= trace.K:
        raise ValueError(
            f"K = {k} is outside 1 to {trace.K}: deeper drafts are not in this recording of "
            f"{trace.meta.drafter!r}"
        )
    return replay(trace, fixed(k))


def length_at(result: Import, k: int) -> dict[str, float]:
    """{drafter: tokens a round} of the constant draft length k; '' where no drafter is named.

    | kind     | answered for                                                                |
    | -------- | --------------------------------------------------------------------------- |
    | exact    | every k up to the recording's K: tokens / rounds, cut at the sequence's end |
    | censored | the draft length of the rounds themselves, where it is constant             |
    | pooled   | the same, and every k whose accepted length was measured by itself          |
    | settings | none                                                                        |

    ValueError, with the reason, for any other k.
    """
    if isinstance(result, ExactImport):
        return {
            name: trace.rows / len(rounds_at(trace, k)) for name, trace in result.traces.items()
        }
    if isinstance(result, EngineSettings):
        raise ValueError(f"the accepted length at K = {k} is unknown: {NO_ACCEPTANCE}")
    if isinstance(result, CensoredRounds):
        deepest, own = int(result.drafted.max()), result.K
        if k > deepest:
            raise ValueError(
                f"no round drafted more than {deepest} tokens, so acceptance past depth {deepest} "
                f"is censored: the accepted length at K = {k} is unknown"
            )
        length: float | None = 1 + float(result.accepted.mean())
    else:
        if k in result.lengths:
            return {"": result.lengths[k]}
        own, length = result.draft_length, result.length
        if result.lengths:
            raise ValueError(
                f"the accepted length at K = {k} is unknown: it was measured at K = "
                f"{', '.join(map(str, sorted(result.lengths)))[:80]} alone"
            )
    if own is None:
        reason = "; ".join(dict.fromkeys(getattr(result, "withheld", {}).values()))
        raise ValueError(
            f"the accepted length at K = {k} is unknown: the draft length varies or is not given"
            + (f" ({reason})" if reason else "")
        )
    if k != own or length is None:
        raise ValueError(
            f"the accepted length at K = {k} is unknown from rounds of {own}: {ELSEWHERE}"
        )
    return {"": length}


def depth_counts(result: Import) -> dict[tuple[str, int], DepthCounts]:
    """{(drafter, K): counts}: rounds of one draft length each; exact: of rounds at its K."""
    if isinstance(result, ExactImport):
        counts = {}
        for name, trace in result.traces.items():
            rounds = rounds_at(trace, trace.K)
            counts[name, trace.K] = of_rounds(rounds.offset, rounds.drafted, rounds.accepted)
        return counts
    if isinstance(result, PooledCounts):
        return {("", K): counts for K, counts in result.by_depth.items()}
    if isinstance(result, EngineSettings):
        return {}
    if result.K is not None:
        return {("", result.K): of_rounds(result.offset, result.drafted, result.accepted)}
    lengths: list[int] = [int(k) for k in np.unique(result.drafted) if k]
    return {("", k): _of_length(result, k) for k in lengths}


def not_concluded(result: Import) -> Mapping[str, str]:
    """{conclusion: why not}."""
    if isinstance(result, ExactImport):
        return {
            "policies that read signals, draft trees": "the file holds accepted lengths only",
            "drafts deeper than K": "no draft is known to have gone deeper",
            "rounds without an offer": "a drafter that found nothing to propose counts as rejected",
        }
    if isinstance(result, EngineSettings):
        return {"accepted lengths, acceptance": NO_ACCEPTANCE}
    other = {"other draft lengths and policies": ELSEWHERE}
    if isinstance(result, PooledCounts):
        return other | dict(result.withheld)
    if result.K is None:
        other["acceptance by depth over all rounds"] = (
            "the draft length varies, and where it was long the text may have been easy: it is "
            "given by draft length"
        )
    return {"deeper drafts": "a fully accepted draft is censored at its length"} | other


def _of_length(result: CensoredRounds, k: int) -> DepthCounts:
    chosen = result.drafted == k
    request = np.repeat(np.arange(len(result.ids)), np.diff(result.offset))[chosen]
    sizes = np.bincount(request, minlength=len(result.ids))
    offset = np.concatenate(([0], np.cumsum(sizes)))
    return of_rounds(offset, result.drafted[chosen], result.accepted[chosen])


GROUPS = 2000
"""With more requests than this, this number of groups of neighbors is resampled."""


@dataclass(frozen=True)
class DepthPoint:
    """Acceptance at one depth.

    | field       | meaning                                                        |
    | ----------- | -------------------------------------------------------------- |
    | depth       | 1 .. K                                                         |
    | tried       | rounds that drafted so deep and had all before accepted        |
    | accepted    | those of them whose token was accepted                         |
    | conditional | accepted / tried; NaN: never tried                             |
    | marginal    | product of the conditionals up to here                         |
    | low, high   | interval of the marginal; NaN: there is none                   |
    | interval    | requests: bootstrap over requests; rounds: taken as independent |
    """

    depth: int
    tried: int
    accepted: int
    conditional: float
    marginal: float
    low: float
    high: float
    interval: str


def depth_curve(counts: DepthCounts, level: float = 0.95) -> list[DepthPoint]:
    """Acceptance at each depth with its interval.

    A round whose whole draft is accepted is censored at its length; a rejection is the event.
    S(j) = prod_{i <= j} accepted_i / tried_i (Kaplan, Meier 1958). Intervals resample requests
    where there are at least 8 (BCa); else Greenwood's variance on the scale log(-log S), which
    takes rounds as independent and is too narrow.
    """
    tried, accepted = counts.tried.sum(axis=0), counts.accepted.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        conditional = accepted / np.where(tried > 0, tried, np.nan)
        marginal = np.cumprod(conditional)
        missed = tried - accepted
        variance = np.cumsum(missed / (tried * np.where(accepted > 0, accepted, np.nan)))
    points = []
    for j in range(counts.K):
        bounds = _over_requests(counts, j, level) if marginal[j] > 0 else None
        method = "requests" if bounds else "rounds"
        low, high = bounds or _greenwood(marginal[j], variance[j], level)
        points.append(
            DepthPoint(
                j + 1,
                int(tried[j]),
                int(accepted[j]),
                float(conditional[j]),
                float(marginal[j]),
                low,
                high,
                method,
            )  # fmt: skip
        )
    return points


def _over_requests(counts: DepthCounts, j: int, level: float) -> tuple[float, float] | None:
    if not counts.clusters or len(counts.tried) < MIN_PROMPTS:
        return None
    columns = np.concatenate((counts.accepted[:, : j + 1], counts.tried[:, : j + 1]), axis=1)
    if len(columns) > GROUPS:
        starts = np.linspace(0, len(columns), GROUPS, endpoint=False).astype(np.int64)
        columns = np.add.reduceat(columns, starts, axis=0)
    try:
        with np.errstate(invalid="ignore", divide="ignore"):
            interval = bootstrap(
                columns, lambda t: (t[..., : j + 1] / t[..., j + 1 :]).prod(axis=-1), level
            )
    except ValueError:  # some resample never tried this depth
        return None
    return interval.low, interval.high


def _greenwood(marginal: float, variance: float, level: float) -> tuple[float, float]:
    if not 0 < marginal < 1:
        return float("nan"), float("nan")
    log = np.log(marginal)
    width = ndtri((1 + level) / 2) * np.sqrt(variance) / abs(log)
    return float(np.exp(log * np.exp(width))), float(np.exp(log * np.exp(-width)))


KINDS = {
    ExactImport: "exact",
    CensoredRounds: "censored",
    PooledCounts: "pooled",
    EngineSettings: "settings",
}
AT_K = "tokens / rounds at K, the last round cut at the end of the text (bonus token included)"


def import_report(
    result: Import, lengths: tuple[int, ...] = (), level: float = 0.95
) -> dict[str, Any]:
    """Origin, kind, totals, acceptance by depth, and what may not be concluded.

    lengths: draft lengths whose accepted length is asked for; ValueError where that is unknown.
    """
    if not 0 < level < 1:
        raise ValueError(f"level is {level}, expected a share in (0, 1) such as 0.95")
    at = [
        {"drafter": name, "K": k, "accepted_length": length}
        for k in lengths
        for name, length in length_at(result, k).items()
    ]
    return {
        **asdict(result.origin),
        "kind": KINDS[type(result)],
        "totals": _totals(result),
        "accepted_length_at": at,
        "accepted_length_by_K": _lengths(result),
        "draft_lengths": _tiers(result),
        "level": level,
        "acceptance_by_depth": _depths(result, level),
        "not_concluded": dict(not_concluded(result)),
        "notes": [*result.notes, *_last_rounds(result)],
    }


def _totals(result: Import) -> list[dict[str, Any]]:
    if isinstance(result, ExactImport):
        return [_of_trace(name, trace) for name, trace in result.traces.items()]
    if isinstance(result, CensoredRounds):
        return [_of_rounds(result)]
    if isinstance(result, EngineSettings):
        return []
    row = (result.requests, result.rounds, result.drafted, result.accepted, result.length)
    total = _total("", *row, result.length_per_request, result.length_means)
    return [total | {"K": result.draft_length}]


def _lengths(result: Import) -> list[dict[str, Any]]:
    if not isinstance(result, PooledCounts):
        return []
    return [{"K": K, "accepted_length": length} for K, length in sorted(result.lengths.items())]


def _tiers(result: Import) -> list[dict[str, Any]]:
    if not isinstance(result, EngineSettings):
        return []
    return [
        asdict(tier) | {"lengths": list(tier.lengths), "method": result.method}
        for tier in result.tiers
    ]


def _last_rounds(result: Import) -> list[str]:
    if not isinstance(result, CensoredRounds):
        return []
    last, rounds = int((np.diff(result.offset) > 0).sum()), len(result.drafted)
    return [
        f"{last} of {rounds} rounds are a request's last: a stop or the token limit may have cut "
        "them, which reads as a rejection"
    ]


def _of_trace(name: str, trace: Trace) -> dict[str, Any]:
    rounds = rounds_at(trace, trace.K)
    per_request = float((np.diff(trace.offset) / np.diff(rounds.offset)).mean())
    total = _total(
        name, trace.sequences, len(rounds), int(rounds.drafted.sum()), int(rounds.accepted.sum()),
        trace.rows / len(rounds), per_request, AT_K,
    )  # fmt: skip
    return total | {"tokens": trace.rows, "K": trace.K}


def _of_rounds(result: CensoredRounds) -> dict[str, Any]:
    sums = np.concatenate(([0], np.cumsum(result.accepted)))[result.offset]
    rounds, accepted = len(result.drafted), int(result.accepted.sum())
    per_request = mean_of(np.diff(result.offset), np.diff(sums))
    row = (len(result.ids), rounds, int(result.drafted.sum()), accepted)
    total = _total("", *row, mean_of(rounds, accepted), per_request, PER_ROUND)
    return total | {"K": result.K}


def _total(*values: Any) -> dict[str, Any]:
    keys = (
        "drafter", "requests", "rounds", "drafted", "accepted", "accepted_length",
        "accepted_length_per_request", "accepted_length_means",
    )  # fmt: skip
    total = dict(zip(keys, values))
    drafted, accepted = total["drafted"], total["accepted"]
    total["acceptance_rate"] = accepted / drafted if drafted and accepted is not None else None
    return total


def _depths(result: Import, level: float) -> list[dict[str, Any]]:
    rows = [
        {"drafter": name, "K": K, **{k: _plain(v) for k, v in asdict(point).items()}}
        for (name, K), counts in depth_counts(result).items()
        for point in depth_curve(counts, level)
    ]
    if isinstance(result, PooledCounts):
        for K, rates in result.marginals.items():
            for j, rate in enumerate(rates):
                before = rates[j - 1] if j else 1.0
                row: dict[str, Any] = dict.fromkeys(("tried", "accepted", "low", "high"))
                row |= {"drafter": "", "K": K, "depth": j + 1, "marginal": rate, "interval": "none"}
                rows.append(row | {"conditional": rate / before if before else None})
    return rows


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value
