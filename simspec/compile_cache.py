"""numba's disk cache, made safe for processes that compile at the same time."""

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from os import getpid
from types import ModuleType
from typing import Any, cast

from numba import njit
from numba.core import caching, config
from numba.core.dispatcher import Dispatcher
from numba.misc.appdirs import AppDirs


def cached_njit(function: Callable[..., Any]) -> Any:
    """`njit(cache=True)` whose cache files several processes may write at once."""
    return share_cache(njit(function))


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
    """Where numba looks for a folder; without a home it would make one that is called ~ here."""
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
    a sixth of the start of a command. A stand-in answers the first import and is taken away again.
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
