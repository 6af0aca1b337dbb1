"""Compilation by numba: functions with a disk cache, and templates that call given functions.

numba calls a function argument through a pointer, and finds no closure over compiled functions in
its cache. So a template is copied with the given functions as its globals, which inlines them. The
copy closes over a fingerprint of all that it calls. numba's cache key includes it, so that an edit
in any file is noticed.

Processes share the cache. numba numbers the code files of a function by signature: two processes
that each add one could read each other's code under their own key. So a function with a cache has
one signature: `specialize` gives each of its functions a name and a signature, and small functions
that compiled code calls with several types have no cache (plain `njit`).
"""

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
from llvmlite.ir import Constant
from numba import njit
from numba.core import caching, config, types
from numba.extending import intrinsic, overload
from numba.misc.appdirs import AppDirs

NO_C_WRAPPER: Any = {"no_cfunc_wrapper": True}
"""Options for what C code never calls. numba's annotations lack them."""
NO_WRAPPERS: Any = {**NO_C_WRAPPER, "no_cpython_wrapper": True}
"""Options for what compiled code alone calls: wrappers take a third of a small compilation."""


def cached_njit(function: Callable[..., Any], **options: Any) -> Any:
    """`numba.njit` with a disk cache, for a function of one signature.

    Where no folder can be written, every process compiles anew.
    """
    compiled: Any = njit(**options, **NO_C_WRAPPER)(function)
    with suppress(RuntimeError, OSError):  # numba found no folder to write to
        compiled._cache = _Cache(function)  # type: ignore[no-untyped-call]
    return compiled


class _Places(caching.CompileResultCacheImpl):
    """Folders that numba tries; without a home it would make one called ~ where it runs."""

    def __init__(self, function: Callable[..., Any]) -> None:
        folders = AppDirs("numba", appauthor=False)  # type: ignore[no-untyped-call]
        if not os.path.isabs(folders.user_cache_dir):
            wide = caching.UserWideCacheLocator
            self._locator_classes = [c for c in self._locator_classes if c is not wide]
        super().__init__(function)  # type: ignore[no-untyped-call]


class _Cache(caching.FunctionCache):
    """A cache whose faults cost a compilation: damaged files, a full disk, a read-only folder.

    Its index is removed then. It could lead to older code in a file that was not replaced.
    """

    _impl_class = _Places

    def load_overload(self, *given: Any) -> Any:
        with self._forgiving():
            return super().load_overload(*given)  # type: ignore[no-untyped-call]

    def save_overload(self, *given: Any) -> None:
        with self._forgiving():
            super().save_overload(*given)  # type: ignore[no-untyped-call]

    @contextmanager
    def _forgiving(self) -> Iterator[None]:
        try:
            yield
        except Exception:  # pickle raises many types
            with suppress(OSError):
                os.unlink(self._cache_file._index_path)


def interpreted(function: Any) -> Any:
    """The Python function of a compiled one, for calls that are not worth a compilation."""
    return getattr(function, "py_func", function)


def specialize(template: Callable, signature: Any, *constants: Any, **functions: Callable) -> Any:
    """The function that template(key) returns, compiled with `signature` and with `functions` as
    its globals.

    key is (fingerprints, *constants): the constants are compile-time constants. Plain Python where
    numba is disabled. Raises what numba raises for functions that it cannot compile.
    """
    namespace = {**template.__globals__, **functions}
    prints = tuple(fingerprint(f) for f in (template((None, *constants)), *functions.values()))
    inner = template((prints, *constants))
    function = FunctionType(
        inner.__code__, namespace, inner.__name__, inner.__defaults__, inner.__closure__
    )
    key = hashlib.sha256(repr((prints, constants)).encode()).hexdigest()[:16]
    function.__qualname__ += f".{key}"  # which names its cache files
    if config.DISABLE_JIT:  # type: ignore[attr-defined]
        return function
    # Division as in numpy: an interpreted policy's state holds numpy numbers, which do not raise
    # either.
    options: Any = {"nogil": True, "error_model": "numpy"}
    if None in prints:
        compiled = njit(**options, **NO_C_WRAPPER)(function)
    else:
        compiled = cached_njit(function, **options)
    compiled.compile(signature)
    compiled.disable_compile()
    return compiled


def borrowed(array: np.ndarray) -> np.ndarray:
    """The same array as a borrowed reference: compiled code does not count it, which would cost
    more than a round.

    The caller must hold the array meanwhile; a function's argument is held by its caller.
    """
    return array


@overload(borrowed)
def _borrowed(array):  # type: ignore[no-untyped-def]
    return lambda array: _without_owner(array)  # type: ignore[call-arg]


@intrinsic
def _without_owner(typing, array):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        view = context.make_array(array)(context, builder, arguments[0])
        view.meminfo = Constant(view.meminfo.type, None)
        return view._getvalue()

    return array(array), generate


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
