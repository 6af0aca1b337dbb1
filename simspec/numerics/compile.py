"""Compilation by numba: a disk cache for many processes, and functions that call given ones.

numba calls a function argument through a pointer, and finds no closure over compiled functions in
its cache. So a template is copied with the given functions as its globals, which inlines them. The
copy closes over a fingerprint of all that it calls. numba's cache key includes it, so that an edit
in any file is noticed.
"""

import hashlib
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from os import getpid
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, cast

import numpy as np
from llvmlite.ir import Constant
from numba import njit
from numba.core import caching, config, types
from numba.core.dispatcher import Dispatcher
from numba.extending import intrinsic, overload
from numba.misc.appdirs import AppDirs

NO_C_WRAPPER: Any = {"no_cfunc_wrapper": True}
"""Options for what C code never calls. numba's annotations lack them."""
NO_WRAPPERS: Any = {**NO_C_WRAPPER, "no_cpython_wrapper": True}
"""Options for what compiled code alone calls: wrappers take a third of a small compilation."""


def cached_njit(function: Callable[..., Any]) -> Any:
    """`njit(cache=True)` whose cache files several processes may write at once."""
    return share_cache(njit(function, **NO_C_WRAPPER))


def share_cache(compiled: Any) -> Any:
    """Gives a compiled function a disk cache whose code files carry the process id; plain Python is
    returned as it is.

    Where no folder can be written, every process compiles anew.
    """
    if isinstance(compiled, Dispatcher):
        with suppress(RuntimeError, OSError):  # numba found no folder to write to
            cast(Any, compiled)._cache = _SharedCache(compiled.py_func)
    return compiled


class _ProcessFiles(caching.IndexDataCacheFile):
    """Names the code files of this process.

    A function with several signatures has one index and numbered code files. Two processes that
    each add a signature take the same next number, so that one's index could lead to the other's
    code. With the process id in the name an index leads to its own code, or to no file.

    A file that is damaged or cannot be read counts as none, and is replaced.
    """

    def _load_index(self) -> dict[Any, str]:
        try:
            index: dict[Any, str] = super()._load_index()  # type: ignore[no-untyped-call]
        except Exception:  # pickle raises many types
            return {}
        return index

    def _load_data(self, name: str) -> Any:
        try:
            return super()._load_data(name)  # type: ignore[no-untyped-call]
        except Exception as error:
            raise OSError(f"{name} is damaged") from error  # which numba takes for a missing file

    def _data_name(self, number: int) -> str:
        name: str = super()._data_name(number)  # type: ignore[no-untyped-call]
        return f"{name.removesuffix('.nbc')}.{getpid()}.nbc"


def _places() -> list[Any]:
    """Folders that numba tries for its cache; without a home it would make one called ~ here."""
    classes: list[Any] = caching.CompileResultCacheImpl._locator_classes
    folders = AppDirs("numba", appauthor=False)  # type: ignore[no-untyped-call]
    if os.path.isabs(folders.user_cache_dir):
        return classes
    return [place for place in classes if "UserWide" not in place.__name__]


class _Places(caching.CompileResultCacheImpl):
    _locator_classes = _places()


class _SharedCache(caching.FunctionCache):
    _impl_class = _Places

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)  # type: ignore[no-untyped-call]
        locator = self._impl.locator
        self._cache_file = _ProcessFiles(  # type: ignore[no-untyped-call]
            self._cache_path, self._impl.filename_base, locator.get_source_stamp()
        )

    def save_overload(self, sig: Any, data: Any) -> None:
        with suppress(OSError):  # a full disk, or a folder that has become read-only
            super().save_overload(sig, data)  # type: ignore[no-untyped-call]


def _load_numpy_support(linalg: str = "scipy.linalg.cython_blas") -> None:
    """Imports numba's part for arrays, which any compiled code needs, without scipy's linear
    algebra.

    numba imports that only to see that it is installed, and once more where compiled code calls it:
    a sixth of the start of a command. A substitute answers the first import and is removed again.
    """
    if linalg in sys.modules or find_spec("scipy") is None:
        return
    sys.modules[linalg] = ModuleType(linalg)
    try:
        import_module("numba.np.arraymath")
    finally:
        del sys.modules[linalg]


if not config.DISABLE_JIT:  # type: ignore[attr-defined]
    _load_numpy_support()


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
    # numba numbers the code files of all functions of one name together, so that two processes that
    # add to them could read each other's code under their own key. Each function here gets its own
    # name and files.
    key = hashlib.sha256(repr((prints, constants)).encode()).hexdigest()[:16]
    function.__qualname__ += f".{key}"
    if config.DISABLE_JIT:  # type: ignore[attr-defined]
        return function
    # Division as in numpy: an interpreted policy's state holds numpy numbers, which do not raise
    # either.
    compiled = njit(nogil=True, error_model="numpy", **NO_C_WRAPPER)(function)
    if None not in prints:
        share_cache(compiled)
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
