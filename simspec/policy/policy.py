"""Policy: two small functions that decide how many tokens to draft; their signatures, and checks of
the arguments of built-in ones."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, wraps
from inspect import (
    CO_ASYNC_GENERATOR,
    CO_COROUTINE,
    CO_GENERATOR,
    CO_VARARGS,
    CO_VARKEYWORDS,
    signature,
)
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

import msgspec
import numpy as np
from msgspec import Meta
from numba import njit, types
from numba.core.errors import NumbaError, UnsupportedBytecodeError

from simspec.cost.model import CostModel
from simspec.cost.rounds import next_backlog, round_seconds
from simspec.numerics.compile import NO_WRAPPERS, interpreted, specialize
from simspec.numerics.rng import POLICY, check_seed, uniform
from simspec.settings import reason
from simspec.trace.quantization import table
from simspec.trace.trace import Trace

# mypy: disable-error-code="name-defined,no-untyped-def"


Array = Any
"""A float64 array of a compiled function."""
Go = tuple[bool, bool]
"""(go, keep) of `draft_more`."""

_VECTOR = types.float64[::1]
_MATRIX = types.float64[:, ::1]
_GO = types.UniTuple(types.boolean, 2)  # type: ignore[no-untyped-call]
DRAFT_MORE = _GO(_VECTOR, _VECTOR, types.int64, _MATRIX, types.float64)
OBSERVE = types.void(
    _VECTOR, _VECTOR, types.int64, types.int64, types.int64, _MATRIX, types.float64
)
_NOT_PLAIN = CO_VARARGS | CO_VARKEYWORDS | CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR


_NOT_COMPILED = (
    NumbaError, UnsupportedBytecodeError, TypeError, NotImplementedError, ValueError
)  # fmt: skip


class PolicyError(ValueError):
    """A policy that is malformed, does not compile, or needs what is missing."""


def compile_policy(
    policy: str, draft_more: Any, observe: Any, checked: bool = False
) -> tuple[Any, Any]:
    """Both functions compiled with their signatures, once per process; PolicyError if numba refuses
    one. checked: an index beyond an array is an IndexError there, and costs time.
    """
    compiled = []
    for name, function, template, wanted, returned in (
        ("draft_more", draft_more, _draft_more_template, DRAFT_MORE, "two truth values"),
        ("observe", observe, _observe_template, OBSERVE, "nothing"),
    ):
        _check_parameters(policy, name, function, template(()))
        try:
            compiled.append(compile_function(function, template, wanted, checked))
        except _NOT_COMPILED as error:
            raise PolicyError(
                f"policy {policy!r}: {name} does not compile under numba: "
                f"{_numba_sentence(str(error))}; expected plain arithmetic that returns {returned}"
            ) from None
    return compiled[0], compiled[1]


def _numba_sentence(text: str) -> str:
    """What numba objects to, and the source line that it marks, of a message of many lines."""
    lines = [line.strip() for line in text.splitlines()]
    said = [line for line in lines if line and not line.startswith("Failed in nopython mode")]
    sentence = said[0] if said else text
    if sentence.endswith("signature:"):
        sentence += next((line[3:] for line in said if line.startswith(">>>")), "")
    at = next((i for i, line in enumerate(lines) if line and not line.strip("^")), 0)
    return f"{sentence}, in `{lines[at - 1]}`" if at and "given(" not in lines[at - 1] else sentence


@lru_cache(maxsize=512)
def compile_function(
    function: Any, template: Callable[..., Any], signature: Any, checked: bool
) -> Any:
    """One function of a policy, compiled with its signature and cached on disk."""
    options: Any = {"boundscheck": True} if checked else {}
    given = njit(interpreted(function), error_model="numpy", **options, **NO_WRAPPERS)
    return specialize(template, signature, *options, given=given)


def observe_nothing(
    params: np.ndarray,
    state: np.ndarray,
    computed: int,
    drafted: int,
    accepted: int,
    features: np.ndarray,
    cost: float,
) -> None:
    """The `observe` of a policy without memory."""


def _check_parameters(policy: str, name: str, function: Any, wanted: Any) -> None:
    code = getattr(interpreted(function), "__code__", None)
    if code is None:
        return  # not a Python function: numba reports what it is
    expected = wanted.__code__
    if (
        code.co_argcount != expected.co_argcount
        or code.co_kwonlyargcount
        or code.co_flags & _NOT_PLAIN
    ):
        actual = ", ".join(code.co_varnames[: code.co_argcount])
        names = ", ".join(expected.co_varnames[: expected.co_argcount])
        raise PolicyError(
            f"policy {policy!r}: {name} does not compile under numba: it takes ({actual}), "
            f"expected a plain function of ({names})"
        )


# `given` is the policy's function. These two give it its signature, whatever it returns, and its
# key in the disk cache.
def _draft_more_template(key: Any) -> Any:
    def draft_more(params, state, slot, features, u):
        key  # noqa: B018
        go, keep = given(params, state, slot, features, u)  # noqa: F821
        return go, keep

    return draft_more


def _observe_template(key: Any) -> Any:
    def observe(params, state, computed, drafted, accepted, features, cost):
        key  # noqa: B018
        return given(  # noqa: F821
            params, state, computed, drafted, accepted, features, cost
        )

    return observe


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
    compiled into the replay kernel, and cached on disk until they or what they call change. An
    index beyond an array is a PolicyError where it occurs in the first 64 rounds of a recording, or
    in a Stepper; later ones are not noticed.
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
        check_argument(self._label, "K", self.K, Draft | None)
        reads = (self.reads,) if isinstance(self.reads, str) else tuple(self.reads)
        object.__setattr__(self, "reads", reads)
        if not all(isinstance(name, str) for name in reads) or len(set(reads)) < len(reads):
            raise PolicyError(f"{self._label}: reads is {reads!r}, expected different names")
        check_argument(self._label, "scope", self.scope, Scope)
        for name in ("random", "anticipates"):
            check_argument(self._label, name, getattr(self, name), bool)
        for name in ("draft_more", "observe"):
            if not callable(getattr(self, name)):
                raise PolicyError(f"{self._label}: {name} is {getattr(self, name)!r}, no function")

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

    @property
    def built_in(self) -> bool:
        """Whether both functions are of this package, whose indices the tests examine."""
        return all(
            str(getattr(function, "__module__", "")).startswith("simspec.")
            for function in (self.draft_more, self.observe)
        )

    def compiled(self, checked: bool = False) -> tuple[Any, Any]:
        """(draft_more, observe) compiled, once per process; PolicyError if numba refuses.

        checked: an index beyond an array is an IndexError instead of a crash. Replays compile
        without, after a trial run with it.
        """
        return compile_policy(self.name, self.draft_more, self.observe, checked)

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


Draft = Annotated[int, Meta(ge=0, le=255)]
"""Tokens of a draft."""
Length = Annotated[int, Meta(ge=1, le=255)]
Count = Annotated[int, Meta(ge=1, le=10**6)]
Share = Annotated[float, Meta(ge=0, le=1)]
Scope = Literal["sequence", "stream"]


def check_argument(policy: str, name: str, value: Any, kind: Any) -> None:
    """PolicyError, one line, unless the value is of this annotation."""
    try:
        # of numpy's numbers its float64 alone is a float
        msgspec.convert(float(value) if isinstance(value, float) else value, kind)
    except msgspec.ValidationError as error:
        raise PolicyError(f"{policy}: {name} is {value!r}, {reason(error, kind)}") from None


R = TypeVar("R")


def checked(factory: Callable[..., R]) -> Callable[..., R]:
    """The factory of a policy, which refuses arguments that are not of its annotations."""
    takes, kinds = signature(factory), get_type_hints(factory, include_extras=True)

    @wraps(factory)
    def make(*given: Any, **named: Any) -> R:
        for name, value in takes.bind(*given, **named).arguments.items():
            check_argument(factory.__name__, name, value, kinds[name])
        return factory(*given, **named)

    return make


def check_lengths(policy: str, name: str, value: Any) -> tuple[int, ...]:
    """Draft lengths from a string such as 1/3/5/7; PolicyError unless they ascend in 0..255."""
    parts = str(value).split("/")
    lengths = tuple(int(part) for part in parts if part.isascii() and part.isdigit())
    ascending = all(a < b for a, b in zip(lengths, lengths[1:]))
    if len(lengths) < len(parts) or not ascending or lengths[-1] > 255:
        raise PolicyError(
            f"{policy}: {name} is {value!r}, expected ascending lengths in 0..255 such as 1/3/5"
        )
    return lengths


def policy_name(policy: str, settings: dict[str, Any], factory: Callable[..., Any]) -> str:
    """policy:key=value,... of the settings that differ from the factory's defaults."""
    changed = changed_settings(settings, factory)
    return f"{policy}:{','.join(changed)}" if changed else policy


