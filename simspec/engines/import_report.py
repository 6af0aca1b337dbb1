"""What an import holds, and what may be concluded from it: exact, censored or pooled rounds."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from scipy.special import ndtri

from simspec.engines import LONGEST_DRAFT
from simspec.numerics.stats import MIN_PROMPTS, bootstrap
from simspec.policies.fixed import fixed
from simspec.replay.replay import replay
from simspec.trace.rounds import Rounds
from simspec.trace.trace import Trace

LARGEST = 1 << 25
"""Counts of a table of requests by depth."""
GROUPS = 2000
"""With more requests than this, this number of groups of neighbors is resampled."""
ELSEWHERE = (
    "rounds of another draft length start at other tokens, so these rounds cannot be replayed: "
    "record the drafter (simspec record), or import accepted lengths from every position"
)
NOTHING = "the file holds no round with a draft: nothing can be concluded"
PER_ROUND = "1 + accepted drafts / rounds with a draft (bonus token included)"
AT_K = "tokens / rounds at K, the last round cut at the end of the text (bonus token included)"


def mean_of(rounds: Any, accepted: Any) -> float | None:
    """1 + accepted / rounds: of totals, or the mean of it over requests that have rounds."""
    rounds, accepted = np.atleast_1d(rounds), np.atleast_1d(accepted)
    drafting = rounds > 0
    if not drafting.any():
        return None
    return float((1 + accepted[drafting] / rounds[drafting]).mean())


@dataclass(frozen=True, eq=False)
class DepthCounts:
    """Rounds of S requests; depth j is tried where all before it are accepted and j is drafted.

    tried, accepted: int64[S, K], rounds that tried depth j + 1, and those whose token was accepted.
    clusters: S counts requests; False: all are in one. ValueError unless accepted <= tried, and
    what is tried was accepted one depth before.
    """

    tried: np.ndarray
    accepted: np.ndarray
    clusters: bool = True

    def __post_init__(self) -> None:
        if (self.accepted > self.tried).any() or (self.accepted < 0).any():
            raise ValueError("more drafts are accepted than tried at some depth: the file is wrong")
        if (self.tried[:, 1:] > self.accepted[:, :-1]).any():
            raise ValueError(
                "acceptance rises with depth: expected the share of rounds whose first j drafts "
                "are all accepted, which never rises"
            )

    @property
    def K(self) -> int:
        return self.tried.shape[1]


def of_rounds(offset: np.ndarray, drafted: np.ndarray, accepted: np.ndarray) -> DepthCounts:
    """The counts of rounds, request s from offset[s] to offset[s + 1] - 1."""
    requests, K = len(offset) - 1, max(int(drafted.max(initial=0)), 1)
    check_size(requests, K)
    request = np.repeat(np.arange(requests), np.diff(offset))

    def at_least(depth: np.ndarray) -> np.ndarray:
        """int64[requests, K]: rounds that got to depth 1 to K."""
        size = requests * (K + 1)
        counts = np.bincount(request * (K + 1) + depth, minlength=size).reshape(requests, K + 1)
        return counts[:, ::-1].cumsum(axis=1)[:, ::-1][:, 1:]

    return DepthCounts(at_least(np.minimum(drafted, accepted + 1)), at_least(accepted))


def check_size(requests: int, K: int) -> None:
    """ValueError where a table of requests by depth would be too large."""
    if requests * K > LARGEST:
        raise ValueError(
            f"{requests} requests by {K} depths are over {LARGEST} counts: split the file"
        )


def of_histograms(counts: np.ndarray) -> DepthCounts:
    """The counts of histograms int64[S, K + 1]: rounds of K drafts that accepted 0 to K."""
    at_least = counts[:, ::-1].cumsum(axis=1)[:, ::-1]
    return DepthCounts(at_least[:, :-1], at_least[:, 1:])


def of_totals(rounds: int, at_least: np.ndarray) -> DepthCounts:
    """The counts of totals: rounds of K drafts, and those that accepted at least 1 to K."""
    return DepthCounts(np.concatenate(([rounds], at_least[:-1]))[None], at_least[None], False)


@dataclass(frozen=True)
class Origin:
    """Source of an import: format, the file's name and the SHA-256 of its bytes."""

    format: str
    file: str
    sha256: str


