"""The two functions of a policy: their signatures and compilation."""

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


_VECTOR = types.float64[::1]


_MATRIX = types.float64[:, ::1]


DRAFT_MORE = types.UniTuple(types.boolean, 2)(_VECTOR, _VECTOR, types.int64, _MATRIX, types.float64)


OBSERVE = types.void(
    _VECTOR, _VECTOR, types.int64, types.int64, types.int64, _MATRIX, types.float64
)


class PolicyError(ValueError):
    """A policy that is malformed, does not compile, or asks for what is not there."""


# `given` is the policy's function: these two hold it to its signature, whatever it returns, and carry it to the disk cache.
def _more(key):
    def draft_more(params, state, slot, features, u):
        key
        go, keep = given(params, state, slot, features, u)  # noqa: F821
        return go, keep

    return draft_more


def _observe(key):
    def observe(params, state, computed, drafted, accepted, features, cost):
        key
        return given(params, state, computed, drafted, accepted, features, cost)  # noqa: F821

    return observe


@lru_cache(maxsize=512)
def _compile(function, template, signature):
    return specialize(
        template, signature, given=njit(getattr(function, "py_func", function), error_model="numpy")
    )
