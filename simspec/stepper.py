"""Stepper: drives a policy from a Python loop."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR, CO_VARARGS, CO_VARKEYWORDS
import numpy as np
from numba import njit, types
from numba.core.errors import NumbaError
from simspec.cost import CostModel, next_backlog, round_seconds
from simspec.quantization import table
from simspec.rng import POLICY, check_seed, uniform
from simspec.specialize import specialize
from simspec.trace import Trace


IDENTITY = ("probability",)
"""Features that depend on which token was picked, not on the drafter's distribution alone."""


class Stepper:
    """Drives a policy from a Python loop, asking the same compiled functions at the same addresses as `replay`.

    K is the recording's or engine's depth; cost a CostModel of at least that K; features the ((name, grid), ...)
    whose codes `see` will be handed, as in TraceMeta.features. One sequence:
    `begin(sequence)`; per round, `ask(0)`, and while go and slot < cap: compute a token, `see(slot, codes)`,
    `ask(slot + 1)`; verify; `end(computed, drafted, accepted)`. `ask` must be called at the cap as well, its keep
    decides (drafted = computed, less one if computed >= 1 and not keep). PolicyError for a feature that is not shown.
    """

    def __init__(self, policy: Policy, K: int, seed: int, cost: CostModel, features: tuple = ()):
        known = [name for name, _ in features]
        for name in policy.reads:
            if name not in known:
                raise PolicyError(
                    f"policy {policy.name!r} reads {name!r}, the drafter shows {known}: use another policy or drafter"
                )
        self.policy = policy
        self.K = policy.longest(K)
        if cost.K < self.K:
            raise PolicyError(
                f"cost {cost.name!r} prices drafts up to {cost.K}, policy {policy.name!r} drafts up to {self.K}"
            )
        self.cost = cost.reading(policy.reads)
        self._seed = int(check_seed(seed))
        self._columns = [known.index(name) for name in policy.reads]
        self._tables = [table(dict(features)[name]) for name in policy.reads]
        self._more, self._observe = policy.compiled()
        self._params, self._state = policy.start()
        self._features = np.full((self.K, len(policy.reads)), np.nan)
        self._sequence, self._round, self._backlog = 0, 0, 0
        self._drawn, self._tells = False, any(name in IDENTITY for name in policy.reads)

    def begin(self, sequence: int) -> None:
        """Start the sequence with this draw address (Trace.sequence[s]); a stream's state is carried on."""
        if self.policy.scope == "sequence":
            self._state[:] = self.policy.state0
        self._sequence, self._round, self._backlog = int(sequence), 0, 0
        self._features[:] = np.nan

    def unforeseeing(self, drawn: bool) -> None:
        """Says whether drafts are drawn (the rejection rule); PolicyError for a policy that then anticipates, here or when it does so."""
        self._drawn = drawn
        if drawn and self.policy.anticipates:
            self._refuse()

    def _refuse(self):
        raise PolicyError(
            f"policy {self.policy.name!r} drops a drawn token by which token it is, and the text would no longer follow the target: "
            "let it submit what it stops at (inclusive), or use the greedy or coupled rule"
        )

    def ask(self, slot: int) -> tuple[bool, bool]:
        """(go, keep) with slot tokens computed so far; go implies keep."""
        u = (
            uniform(self._seed, self._sequence, self._round, slot, POLICY)
            if self.policy.random
            else math.nan
        )
        go, keep = self._more(self._params, self._state, slot, self._features, u)
        if self._drawn and self._tells and slot and not (go or keep):
            self._refuse()
        return bool(go), bool(go or keep)

    def see(self, slot: int, codes: np.ndarray) -> None:
        """Hand over the codes, uint8[F] in the order of `features`, of the token just computed at slot."""
        for i, (column, grid) in enumerate(zip(self._columns, self._tables)):
            self._features[slot, i] = grid[codes[column]]

    def end(self, computed: int, drafted: int, accepted: int) -> float:
        """Close the round: tells the policy its outcome and modelled seconds, which are returned."""
        cost = self.cost
        seconds = float(
            round_seconds(
                cost.draft,
                cost.verify,
                cost.catch_up,
                cost.overhead,
                computed,
                drafted,
                self._backlog,
            )
        )
        self._backlog = next_backlog(self._backlog, computed, accepted)
        self._observe(
            self._params, self._state, computed, drafted, accepted, self._features, seconds
        )
        self._round += 1
        self._features[:] = np.nan
        return seconds
