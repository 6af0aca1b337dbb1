"""What may be concluded from an import: accepted lengths and acceptance by depth, or why not."""

from collections.abc import Mapping

import numpy as np

from simspec.imports.depth_counts import DepthCounts, of_rounds
from simspec.imports.kinds import CensoredRounds, EngineSettings, ExactImport, Import, PooledCounts
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