@dataclass(frozen=True)
class ExactImport:
    """Recordings by drafter: the accepted length of a draft from every position is known."""

    origin: Origin
    traces: Mapping[str, Trace]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class CensoredRounds:
    """Every round of a real run; what a longer draft would have given is unknown.

    | field    | dtype, shape | meaning                                                   |
    | -------- | ------------ | --------------------------------------------------------- |
    | ids      | (str,) [S]   | the requests                                              |
    | offset   | int64[S + 1] | request s has rounds offset[s] .. offset[s + 1] - 1       |
    | drafted  | int64[R]     | tokens drafted, at most 255                               |
    | accepted | int64[R]     | leading drafted tokens accepted, without the bonus token  |

    accepted == drafted is censored there. ValueError unless 0 <= accepted <= drafted.
    """

    origin: Origin
    ids: tuple[str, ...]
    offset: np.ndarray
    drafted: np.ndarray
    accepted: np.ndarray
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.drafted) == 0:
            raise ValueError(NOTHING)
        wrong = np.flatnonzero((self.accepted < 0) | (self.accepted > self.drafted))
        if len(wrong) or self.drafted.max() > LONGEST_DRAFT:
            r = wrong[0] if len(wrong) else self.drafted.argmax()
            raise ValueError(
                f"round {r} accepted {self.accepted[r]} of {self.drafted[r]} drafted tokens, "
                f"expected accepted <= drafted <= {LONGEST_DRAFT}: is the bonus token counted?"
            )

    @property
    def K(self) -> int | None:
        """The draft length of all rounds, None where it varies.

        The last round of a request may be shorter: the token budget cuts it, not the outcome.
        """
        lasting = np.ones(len(self.drafted), bool)
        lasting[self.offset[1:][np.diff(self.offset) > 0] - 1] = False
        lengths = np.unique(self.drafted[lasting] if lasting.any() else self.drafted)
        constant = len(lengths) == 1 and self.drafted.max() == lengths[0]
        return int(lengths[0]) if constant else None


@dataclass(frozen=True, eq=False)
class PooledCounts:
    """Sums over rounds; which round gave what is lost.

    | field              | type               | meaning                                       |
    | ------------------ | ------------------ | --------------------------------------------- |
    | requests, rounds   | int/None           | counts; rounds are those with a draft         |
    | drafted, accepted  | int/None           | tokens, without the bonus token               |
    | length             | float/None         | tokens emitted a round                        |
    | length_means       | str                | definition of `length`                        |
    | length_per_request | float/None         | mean over requests of each one's own length   |
    | by_depth           | {int: DepthCounts} | by draft length K of the rounds               |
    | draft_length       | int/None           | of all rounds; None: varies or unknown        |
    | withheld           | {str: str}         | conclusion: why the file cannot give it       |

    ValueError where more tokens are accepted than drafted.
    """

    origin: Origin
    requests: int | None = None
    rounds: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    length: float | None = None
    length_means: str = ""
    length_per_request: float | None = None
    by_depth: Mapping[int, DepthCounts] = field(default_factory=dict)
    draft_length: int | None = None
    withheld: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.rounds == 0:
            raise ValueError(NOTHING)
        drafted, accepted = self.drafted, self.accepted
        if drafted is not None and accepted is not None and accepted > drafted:
            raise ValueError(
                f"{accepted} tokens are accepted of {drafted} drafted, expected no more than "
                "those: is the bonus token counted?"
            )


Imported = ExactImport | CensoredRounds | PooledCounts
KINDS = {ExactImport: "exact", CensoredRounds: "censored", PooledCounts: "pooled"}


def rounds_at(trace: Trace, k: int) -> Rounds:
    """The rounds of the constant draft length k; ValueError past the recording's K."""
    if not 1 <= k <= trace.K:
        raise ValueError(
            f"K = {k} is outside 1 to {trace.K}: deeper drafts are not in this recording of "
            f"{trace.meta.drafter!r}"
        )
    return replay(trace, fixed(k))


def length_at(result: Imported, k: int) -> dict[str, float]:
    """{drafter: tokens a round} of the constant draft length k; '' where no drafter is named.

    An exact import answers for every k up to the recording's K (tokens / rounds, cut at the
    sequence's end), others for the draft length of the rounds themselves, where it is constant.
    ValueError, with the reason, for any other k.
    """
    if isinstance(result, ExactImport):
        return {
            name: trace.rows / len(rounds_at(trace, k)) for name, trace in result.traces.items()
        }
    if isinstance(result, CensoredRounds):
        deepest, own = int(result.drafted.max()), result.K
        if k > deepest:
            raise ValueError(
                f"no round drafted more than {deepest} tokens, so acceptance past depth {deepest} "
                f"is censored: the accepted length at K = {k} is unknown"
            )
        length: float | None = 1 + float(result.accepted.mean())
    else:
        own, length = result.draft_length, result.length
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


