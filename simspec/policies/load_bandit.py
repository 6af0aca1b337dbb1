"""One draft length for the whole batch, by its size: stated schedules, and a bandit."""

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simspec.numerics.rng import POLICY, uniform
from simspec.policy.arguments import check_integer, check_number, policy_name
from simspec.policy.batch import BatchPolicy, BatchRule, BatchStart, BatchStep
from simspec.policy.policy import PolicyError
from simspec.policy_kind import PolicyKind

Integers = NDArray[np.int64]


class _Schedule(BatchRule):
    def __init__(self, table: dict[int, int], start: BatchStart) -> None:
        super().__init__(start)
        self.table = table

    def length(self, requests: int) -> int:
        keys = [key for key in self.table if key <= requests]
        return min(self.table[max(keys)] if keys else 0, self.start.K)


def batch_schedule(**lengths: int) -> BatchPolicy:
    """A draft length for each number of requests: batch_schedule:1=5,8=3,32=0.

    A key holds up to the next key, as vLLM's `num_speculative_tokens_per_batch_size`; below the
    first nothing is drafted. The number of requests is that of the step. PolicyError for what is no
    schedule.

    Source: vLLM 0.32, v1/spec_decode/dynamic/utils.py, `build_dynamic_sd_schedule_lookup`.
    """
    if not lengths or not all(key.isascii() and key.isdigit() and int(key) for key in lengths):
        raise PolicyError(
            f"batch_schedule: {', '.join(lengths) or 'nothing'} is given, expected numbers of "
            "requests with their lengths such as 1=5,8=3,32=0"
        )
    for key, value in lengths.items():
        check_integer("batch_schedule", key, value, 0, 255)
    table = dict(sorted((int(key), value) for key, value in lengths.items()))
    name = "batch_schedule:" + ",".join(f"{key}={value}" for key, value in table.items())
    return BatchPolicy(name, partial(_Schedule, table), max(table.values()))


class _LoadBandit(BatchRule):
    def __init__(self, settings: dict[str, Any], start: BatchStart) -> None:
        super().__init__(start)
        self.settings = settings
        self.sums: dict[int, NDArray[np.float64]] = {}
        self.steps, self.last, self.periods = 0, 0, 0
        self.bins = 0

    def length(self, requests: int) -> int:
        """The length of the period; a period ends after `hold` steps, or with its batch size."""
        bins = int(requests - 1).bit_length()
        if self.steps % self.settings["hold"] == 0 or bins != self.bins:
            self.steps, self.bins = 0, bins
            self.last = self._choose(self.sums.setdefault(bins, np.zeros((3, self.start.K + 1))))
        return self.last

    def _choose(self, sums: NDArray[np.float64]) -> int:
        periods, tokens, seconds = sums
        self.periods += 1
        if (periods == 0).any():
            return int(np.argmin(periods))
        explore = self.settings["explore"] / np.sqrt(periods.sum())
        draws = [uniform(self.start.seed, self.bins, self.periods, i, POLICY) for i in (0, 1)]
        if draws[0] < explore:
            return int(draws[1] * len(periods))
        loss = seconds / tokens
        if self.last == 0:
            switch = self.settings["switch"] * loss[0] / self.settings["hold"]
            loss = loss + switch * (np.arange(len(loss)) > 0)
        return int(np.argmin(loss))

    def observe(
        self, step: BatchStep, drafted: Integers, accepted: Integers, seconds: float
    ) -> None:
        started = self.steps == 0
        self.steps += 1
        gained = len(accepted) + float(accepted.sum())
        self.sums[self.bins][:, self.last] += started, gained, seconds


def load_bandit(
    k: int | None = None, hold: int = 10, explore: float = 1.0, switch: float = 1.0
) -> BatchPolicy:
    """A bandit over draft lengths 0 to k for each batch size, after Nightjar.

    Batch sizes fall into bins, the powers of two. A length is held for `hold` steps. It is one that
    the bin did not try yet; else, with probability explore / sqrt(periods of the bin), any; else
    that of least seconds a token. After length 0 the others count `switch` plain steps more, spread
    over the period: the drafter must read what it missed. Seconds are modelled.

    The paper describes lengths by batch size, 0 included, and the cost of restarting; its
    constants, and this form of exploration, are unverified. It also moves the drafter off the
    device when memory is short, which is left out. PolicyError for values outside their ranges.

    Source: Nightjar, arXiv 2512.22420.
    """
    if k is not None:
        check_integer("load_bandit", "k", k, 0, 255)
    check_integer("load_bandit", "hold", hold, 1, 10**6)
    check_number("load_bandit", "explore", explore, 0, 1000)
    check_number("load_bandit", "switch", switch, 0, 1e6)
    settings = {"k": k, "hold": hold, "explore": explore, "switch": switch}
    name = policy_name("load_bandit", settings, load_bandit)
    return BatchPolicy(name, partial(_LoadBandit, settings), k, random=True)


BATCH_POLICIES = (
    PolicyKind(
        batch_schedule, "batches", "vLLM 0.32", "the number of requests",
        "K by the number of requests", "a table is required", "as released",
        examples=("batch_schedule:1=3,8=1,32=0",),
    ),
    PolicyKind(
        load_bandit, "batches", "Nightjar", "tokens a second of each length, by batch size",
        "the best length tried, with exploration and a cost of restarting",
        "10 steps a period, exploration 1 / sqrt(periods)", "unverified",
        examples=("load_bandit", "load_bandit:k=2,hold=3,explore=2.0,switch=0"),
    ),
)  # fmt: skip
