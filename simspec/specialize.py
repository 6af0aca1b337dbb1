"""Compiled functions that call functions given at run time: inlined, and cached on disk.

numba calls a function argument through a pointer, and never finds a closure over compiled functions in its cache again. So a template is
copied with the given functions as its globals, which inlines them; what the copy closes over is a fingerprint of all that it
calls, and that is what numba's cache goes by: an edit anywhere below is noticed, in whatever file it is.
"""

import hashlib
from os import getpid
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType

import numpy as np
from llvmlite.ir import Constant
from numba import njit
from numba.core import caching, config, types
from numba.extending import intrinsic, overload

_PLAIN = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    type,
    np.generic,
    np.dtype,
    np.ufunc,
    types.Type,
    BuiltinFunctionType,
)
_KNOWN = ("builtins", "math", "numba", "numpy")  # versions of these are part of numba's own key


def _file_of_this_process(cache, number: int) -> str:
    # A helper with several signatures has one index and numbered files. Two processes that each add a signature both take the next number:
    # the index of one may then stand beside the code of the other. With the process in the name an index leads to its own code, or nowhere.
    return f"{cache._data_name_pattern.format(number=number).removesuffix('.nbc')}.{getpid()}.nbc"


if hasattr(caching.IndexDataCacheFile, "_data_name"):
    caching.IndexDataCacheFile._data_name = _file_of_this_process


def specialise(template, signature, *constants, **functions):
    """The function that template(key) returns, compiled with `signature`, its globals of these names replaced by `functions`.

    key is (fingerprints, *constants): the constants are known to the compiler, so what they exclude is compiled away. Plain Python where
    numba is disabled. Raises what numba raises for functions that it cannot compile.
    """
    space = {**template.__globals__, **functions}
    marks = tuple(fingerprint(each) for each in (template((None, *constants)), *functions.values()))
    made = template((marks, *constants))
    made = FunctionType(made.__code__, space, made.__name__, made.__defaults__, made.__closure__)
    # numba keeps one numbered list of files for all functions of a name: of two processes that add to it at once each takes the next
    # number, and one would find the other's code under its own key. So each function here has a name, and files, of its own.
    made.__qualname__ += f".{hashlib.sha256(repr((marks, constants)).encode()).hexdigest()[:16]}"
    if config.DISABLE_JIT:
        return made
    # As numpy divides: a state is made of numpy numbers, which do not raise either where the policy runs interpreted.
    return njit(signature, cache=None not in marks, nogil=True, error_model="numpy")(made)


def fingerprint(function) -> str | None:
    """SHA-256 of a function's code and of all code and constants that its names lead to, in whatever module.

    None where it uses an object of which a later change could not be told; what calls it must not be cached.
    """
    parts: list[bytes] = []
    return (
        hashlib.sha256(b"\0".join(parts)).hexdigest() if _gather(function, parts, set()) else None
    )


def borrowed(array):
    """The same array for compiled code that need not count references to it: that would cost more than a round.

    The caller must hold the array meanwhile; a function's argument is held by whoever calls it.
    """
    return array


@overload(borrowed)
def _borrowed(array):
    return lambda array: _without_owner(array)


@intrinsic
def _without_owner(typing, array):
    def generate(context, builder, signature, arguments):
        view = context.make_array(array)(context, builder, arguments[0])
        view.meminfo = Constant(view.meminfo.type, None)
        return view._getvalue()

    return array(array), generate


def _gather(value, parts, seen) -> bool:
    value = getattr(value, "py_func", value)
    if isinstance(value, FunctionType):
        if value in seen:
            return True
        seen.add(value)
        parts.append(
            str(value.__module__).encode()
        )  # what the disk holds imports it: equal functions of two modules are two
        _code(value.__code__, parts)
        used = (
            [cell.cell_contents for cell in value.__closure__ or ()]
            + _globals(value)
            + list(value.__defaults__ or ())
        )
        return all([_gather(each, parts, seen) for each in used])
    if isinstance(value, (tuple, list)):
        parts.append(f"{type(value).__name__} of {len(value)}".encode())
        return all([_gather(each, parts, seen) for each in value])
    if isinstance(value, np.ndarray):
        parts.append(f"{value.dtype}{value.shape}".encode() + value.tobytes())
    elif isinstance(value, _PLAIN):
        parts.append(f"{type(value).__name__} {value!r}".encode())
    else:
        return False
    return True


def _globals(function) -> list:
    """What the function's names refer to: globals, and attributes of modules among them."""
    names, found = sorted(_names(function.__code__)), []
    reached = [function.__globals__[name] for name in names if name in function.__globals__]
    for value in reached:  # grows while it is walked
        if not isinstance(value, ModuleType):
            found.append(value)
        elif value.__name__.split(".")[0] not in _KNOWN:
            reached += [getattr(value, name) for name in names if hasattr(value, name)]
    return found


def _names(code: CodeType) -> set:
    return set(code.co_names).union(
        *(_names(inner) for inner in code.co_consts if isinstance(inner, CodeType))
    )


def _code(code: CodeType, parts) -> None:
    parts.append(
        repr(
            (code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_argcount)
        ).encode()
    )
    for constant in code.co_consts:
        _code(constant, parts) if isinstance(constant, CodeType) else parts.append(
            repr(constant).encode()
        )
