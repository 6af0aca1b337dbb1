"""Policy: two small functions that decide how many tokens to draft."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from simspec.cost import CostModel
from simspec.policy_functions import DRAFT_MORE, OBSERVE, PolicyError, compile_policy
from simspec.trace import Trace

__all__ = ["DRAFT_MORE", "OBSERVE", "Policy", "PolicyError"]


@dataclass(frozen=True)
class Policy:
    """When to stop drafting.

    | field       | type      | meaning                                                            |
    | ----------- | --------- | ------------------------------------------------------------------ |
    | name        | str       | label in tables                                                    |
    | draft_more  | function  | (params, state, slot, features, u) -> (go, keep)                   |
    | observe     | function  | (params, state, computed, drafted, accepted, features, cost)       |
    | params      | (float,)  | float64 array to both; read-only                                   |
    | state0      | (float,)  | first state; both may change the float64 array in place            |
    | K           | int, None | longest draft; None: the trace's                                   |
    | reads       | (str,)    | names of the features that it receives                             |
    | scope       | str       | 'sequence': state0 for each; 'stream': state carried on            |
    | random      | bool      | u is a fresh uniform draw at each call; otherwise NaN              |
    | anticipates | bool      | may drop a token because of its identity: refused for drawn drafts |

    `draft_more` is called before slot 0, after every computed token, and at the cap, where go is
    ignored. slot is the number of tokens computed so far in the round.

    | (go, keep)     | meaning                                             |
    | -------------- | --------------------------------------------------- |
    | (True, _)      | compute one more token                              |
    | (False, True)  | stop and submit all computed tokens                 |
    | (False, False) | stop and drop the last one: computed is drafted + 1 |

    At slot 0 keep is ignored. `observe` receives the round's outcome and modelled time, never
    wall-clock time. features is float64[K, len(reads)], decoded from the recording's grids; rows
    from slot on are NaN, since a policy sees only features of computed tokens. A stream runs
    through sequences in file order.

    Non-anticipation: dropping a token may depend on the drafter's distribution q, never on which
    token was sampled from it. Otherwise the output would not follow the target under the rejection
    rule. A policy that reads one of TOKEN_FEATURES may stop by it; it is refused if it drops by it.

    Both functions must compile under numba with the signatures DRAFT_MORE and OBSERVE. They are
    compiled into the replay kernel, and cached on disk until they or what they call change.
    """

    name: str
    draft_more: Callable[..., Any]
    observe: Callable[..., Any]
    params: tuple[float, ...] = field(default=(), repr=False)
    state0: tuple[float, ...] = field(default=(), repr=False)
    K: int | None = None
    reads: tuple[str, ...] = ()
    scope: str = "sequence"
    random: bool = False
    anticipates: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise PolicyError(f"a policy's name is {self.name!r}, expected text")
        for name in ("params", "state0"):
            object.__setattr__(self, name, self._floats(name))
        if self.K is not None and not (isinstance(self.K, int) and 0 <= self.K <= 255):
            raise PolicyError(
                f"{self._label}: K is {self.K!r}, expected None or an integer in 0..255"
            )
        reads = tuple(self.reads) if not isinstance(self.reads, str) else (self.reads,)
        if not all(isinstance(name, str) for name in reads) or len(set(reads)) < len(reads):
            raise PolicyError(
                f"{self._label}: reads is {self.reads!r}, expected different feature names"
            )
        object.__setattr__(self, "reads", reads)
        if self.scope not in ("sequence", "stream"):
            raise PolicyError(
                f"{self._label}: scope is {self.scope!r}, expected 'sequence' or 'stream'"
            )
        for name in ("random", "anticipates"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise PolicyError(f"{self._label}: {name} is {value!r}, expected True or False")
        for name in ("draft_more", "observe"):
            value = getattr(self, name)
            if not callable(value):
                raise PolicyError(f"{self._label}: {name} is {value!r}, expected a function")

    def _floats(self, name: str) -> tuple[float, ...]:
        value = getattr(self, name)
        try:
            floats = tuple(map(float, value))
        except (TypeError, ValueError):
            raise PolicyError(f"{self._label}: {name} is {value!r}, expected numbers") from None
        if any(map(math.isnan, floats)):
            raise PolicyError(f"{self._label}: {name} holds NaN, expected numbers")
        return floats

    @property
    def _label(self) -> str:
        return f"policy {self.name!r}"

    @cached_property
    def _arrays(self) -> tuple[np.ndarray, np.ndarray]:
        # A plan such as the oracle's is long, and tuples turn into arrays slowly.
        return np.array(self.params, dtype=np.float64), np.array(self.state0, dtype=np.float64)

    def start(self) -> tuple[np.ndarray, np.ndarray]:
        """(params, state0) as fresh float64 arrays."""
        params, state = self._arrays
        return params.copy(), state.copy()

    def compiled(self) -> tuple[Any, Any]:
        """(draft_more, observe) compiled, once per process; PolicyError if numba refuses."""
        return compile_policy(self.name, self.draft_more, self.observe)

    def resolve(self, trace: Trace, cost: CostModel) -> "Policy":
        """The policy for this trace at these costs: itself."""
        return self

    def submitted(self, K: int) -> int:
        """Tree nodes that costs must price where drafts reach K: 0, a chain has none."""
        return 0

    def longest(self, K: int) -> int:
        """Longest draft where drafts reach K; PolicyError if the policy drafts more."""
        if self.K is not None and self.K > K:
            raise PolicyError(
                f"{self._label} drafts up to {self.K}, here drafts reach {K}: "
                "lower it, or record deeper"
            )
        return K if self.K is None else self.K
