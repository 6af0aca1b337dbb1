"""Policy: two small functions that decide how far to draft, and the Stepper that drives one from Python."""

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






@dataclass(frozen=True)
class Policy:
    """When to stop drafting.

    | field      | type      | meaning                                                                                |
    | ---------- | --------- | ----------------------------------------------------------------------------------------- |
    | name       | str       | label in tables                                                                        |
    | draft_more | function  | (params, state, slot, features, u) -> (go, keep)                                        |
    | observe    | function  | (params, state, computed, drafted, accepted, features, cost) -> None                    |
    | params     | (float,)  | float64 array to both; not to be changed                                                |
    | state0     | (float,)  | first state; both may change the float64 array in place                                 |
    | K          | int, None | longest draft; None: the trace's                                                        |
    | reads      | (str,)    | names of the features it is shown                                                       |
    | scope      | str       | 'sequence': state0 anew for each; 'stream': state carried on, sequences in file order    |
    | random     | bool      | u is a fresh uniform draw at each question; otherwise NaN                                |
    | anticipates | bool     | whether to drop a token may depend on which token it is: refused where drafts are drawn   |

    `draft_more` is asked before slot 0, after every computed token, and at the cap too (go is then ignored);
    slot is the number of tokens computed so far in the round. (True, _): compute one more. (False, True): stop
    and submit all computed. (False, False): stop and drop the last one, paid for but not submitted; computed is
    then drafted + 1. At slot 0 keep says nothing. `observe` is told the round's outcome and its modelled
    seconds, never a clock. features is float64[K, len(reads)], decoded from the recording's grids; rows from
    slot on are NaN: what was not paid for is not seen.

    Non-anticipation: keeping or dropping may depend on the whole drafter distribution q at its slot, never on which token was sampled
    from it, or the text would no longer follow the target under the rejection rule. Features of IDENTITY tell that token: a policy that
    reads one may stop by it, but there may not drop by it, and is refused at the moment it does.

    Both functions must compile under numba with the signatures DRAFT_MORE and OBSERVE. They are compiled into the replay kernel,
    once for each pair of functions, and found again on disk until they or what they call change, in whatever file that is.
    State is a mutable array and not the tuple of the first design: it may have any length (per-depth posteriors, bandit arms).
    """

    name: str
    draft_more: Callable
    observe: Callable
    params: tuple = field(default=(), repr=False)
    state0: tuple = field(default=(), repr=False)
    K: int | None = None
    reads: tuple = ()
    scope: str = "sequence"
    random: bool = False
    anticipates: bool = False

    def __post_init__(self):
        if not isinstance(self.name, str) or not self.name:
            raise PolicyError(f"a policy's name is {self.name!r}, expected text")
        for name in ("params", "state0"):
            try:
                value = tuple(map(float, getattr(self, name)))
            except (TypeError, ValueError):
                raise PolicyError(
                    f"policy {self.name!r}: {name} is {getattr(self, name)!r}, expected numbers"
                ) from None
            if any(math.isnan(x) for x in value):
                raise PolicyError(f"policy {self.name!r}: {name} holds NaN, expected numbers")
            object.__setattr__(self, name, value)
        if self.K is not None and not (isinstance(self.K, int) and 0 <= self.K <= 255):
            raise PolicyError(
                f"policy {self.name!r}: K is {self.K!r}, expected None or an integer in 0..255"
            )
        reads = tuple(self.reads) if not isinstance(self.reads, str) else (self.reads,)
        if not all(isinstance(name, str) for name in reads) or len(set(reads)) < len(reads):
            raise PolicyError(
                f"policy {self.name!r}: reads is {self.reads!r}, expected different feature names"
            )
        object.__setattr__(self, "reads", reads)
        if self.scope not in ("sequence", "stream"):
            raise PolicyError(
                f"policy {self.name!r}: scope is {self.scope!r}, expected 'sequence' or 'stream'"
            )
        for name in ("random", "anticipates"):
            if not isinstance(getattr(self, name), bool):
                raise PolicyError(
                    f"policy {self.name!r}: {name} is {getattr(self, name)!r}, expected True or False"
                )
        for name in ("draft_more", "observe"):
            if not callable(getattr(self, name)):
                raise PolicyError(
                    f"policy {self.name!r}: {name} is {getattr(self, name)!r}, expected a function"
                )

    @cached_property
    def _numbers(self):
        # A plan such as the oracle's is long, and tuples turn into arrays slowly.
        return np.array(self.params, dtype=np.float64), np.array(self.state0, dtype=np.float64)

    def start(self) -> tuple[np.ndarray, np.ndarray]:
        """(params, state0) as fresh float64 arrays."""
        params, state = self._numbers
        return params.copy(), state.copy()

    def compiled(self) -> tuple[Callable, Callable]:
        """(draft_more, observe) compiled with their signatures, once per process; PolicyError if numba refuses."""
        done = []
        for name, template, signature in (
            ("draft_more", _more, DRAFT_MORE),
            ("observe", _observe, OBSERVE),
        ):
            self._check_form(name, template(()).__code__)
            try:
                done.append(_compile(getattr(self, name), template, signature))
            except (NumbaError, TypeError, NotImplementedError, ValueError) as error:
                reason = next(
                    (line.strip() for line in str(error).splitlines()[1:] if line.strip()),
                    str(error),
                )
                raise PolicyError(
                    f"policy {self.name!r}: {name} does not compile under numba ({reason}): "
                    f"expected plain arithmetic with the signature of simspec.policy.{name.upper()}"
                ) from None
        return done[0], done[1]

    def _check_form(self, name, wanted):
        code = getattr(
            getattr(getattr(self, name), "py_func", getattr(self, name)), "__code__", None
        )
        if code is None:
            return  # no Python function: numba says what it is
        odd = CO_VARARGS | CO_VARKEYWORDS | CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR
        if code.co_argcount != wanted.co_argcount or code.co_kwonlyargcount or code.co_flags & odd:
            given, names = (
                code.co_varnames[: code.co_argcount],
                wanted.co_varnames[: wanted.co_argcount],
            )
            raise PolicyError(
                f"policy {self.name!r}: {name} does not compile under numba: it takes ({', '.join(given)}), "
                f"expected a plain function of ({', '.join(names)})"
            )

    def resolve(self, trace: Trace, cost: CostModel) -> "Policy":
        """The policy for this trace at these costs: itself."""
        return self

    def submitted(self, K: int) -> int:
        """Tree nodes that costs must price where drafts reach K: 0, a chain has none."""
        return 0

    def longest(self, K: int) -> int:
        """Longest draft when the recording or engine reaches K; PolicyError if the policy wants more."""
        if self.K is not None and self.K > K:
            raise PolicyError(
                f"policy {self.name!r} drafts up to {self.K}, here drafts reach {K}: lower it, or record deeper"
            )
        return K if self.K is None else self.K








