"""Stepper: drives a policy from a Python loop."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from simspec.cost.model import CostModel
from simspec.cost.rounds import next_backlog, round_seconds
from simspec.numerics.compile import interpreted
from simspec.numerics.rng import POLICY, check_seed, uniform
from simspec.policy.policy import Policy, PolicyError
from simspec.trace.quantization import table
from simspec.trace.trace import Trace

TOKEN_FEATURES = ("probability",)
"""Features that depend on which token was drafted, not on the drafter's distribution alone."""


class Stepper:
    """Calls a policy's compiled functions at the same draw addresses as `replay`.

    K is the longest draft of the recording or engine, which cost prices; features, as in
    TraceMeta.features, are ((name, grid), ...) of the codes passed to `see`.

    One sequence: `begin(sequence)`. One round: `ask(0)`; while go and slot < cap, compute a token,
    `see(slot, codes)`, `ask(slot + 1)`; verify; `end(computed, drafted, accepted)`.
    `ask` must be called at the cap as well, where keep decides whether the last token is submitted.
    PolicyError for a feature that is missing.
    """

    def __init__(
        self,
        policy: Policy,
        K: int,
        seed: int,
        cost: CostModel,
        features: tuple[tuple[str, str], ...] = (),
    ) -> None:
        available = [name for name, _ in features]
        for name in policy.reads:
            if name not in available:
                raise PolicyError(
                    f"policy {policy.name!r} reads {name!r}, the drafter shows {available}: "
                    "use another policy or drafter"
                )
        self.policy = policy
        self.K = policy.longest(K)
        if cost.K < self.K:
            raise PolicyError(
                f"cost {cost.name!r} prices drafts up to {cost.K}, "
                f"policy {policy.name!r} drafts up to {self.K}"
            )
        self.cost = cost.reading(policy.reads)
        self._seed = int(check_seed(seed))
        self._columns = [available.index(name) for name in policy.reads]
        self._tables = [table(dict(features)[name]) for name in policy.reads]
        self._more, self._observe = policy.compiled(checked=not policy.built_in)
        self._params, self._state = policy.start()
        self._features = np.full((self.K, len(policy.reads)), np.nan)
        self._sequence, self._round, self._backlog = 0, 0, 0
        self._drawn = False
        self._reads_token = any(name in TOKEN_FEATURES for name in policy.reads)

    def begin(self, sequence: int) -> None:
        """Starts the sequence with this draw address (Trace.sequence[s]); a stream's state is
        kept.
        """
        if self.policy.scope == "sequence":
            self._state[:] = self.policy.state0
        self._sequence, self._round, self._backlog = int(sequence), 0, 0
        self._features[:] = np.nan

    def unforeseeing(self, drawn: bool) -> None:
        """Sets whether drafts are drawn (the rejection rule); PolicyError for a policy that
        anticipates.
        """
        self._drawn = drawn
        if drawn and self.policy.anticipates:
            self._refuse()

    def _refuse(self) -> None:
        raise PolicyError(
            f"policy {self.policy.name!r} drops a drawn token by which token it is, and the text "
            "would no longer follow the target: let it submit what it stops at (inclusive), "
            "or use the greedy or coupled rule"
        )

    @contextmanager
    def _bounds(self, function: str) -> Iterator[None]:
        """PolicyError where a policy's function indexes beyond its arrays."""
        try:
            yield
        except IndexError:
            raise PolicyError(
                f"policy {self.policy.name!r}: {function} indexes beyond an array: params has "
                f"{len(self._params)} values, state {len(self._state)}, "
                f"features {self.K} rows of {len(self.policy.reads)}"
            ) from None

    def ask(self, slot: int) -> tuple[bool, bool]:
        """(go, keep) with slot tokens computed so far; go implies keep."""
        u = math.nan
        if self.policy.random:
            u = uniform(self._seed, self._sequence, self._round, slot, POLICY)
        with self._bounds("draft_more"):
            go, keep = self._more(self._params, self._state, slot, self._features, u)
        if self._drawn and self._reads_token and slot and not (go or keep):
            self._refuse()
        return bool(go), bool(go or keep)

    def see(self, slot: int, codes: Any) -> None:
        """Receives the codes, uint8[F] in the order of `features`, of the token just computed."""
        for i, (column, grid) in enumerate(zip(self._columns, self._tables)):
            self._features[slot, i] = grid[codes[column]]

    def end(self, computed: int, drafted: int, accepted: int) -> float:
        """Closes the round: passes outcome and modelled seconds to the policy, and returns the
        seconds.
        """
        cost, backlog = self.cost, self._backlog
        seconds = float(interpreted(round_seconds)(*cost.tables, computed, drafted, backlog))
        self._backlog = interpreted(next_backlog)(backlog, computed, accepted)
        with self._bounds("observe"):
            self._observe(
                self._params, self._state, computed, drafted, accepted, self._features, seconds
            )
        self._round += 1
        self._features[:] = np.nan
        return seconds


def walk(stepper: Stepper, trace: Trace) -> Iterator[tuple[int, int, int, int]]:
    """(row, computed, drafted, accepted) of each round on a recording, one by one in Python.

    The rounds of `replay`, by the loop of an engine. Acceptance is `trace.run`.
    """
    for s in range(trace.sequences):
        stepper.begin(int(trace.sequence[s]))
        row, end = trace.offset[s : s + 2].tolist()
        last = row + int(trace.budget[s]) - 1
        while row < end:
            cap, computed = min(stepper.K, last - row, int(trace.depth[row])), 0
            go, keep = stepper.ask(0)
            while go and computed < cap:
                stepper.see(computed, trace.feature[row, computed])
                computed += 1
                go, keep = stepper.ask(computed)
            drafted = computed if keep or not computed else computed - 1
            accepted = min(drafted, int(trace.run[row]))
            stepper.end(computed, drafted, accepted)
            yield row, computed, drafted, accepted
            row += accepted + 1
