"""Compiled functions that call functions given at run time: inlined, and cached on disk.

numba calls a function argument through a pointer, and finds no closure over compiled functions in
its cache. So a template is copied with the given functions as its globals, which inlines them. The
copy closes over a fingerprint of all that it calls. numba's cache key includes it, so that an edit
in any file is noticed.
"""

import hashlib
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np
from llvmlite.ir import Constant
from numba import njit
from numba.core import config
from numba.extending import intrinsic, overload

from simspec.compile_cache import share_cache
from simspec.fingerprint import fingerprint


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
    compiled = njit(nogil=True, error_model="numpy")(function)
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