def depth_counts(result: Imported) -> dict[tuple[str, int], DepthCounts]:
    """{(drafter, K): counts}: rounds of one draft length each; exact: of rounds at its K."""
    if isinstance(result, ExactImport):
        counts = {}
        for name, trace in result.traces.items():
            rounds = rounds_at(trace, trace.K)
            counts[name, trace.K] = of_rounds(rounds.offset, rounds.drafted, rounds.accepted)
        return counts
    if isinstance(result, PooledCounts):
        return {("", K): counts for K, counts in result.by_depth.items()}
    if result.K is not None:
        return {("", result.K): of_rounds(result.offset, result.drafted, result.accepted)}
    request = np.repeat(np.arange(len(result.ids)), np.diff(result.offset))
    found = {}
    for k in map(int, np.unique(result.drafted)):
        chosen = result.drafted == k
        sizes = np.bincount(request[chosen], minlength=len(result.ids))
        offset = np.concatenate(([0], np.cumsum(sizes)))
        if k:
            found["", k] = of_rounds(offset, result.drafted[chosen], result.accepted[chosen])
    return found


def not_concluded(result: Imported) -> Mapping[str, str]:
    """{conclusion: why not}."""
    if isinstance(result, ExactImport):
        return {
            "policies that read signals, draft trees": "the file holds accepted lengths only",
            "drafts deeper than K": "no draft is known to have gone deeper",
            "rounds without an offer": "a drafter that found nothing to propose counts as rejected",
        }
    other = {"other draft lengths and policies": ELSEWHERE}
    if isinstance(result, PooledCounts):
        return other | dict(result.withheld)
    if result.K is None:
        other["acceptance by depth over all rounds"] = (
            "the draft length varies, and where it was long the text may have been easy: it is "
            "given by draft length"
        )
    return {"deeper drafts": "a fully accepted draft is censored at its length"} | other


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
                "requests" if bounds else "rounds",
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


def import_report(
    result: Imported, lengths: tuple[int, ...] = (), level: float = 0.95
) -> dict[str, Any]:
    """Origin, kind, totals, acceptance by depth, and what may not be concluded.

    lengths: draft lengths whose accepted length is asked for; ValueError where that is unknown.
    """
    notes = list(result.notes)
    if isinstance(result, CensoredRounds):
        last, rounds = int((np.diff(result.offset) > 0).sum()), len(result.drafted)
        notes.append(
            f"{last} of {rounds} rounds are a request's last: a stop or the token limit may have "
            "cut them, which reads as a rejection"
        )
    return {
        **asdict(result.origin),
        "kind": KINDS[type(result)],
        "totals": _totals(result),
        "accepted_length_at": [
            {"drafter": name, "K": k, "accepted_length": length}
            for k in lengths
            for name, length in length_at(result, k).items()
        ],
        "level": level,
        "acceptance_by_depth": _depths(result, level),
        "not_concluded": dict(not_concluded(result)),
        "notes": notes,
    }


def _totals(result: Imported) -> list[dict[str, Any]]:
    if isinstance(result, ExactImport):
        return [_of_trace(name, trace) for name, trace in result.traces.items()]
    if isinstance(result, PooledCounts):
        row = (result.requests, result.rounds, result.drafted, result.accepted, result.length)
        total = _total("", *row, result.length_per_request, result.length_means)
        return [total | {"K": result.draft_length}]
    sums = np.concatenate(([0], np.cumsum(result.accepted)))[result.offset]
    rounds, accepted = len(result.drafted), int(result.accepted.sum())
    per_request = mean_of(np.diff(result.offset), np.diff(sums))
    of_all = (len(result.ids), rounds, int(result.drafted.sum()), accepted)
    total = _total("", *of_all, mean_of(rounds, accepted), per_request, PER_ROUND)
    return [total | {"K": result.K}]


def _of_trace(name: str, trace: Trace) -> dict[str, Any]:
    rounds = rounds_at(trace, trace.K)
    per_request = float((np.diff(trace.offset) / np.diff(rounds.offset)).mean())
    total = _total(
        name, trace.sequences, len(rounds), int(rounds.drafted.sum()), int(rounds.accepted.sum()),
        trace.rows / len(rounds), per_request, AT_K,
    )  # fmt: skip
    return total | {"tokens": trace.rows, "K": trace.K}


def _total(*values: Any) -> dict[str, Any]:
    keys = (
        "drafter", "requests", "rounds", "drafted", "accepted", "accepted_length",
        "accepted_length_per_request", "accepted_length_means",
    )  # fmt: skip
    total = dict(zip(keys, values))
    drafted, accepted = total["drafted"], total["accepted"]
    total["acceptance_rate"] = accepted / drafted if drafted and accepted is not None else None
    return total


def _depths(result: Imported, level: float) -> list[dict[str, Any]]:
    return [
        {"drafter": name, "K": K}
        | {key: None if value != value else value for key, value in asdict(point).items()}
        for (name, K), counts in depth_counts(result).items()
        for point in depth_curve(counts, level)
    ]
