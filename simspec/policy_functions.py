"""The two functions of a policy: their signatures, and their compilation."""

# mypy: disable-error-code="name-defined,no-untyped-def"

from collections.abc import Callable
from functools import lru_cache
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR, CO_VARARGS, CO_VARKEYWORDS
from typing import Any

import numpy as np
from numba import njit, types
from numba.core.errors import NumbaError

from simspec.specialize import specialize

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


class PolicyError(ValueError):
    """A policy that is malformed, does not compile, or needs what is missing."""


def compile_policy(policy: str, draft_more: Any, observe: Any) -> tuple[Any, Any]:
    """Both functions compiled with their signatures, once per process; PolicyError if numba refuses
    one.
    """
    compiled = []
    for name, function, template, signature in (
        ("draft_more", draft_more, _draft_more_template, DRAFT_MORE),
        ("observe", observe, _observe_template, OBSERVE),
    ):
        _check_parameters(policy, name, function, template(()))
        try:
            compiled.append(compile_function(function, template, signature))
        except (NumbaError, TypeError, NotImplementedError, ValueError) as error:
            lines = [line.strip() for line in str(error).splitlines()[1:]]
            reason = next((line for line in lines if line), str(error))
            raise PolicyError(
                f"policy {policy!r}: {name} does not compile under numba ({reason}): expected "
                "plain "
                f"arithmetic with the signature of simspec.policy.{name.upper()}"
            ) from None
    return compiled[0], compiled[1]


@lru_cache(maxsize=512)
def compile_function(function: Any, template: Callable[..., Any], signature: Any) -> Any:
    """One function of a policy, compiled with its signature and cached on disk."""
    plain = getattr(function, "py_func", function)
    return specialize(template, signature, given=njit(plain, error_model="numpy"))


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
    code = getattr(getattr(function, "py_func", function), "__code__", None)
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
