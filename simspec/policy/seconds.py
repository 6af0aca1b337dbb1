"""Seconds of rounds that a policy plans with."""

from collections.abc import Sequence

from simspec.cost.model import CostModel
from simspec.policy.policy import PolicyError


def planned_seconds(policy: str, cost: CostModel, K: int) -> list[float]:
    """Seconds of a round that drafts 0..K tokens, without a backlog: a table of one cost a length.

    seconds[k] = overhead + draft[k] + verify[k]. PolicyError where the costs end before K or a
    round is free.
    """
    if K > cost.K:
        raise PolicyError(
            f"cost {cost.name!r} prices drafts up to {cost.K}, {policy} plans up to {K}: "
            "measure further"
        )
    seconds = [cost.overhead + float(cost.draft[k] + cost.verify[k]) for k in range(K + 1)]
    if min(seconds) <= 0:
        raise PolicyError(
            f"cost {cost.name!r}: a round of {seconds.index(min(seconds))} drafted tokens is free, "
            f"{policy} divides by its seconds: measure verification"
        )
    return seconds


def within_depth(policy: str, lengths: Sequence[int], K: int) -> list[int]:
    """The lengths that drafts reach; PolicyError if none is left."""
    kept = [length for length in lengths if length <= K]
    if not kept:
        raise PolicyError(
            f"{policy} drafts {lengths[0]} tokens or more, here drafts reach {K}: "
            "take shorter lengths"
        )
    return kept
