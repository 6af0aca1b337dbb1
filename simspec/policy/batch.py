"""BatchPolicy: one decision a step for all active requests, and the rules that make it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simspec.cost.batch import StepSeconds
from simspec.policy.policy import PolicyError

Array = NDArray[np.floating]
Integers = NDArray[np.int64]


class BatchStart(NamedTuple):
    """A rule's slots, the length of its drafts and planned seconds."""

    batch: int
    K: int
    seconds: StepSeconds


class BatchStep(NamedTuple):
    """The active requests of a step, after drafting."""

    slot: Integers  # int64[n]: the slot of each request, ascending
    new: NDArray[np.bool_]  # bool[n]: the slot's first round of this request
    computed: Integers  # int64[n]: tokens drafted
    confidence: Array  # float64[n, K]: the feature that the policy reads; NaN past the draft


class BatchRule:
    """The state of a batch policy, which drafts K tokens; as it is, it submits them all.

    `submit` answers int64[n] tokens of each draft to verify, at most `computed`; `observe` receives
    the outcome and the modelled seconds.
    """

    def __init__(self, start: BatchStart) -> None:
        self.start = start

    def submit(self, step: BatchStep) -> Integers:
        return step.computed

    def observe(
        self, step: BatchStep, drafted: Integers, accepted: Integers, seconds: float
    ) -> None:
        pass


@dataclass(frozen=True)
class BatchPolicy:
    """Decides once a step for all active requests; `simspec.replay.batches` replays it.

    rule makes a fresh BatchRule from BatchStart; K is the draft's length, None: the recording's, as
    far as the costs reach; reads is the feature that the rule sees as confidence, at most one.
    """

    name: str
    rule: Callable[[BatchStart], BatchRule]
    K: int | None = None
    reads: tuple[str, ...] = ()

    def longest(self, K: int) -> int:
        """Longest draft where recording and costs reach K; PolicyError for a policy of more."""
        if self.K is not None and self.K > K:
            raise PolicyError(
                f"policy {self.name!r} drafts up to {self.K}, here recording and costs reach {K}: "
                "lower it, or record and measure deeper"
            )
        return K if self.K is None else self.K


class Lagged:
    """Confidences of each slot's draft `lag` drafts ago; 1 where another request held the slot."""

    def __init__(self, batch: int, K: int, lag: int) -> None:
        self._held = [np.ones((batch, K)) for _ in range(lag)]

    def replace(self, step: BatchStep, confidence: Array) -> Array:
        """The confidences to plan with, float64[n, K]; holds those of this step for later ones.

        Tokens that were not drafted have confidence 1.
        """
        known = np.where(np.isnan(confidence), 1.0, confidence)
        if not self._held:
            return known
        for held in self._held:
            held[step.slot[step.new]] = 1.0
        oldest = self._held.pop(0)
        stale: Array = oldest[step.slot]
        newest = (self._held[-1] if self._held else oldest).copy()
        newest[step.slot] = known
        self._held.append(newest)
        return stale


def survival(confidence: Array, computed: Integers) -> Array:
    """float64[n, K]: the probability that each token and all before it are accepted; -inf past the
    draft.
    """
    product = np.cumprod(confidence, axis=1)
    return np.where(np.arange(confidence.shape[1]) < computed[:, None], product, -np.inf)


def best_budget(scores: Array, requests: int, seconds: Array) -> int:
    """The first x of most expected tokens a second: argmax (R + scores[:x].sum()) / seconds[x].

    scores: survivals, descending, of all tokens that may be verified; seconds, float64[X + 1], of a
    step that verifies x of them.
    """
    tokens = requests + np.concatenate(([0.0], np.cumsum(scores)))
    return int(np.argmax(tokens / seconds))


def admit(chosen: Array, budget: int) -> Integers:
    """int64[n]: tokens of each request among the `budget` largest survivals, -inf never.

    Ties go to the smaller position, then to the earlier request. Survival never grows along a
    draft, so that these are the first tokens of each.
    """
    n, K = chosen.shape
    order = np.argsort(-chosen.T.ravel(), kind="stable")
    order = order[: min(budget, int(np.isfinite(chosen).sum()))]
    counts: Integers = np.bincount(order % n, minlength=n).astype(np.int64)
    return counts


def check_rule(name: str, submitted: Any, step: BatchStep) -> Integers:
    """The answer of `submit`; PolicyError unless it is 0 to `computed` tokens of each request."""
    found = np.asarray(submitted)
    shaped = found.shape == step.computed.shape and found.dtype.kind in "iu"
    if not shaped or (found < 0).any() or (found > step.computed).any():
        raise PolicyError(
            f"policy {name!r} submits other tokens than it drafted, expected 0 to `computed` "
            "of each request, int64[n]"
        )
    answer: Integers = found.astype(np.int64)
    return answer
