"""Costs of sequences decoded together in a step."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simspec.cost.model import CostModel
from simspec.cost.table import CostTable

Array = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class StepLoad:
    """Tokens and passes of a batch in each step, one entry a step; contexts in cached tokens."""

    active: Integers  # int64: sequences in the step
    # computed, most_computed: int64: drafted tokens computed: their sum, their maximum
    computed: Integers
    most_computed: Integers
    drafted: Integers  # int64: sum of the drafted tokens verified
    catch_up: Array  # float64: sum of catch_up[backlog] of those that draft, in seconds
    cached: Array  # float64: sum of the contexts
    draft_cached: Array  # float64: sum of context x computed tokens


@dataclass(frozen=True)
class BatchCost:
    """The costs of a batch, by the tokens in it.

    With m = measured, n = drafted + active rows in the target's pass, and C the context of cost:

    | part | seconds |
    | --- | --- |
    | draft | draft[most computed], and `node` for each computed token beyond m a draft step |
    | verify | m = 1: verify[n - 1]; m > 1: verify at n / active - 1, linear between entries |
    | catch-up | sum of catch_up[backlog] / m |
    | cached tokens | kv_verify (cached - m C) + kv_draft (draft_cached - m C most computed) |

    Beyond its last entry `verify` continues as `CostModel.widen` states. For one sequence at
    context C the sum is the CostModel's own.
    """

    cost: CostModel  # of `measured` sequences that do the same
    measured: int = 1  # sequences that `cost` was measured with; 1: the batch is extrapolated

    def seconds(self, load: StepLoad, reads: Any = ()) -> Array:
        """float64[T]: seconds of each step; `reads` are the features that the policy reads."""
        cost, most = self.cost.reading(reads), load.most_computed
        if len(most) and int(most.max()) > cost.K:
            raise ValueError(
                f"cost {cost.name!r} prices drafts up to {cost.K}, a round computed {most.max()}: "
                "measure further"
            )
        verify = self._verify(load.drafted, load.active)
        seconds: Array = cost.overhead + cost.draft[most] + verify
        seconds = seconds + load.catch_up / self.measured
        if self.measured == 1:
            further = cost.node + self.cost.charge(reads)
            seconds = seconds + further * (load.computed - most)
        return seconds + self._cached(load.cached, load.draft_cached, most)

    def plain_seconds(self, active: Integers, cached: Array) -> Array:
        """float64[T]: seconds of steps of plain decoding, by sequences and their contexts' sum."""
        none = np.zeros(len(active), np.int64)
        seconds: Array = self.cost.baseline + self._cached(cached, 0.0, none)
        if self.measured == 1:
            seconds = seconds + (self._verify(none, active) - self.cost.verify[0])
        return seconds

    def alike(self, batch: int, context: float) -> CostModel:
        """The CostModel of a batch whose sequences all do the same: what its policies plan with."""
        if batch == 1 == self.measured:
            return self.cost.at(context)
        counts = np.arange(self.cost.K + 1)
        active = np.full(len(counts), batch)
        cached, none = context * active.astype(np.float64), np.zeros(len(counts))
        copies = batch if self.measured == 1 else 1
        draft = self.cost.draft + self.cost.node * (copies - 1) * counts
        verify = self._verify(batch * counts, active)
        return CostModel(
            draft=np.maximum(draft + self._cached(none + self._held, cached * counts, counts), 0.0),
            verify=np.maximum(verify + self._cached(cached, none, 0 * counts), 0.0),
            catch_up=self.cost.catch_up * (batch / self.measured),
            overhead=self.cost.overhead,
            baseline=float(self.plain_seconds(active[:1], cached[:1])[0]),
            name=f"{self.cost.name}-b{batch}",
            device=self.cost.device,
            feature=self.cost.feature * copies,
            predictor=None if self.cost.predictor is None else self.cost.predictor * copies,
            origin=self.cost.origin,
        )

    def by_rows(self, batch: int, K: int, context: float, reads: Any = ()) -> "StepSeconds":
        """The table of up to `batch` requests with `context` cached tokens each."""
        cost, lengths = self.cost.reading(reads), np.arange(K + 1)[:, None]
        requests = np.arange(batch + 1)
        draft = cost.draft[: K + 1, None] + 0.0 * requests
        if self.measured == 1:
            further = cost.node + self.cost.charge(reads)
            draft = draft + further * lengths * np.maximum(requests - 1, 0)
        draft = draft + self.cost.kv_draft * lengths * (context * requests - self._held)
        rows = np.maximum(np.arange(batch * (K + 1) + 1), 1)
        active = np.minimum(rows, batch)
        verify = self._verify(rows - active, active)
        verify = verify + self._cached(context * active, 0.0, 0 * rows)
        verify = np.maximum.accumulate(verify)
        return StepSeconds(np.maximum(draft, 0.0), np.maximum(verify, 0.0), cost.overhead)

    @property
    def _held(self) -> float:
        """Cached tokens that the lists hold already."""
        return self.measured * self.cost.context

    def _verify(self, drafted: Integers, active: Integers) -> Array:
        if self.measured > 1:
            rows = drafted / active
            verify = self.cost.widen(int(np.ceil(rows.max(initial=0)))).verify
            return np.interp(rows, np.arange(len(verify)), verify)
        index = drafted + active - 1
        return self.cost.widen(int(index.max(initial=0))).verify[index]

    def _cached(self, cached: Any, draft_cached: Any, most_computed: Integers) -> Array:
        verified = self.cost.kv_verify * (cached - self._held)
        drafted = self.cost.kv_draft * (draft_cached - self._held * most_computed)
        seconds: Array = verified + drafted
        return seconds


@dataclass(frozen=True)
class StepSeconds:
    """Seconds of a step by its requests, drafts and rows: what a batch policy plans with."""

    draft: Array  # float64[K + 1, B + 1]: drafting k tokens for each of n requests
    verify: Array  # float64[B (K + 1) + 1]: a pass of the target over n rows; never falls
    overhead: float  # the rest of a step

    def of(self, requests: int, longest: int, rows: int) -> float:
        """Seconds of one step."""
        return float(self.overhead + self.draft[longest, requests] + self.verify[rows])


def batch_cost(cost: CostModel | CostTable, batch: int, context: float | None = None) -> BatchCost:
    """The costs of `batch` sequences with `context` cached tokens each.

    A table gives its next measured batch size, see `CostTable.at`; batch size 1 and one CostModel
    are extrapolated. ValueError for a size or context that a table lacks.
    """
    if isinstance(cost, CostTable) and cost.batch != (1,):
        held = next((size for size in cost.batch if size >= batch), batch)
        tokens = None if context is None else round(context)
        return BatchCost(cost.at(batch, tokens), held)
    if isinstance(cost, CostTable):
        cost = cost.at(1, None if context is None else round(context))
    return BatchCost(cost if context is None else cost.at(context))
