"""Fingerprints of functions: the code of a function and of all that it calls."""

import hashlib
from collections.abc import Callable
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
from numba.core import types

_CONSTANTS = (
    bool, int, float, complex, str, bytes, type(None), type,
    np.generic, np.dtype, np.ufunc, types.Type, BuiltinFunctionType,
)  # fmt: skip
# numba's own cache key holds the versions of these.
_VERSIONED_MODULES = ("builtins", "math", "numba", "numpy")


def fingerprint(function: Callable) -> str | None:
    """SHA-256 of a function's code and of all code and constants that its names refer to, in any
    module.

    None where it uses an object whose changes cannot be detected: its caller must not be cached.
    """
    parts: list[bytes] = []
    complete = _gather(function, parts, set())
    return hashlib.sha256(b"\0".join(parts)).hexdigest() if complete else None


def _gather(value: Any, parts: list[bytes], seen: set) -> bool:
    """Appends the bytes of a value and of what it uses; False where some of it has none."""
    value = getattr(value, "py_func", value)
    if isinstance(value, FunctionType):
        if value in seen:
            return True
        seen.add(value)
        # The cached code imports the module: equal functions of two modules differ.
        parts.append(str(value.__module__).encode())
        _gather_code(value.__code__, parts)
        closure = [cell.cell_contents for cell in value.__closure__ or ()]
        used = closure + _referenced(value) + list(value.__defaults__ or ())
        return all([_gather(used_value, parts, seen) for used_value in used])
    if isinstance(value, (tuple, list)):
        parts.append(f"{type(value).__name__} of {len(value)}".encode())
        return all([_gather(item, parts, seen) for item in value])
    if isinstance(value, np.ndarray):
        parts.append(f"{value.dtype}{value.shape}".encode() + value.tobytes())
    elif isinstance(value, _CONSTANTS):
        parts.append(f"{type(value).__name__} {value!r}".encode())
    else:
        return False
    return True


def _referenced(function: FunctionType) -> list:
    """The values of the function's names: globals, and attributes of modules."""
    names = sorted(_names(function.__code__))
    reached = [function.__globals__[name] for name in names if name in function.__globals__]
    values = []
    for value in reached:  # grows during the loop
        if not isinstance(value, ModuleType):
            values.append(value)
        elif value.__name__.split(".")[0] not in _VERSIONED_MODULES:
            reached += [getattr(value, name) for name in names if hasattr(value, name)]
    return values


def _names(code: CodeType) -> set[str]:
    nested = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*map(_names, nested))


def _gather_code(code: CodeType, parts: list[bytes]) -> None:
    names = code.co_names, code.co_varnames, code.co_freevars
    parts.append(repr((code.co_code, *names, code.co_argcount)).encode())
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _gather_code(constant, parts)
        else:
            parts.append(repr(constant).encode())
