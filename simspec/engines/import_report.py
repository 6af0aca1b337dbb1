"""What an import holds, and what may be concluded from it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from simspec.engines import LONGEST_DRAFT
from simspec.engines.documents import Source
from simspec.numerics.stats import MIN_PROMPTS, bootstrap
from simspec.policies.fixed import fixed
from simspec.replay.replay import replay
from simspec.trace.trace import Rounds, Trace

LARGEST = 1 << 25
"""Counts of a table of requests by depth."""
LEVEL = 0.95
"""Of the intervals."""
GROUPS = 2000
"""With more requests than this, this number of groups of neighbors is resampled."""
ELSEWHERE = (
    "rounds of another draft length start at other tokens, so these rounds cannot be replayed: "
    "record the drafter (simspec record), or import accepted lengths from every position"
)
NOTHING = "the file holds no round with a draft: nothing can be concluded"
PER_ROUND = "1 + accepted drafts / rounds with a draft (bonus token included)"
AT_K = "tokens / rounds at K, the last round cut at the end of the text (bonus token included)"
EXACT = {
    "policies that read signals, draft trees": "the file holds accepted lengths only",
    "drafts deeper than K": "no draft is known to have gone deeper",
    "rounds without an offer": "a drafter that found nothing to propose counts as rejected",
}
VARIES = (
    "the draft length varies, and where it was long the text may have been easy: it is given by "
    "draft length"
)


class DepthCounts(NamedTuple):
    """Rounds of S requests; depth j is tried where all before it are accepted and j is drafted.

    tried, accepted: int64[S, K], rounds that tried depth j + 1, and those whose token was accepted.
    """

    tried: np.ndarray
    accepted: np.ndarray


def counts_of(outcomes: np.ndarray) -> DepthCounts:
    """The counts of int64[N, 4] outcomes: request, drafted, accepted, number of such rounds."""
    request, drafted, accepted, rounds = outcomes.T
    requests, K = int(request.max(initial=0)) + 1, max(int(drafted.max(initial=0)), 1)
    if requests * K > LARGEST:
        raise ValueError(
            f"{requests} requests by {K} depths are over {LARGEST} counts: split the file"
        )

    def at_least(depth: np.ndarray) -> np.ndarray:
        """int64[requests, K]: rounds that got to depth 1 to K."""
        counts = np.zeros((requests, K + 1), np.int64)
        np.add.at(counts, (request, depth), rounds)
        return counts[:, ::-1].cumsum(axis=1)[:, ::-1][:, 1:]

    return DepthCounts(at_least(np.minimum(drafted, accepted + 1)), at_least(accepted))


def outcomes_of_totals(rounds: int, at_least: np.ndarray) -> np.ndarray:
    """Outcomes of rounds of K drafts, those that accepted at least 1 to K, as of one request."""
    K, exactly = len(at_least), -np.diff([rounds, *at_least, 0])
    if (exactly < 0).any():
        raise ValueError(
            "acceptance rises with depth: expected the share of rounds whose first j drafts are "
            "all accepted, which never rises"
        )
    return np.column_stack((np.zeros(K + 1), np.full(K + 1, K), np.arange(K + 1), exactly)).astype(
        np.int64
    )


def outcomes_of_rounds(offset: np.ndarray, drafted: np.ndarray, accepted: np.ndarray) -> np.ndarray:
    """Outcomes of rounds, request s from offset[s] to offset[s + 1] - 1."""
    request = np.repeat(np.arange(len(offset) - 1), np.diff(offset))
    return np.column_stack((request, drafted, accepted, np.ones_like(request))).astype(np.int64)


class Series(NamedTuple):
    """Periods in order of time: requests, lines of a log, iterations of a server, or files.

    at: when each began, or its place in the file. task: its name, '' where there is none. rounds,
    accepted: float64[N], rounds with a draft and tokens that they accepted, or means with weights.
    depths: of periods as requests; None: unknown.
    """

    at: tuple[str, ...]
    task: tuple[str, ...]
    rounds: np.ndarray
    accepted: np.ndarray
    depths: DepthCounts | None = None


@dataclass(frozen=True, eq=False)
class Imported:
    """What a file holds.

    ValueError where more tokens are accepted than drafted, and without rounds.
    """

    source: Source
    # exact: the outcome of a draft from every position; censored: every round, up to its own draft
    # length; pooled: sums over rounds
    kind: str = "pooled"
    # {drafter: recording} of an exact file
    traces: Mapping[str, Trace] = field(default_factory=dict)
    # requests, rounds: counts; rounds are those with a draft
    requests: int | None = None
    rounds: int | None = None
    # drafted, accepted: tokens, without the bonus token
    drafted: int | None = None
    accepted: int | None = None
    # length, length_means: tokens emitted a round, and its definition
    length: float | None = None
    length_means: str = ""
    # int64[N, 4]: request, drafted, accepted, number of such rounds; None: unknown
    outcomes: np.ndarray | None = None
    draft_length: int | None = None  # of all rounds; None: it varies or is unknown
    # {conclusion: why the file cannot give it}
    withheld: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    series: Series | None = None  # the periods of the file; None: it is one period
    by_batch: tuple[dict[str, float], ...] = ()  # by requests running: lines, length, speed

    def __post_init__(self) -> None:
        if self.rounds == 0:
            raise ValueError(NOTHING)
        drafted, accepted = self.drafted, self.accepted
        if drafted is not None and accepted is not None and accepted > drafted:
            raise ValueError(
                f"{accepted} tokens are accepted of {drafted} drafted, expected no more than "
                "those: is the bonus token counted?"
            )


def censored(
    source: Source, offset: np.ndarray, drafted: np.ndarray, accepted: np.ndarray,
    notes: tuple[str, ...] = (),
) -> Imported:  # fmt: skip
    """The rounds of requests; accepted == drafted is censored there.

    The last round of a request may be shorter than all others: the token budget cuts it, not the
    outcome. ValueError unless 0 <= accepted <= drafted <= 255.
    """
    wrong = np.flatnonzero((accepted > drafted) | (accepted < 0) | (drafted > LONGEST_DRAFT))
    if len(wrong):
        r = wrong[0]
        raise ValueError(
            f"round {r} accepted {accepted[r]} of {drafted[r]} drafted tokens, expected accepted "
            f"<= drafted <= {LONGEST_DRAFT}: is the bonus token counted?"
        )
    if not drafted.any():
        raise ValueError(NOTHING)
    started = np.diff(offset) > 0
    lasting = np.ones(len(drafted), bool)
    lasting[offset[1:][started] - 1] = False
    lengths = np.unique(drafted[lasting] if lasting.any() else drafted)
    K = int(lengths[0]) if len(lengths) == 1 and drafted.max() == lengths[0] else None
    last = (
        f"{int(started.sum())} of {len(drafted)} rounds are a request's last: a stop or the token "
        "limit may have cut them, which reads as a rejection"
    )
    return Imported(
        source, "censored", requests=len(offset) - 1, rounds=len(drafted),
        drafted=int(drafted.sum()), accepted=int(accepted.sum()),
        length=1 + accepted.sum() / len(drafted), length_means=PER_ROUND, draft_length=K,
        outcomes=outcomes_of_rounds(offset, drafted, accepted), notes=(*notes, last),
    )  # fmt: skip


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
    if result.kind == "exact":
        return {
            name: trace.rows / len(rounds_at(trace, k)) for name, trace in result.traces.items()
        }
    own, length = result.draft_length, result.length
    if own is None or length is None:
        reason = "; ".join(dict.fromkeys(result.withheld.values()))
        raise ValueError(
            f"the accepted length at K = {k} is unknown: the draft length varies or is not given"
            + (f" ({reason})" if reason else "")
        )
    if k != own:
        raise ValueError(
            f"the accepted length at K = {k} is unknown from rounds of {own}: {ELSEWHERE}"
        )
    return {"": length}


def depth_counts(result: Imported) -> dict[tuple[str, int], DepthCounts]:
    """{(drafter, K): counts}: rounds of one draft length each; exact: of rounds at its K."""
    counts, outcomes, K = {}, result.outcomes, result.draft_length
    if outcomes is not None and K is not None:
        counts["", K] = counts_of(outcomes)
    elif outcomes is not None:
        for k in filter(None, np.unique(outcomes[:, 1]).tolist()):
            counts["", k] = counts_of(outcomes[outcomes[:, 1] == k])
    for name, trace in result.traces.items():
        rounds = rounds_at(trace, trace.K)
        found = outcomes_of_rounds(rounds.offset, rounds.drafted, rounds.accepted)
        counts[name, trace.K] = counts_of(found)
    return counts


def not_concluded(result: Imported) -> Mapping[str, str]:
    """{conclusion: why not}."""
    if result.kind == "exact":
        return EXACT
    found = {"other draft lengths and policies": ELSEWHERE} | dict(result.withheld)
    if result.kind == "censored":
        found = {"deeper drafts": "a fully accepted draft is censored at its length"} | found
        if result.draft_length is None:
            found["acceptance by depth over all rounds"] = VARIES
    return found


class DepthPoint(NamedTuple):
    """Acceptance at one depth, 1 .. K: rounds that tried it, those of them that accepted it.

    conditional is accepted / tried (NaN: never tried), marginal the product of the conditionals up
    to here, low and high its interval (NaN: none).
    """

    depth: int
    tried: int
    accepted: int
    conditional: float
    marginal: float
    low: float
    high: float


def depth_curve(counts: DepthCounts) -> list[DepthPoint]:
    """Acceptance at each depth with its interval.

    A round whose whole draft is accepted is censored at its length; a rejection is the event.
    S(j) = prod_{i <= j} accepted_i / tried_i (Kaplan, Meier 1958). Intervals resample requests
    (BCa), where there are at least 8: rounds of one request depend on each other.
    """
    tried, accepted = counts.tried.sum(axis=0), counts.accepted.sum(axis=0)
    conditional = accepted / np.where(tried > 0, tried, np.nan)
    marginal = np.cumprod(conditional)
    return [
        DepthPoint(
            j + 1, int(tried[j]), int(accepted[j]), float(conditional[j]), float(marginal[j]),
            *(_interval(counts, j) if marginal[j] > 0 else (np.nan, np.nan)),
        )
        for j in range(len(tried))
    ]  # fmt: skip


def _interval(counts: DepthCounts, j: int) -> tuple[float, float]:
    """(low, high) of the marginal; NaN for few requests, or where a resample never tried it."""
    if len(counts.tried) < MIN_PROMPTS:
        return np.nan, np.nan
    columns = np.concatenate((counts.accepted[:, : j + 1], counts.tried[:, : j + 1]), axis=1)
    if len(columns) > GROUPS:
        starts = np.linspace(0, len(columns), GROUPS, endpoint=False).astype(np.int64)
        columns = np.add.reduceat(columns, starts, axis=0)
    try:
        with np.errstate(invalid="ignore", divide="ignore"):
            found = bootstrap(
                columns, lambda t: (t[..., : j + 1] / t[..., j + 1 :]).prod(axis=-1), LEVEL
            )
    except ValueError:
        return np.nan, np.nan
    return found.low, found.high


def import_report(result: Imported, lengths: tuple[int, ...] = ()) -> dict[str, Any]:
    """Origin, kind, totals, acceptance by depth, and what may not be concluded, for JSON.

    lengths: draft lengths whose accepted length is asked for; ValueError where that is unknown.
    """
    if result.kind == "exact":
        totals = [_of_trace(name, trace) for name, trace in result.traces.items()]
    else:
        counts = result.requests, result.rounds, result.drafted, result.accepted
        totals = [_total("", result.draft_length, counts, result.length, result.length_means)]
    return {
        **{name: getattr(result.source, name) for name in ("format", "file", "sha256")},
        "kind": result.kind,
        "totals": totals,
        "accepted_length_at": [
            {"drafter": name, "K": k, "accepted_length": length}
            for k in lengths
            for name, length in length_at(result, k).items()
        ],
        "level": LEVEL,
        "acceptance_by_depth": [
            {"drafter": name, "K": K}
            | {key: None if value != value else value for key, value in point._asdict().items()}
            for (name, K), counts in depth_counts(result).items()
            for point in depth_curve(counts)
        ],
        "by_batch": list(result.by_batch),
        "not_concluded": dict(not_concluded(result)),
        "notes": list(result.notes),
    }


def _of_trace(name: str, trace: Trace) -> dict[str, Any]:
    rounds = rounds_at(trace, trace.K)
    counts = (trace.sequences, len(rounds), int(rounds.drafted.sum()), int(rounds.accepted.sum()))
    return _total(name, trace.K, counts, trace.rows / len(rounds), AT_K)


def _total(
    name: str, K: int | None, counts: tuple[int | None, ...], length: float | None, means: str
) -> dict[str, Any]:
    """counts: requests, rounds, drafted and accepted tokens."""
    *_, drafted, accepted = counts
    named = dict(zip(("requests", "rounds", "drafted", "accepted"), counts))
    return {"drafter": name, "K": K} | named | {
        "accepted_length": length,
        "accepted_length_means": means,
        "acceptance_rate": accepted / drafted if drafted and accepted is not None else None,
    }  # fmt: skip