def changed_settings(settings: dict[str, Any], factory: Callable[..., Any]) -> list[str]:
    """key=value of each setting that differs from the factory's default."""
    defaults = signature(factory).parameters
    return [
        f"{key}={str(value).lower() if isinstance(value, bool) else value}"
        for key, value in settings.items()
        if value != defaults[key].default
    ]


def threshold_name(
    policy: str, threshold: float, settings: dict[str, Any], factory: Callable[..., Any]
) -> str:
    """policy:threshold,key=value,...; the threshold in its shortest exact form."""
    short = f"{threshold:g}" if float(f"{threshold:g}") == threshold else repr(threshold)
    return ",".join([f"{policy}:{short}", *changed_settings(settings, factory)])


def check_priced(policy: str, cost: CostModel, K: int) -> None:
    """PolicyError, one line, where the costs end before drafts of K tokens."""
    if K > cost.K:
        raise PolicyError(
            f"cost {cost.name!r} prices drafts up to {cost.K}, {policy} plans up to {K}: "
            "measure further"
        )


def planned_seconds(policy: str, cost: CostModel, K: int) -> list[float]:
    """Seconds of a round that drafts 0..K tokens, without a backlog: a table of one cost a length.

    seconds[k] = overhead + draft[k] + verify[k]. PolicyError where the costs end before K or a
    round is free.
    """
    check_priced(policy, cost, K)
    seconds = [cost.overhead + float(cost.draft[k] + cost.verify[k]) for k in range(K + 1)]
    if min(seconds) <= 0:
        raise PolicyError(
            f"cost {cost.name!r}: a round of {seconds.index(min(seconds))} drafted tokens is free, "
            f"{policy} divides by its seconds: measure verification"
        )
    return seconds


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
