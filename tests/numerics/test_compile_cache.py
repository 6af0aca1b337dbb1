"""The disk cache of compiled code: shared by processes, and absent where no folder is writable."""

import errno
import importlib
import pkgutil

import numpy as np
import pytest
from numba.core import caching, config
from numba.core.dispatcher import Dispatcher
from strategies import PLANNED_COST, PLANNED_TRACE
from tree_strategies import NODES, example

import simspec
from simspec import Stepper, policies, replay, replay_tree
from simspec.numerics.compile import cached_njit
from simspec.numerics.rng import GUMBEL, gumbel, uniform, uniform_rows
from simspec.policy.policy import walk

pytestmark = pytest.mark.skipif(
    config.DISABLE_JIT, reason="there is no cache where numba is disabled"
)


def double(x):
    return 2 * x


def compiled():
    """(double(21), whether its code came from the disk) of a new compiled function."""
    function = cached_njit(double)
    return function(21), bool(function.stats.cache_hits)


def test_code_is_read_from_the_cache_or_compiled_anew_without_its_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "cache"))
    assert [compiled(), compiled()] == [(42, False), (42, True)]
    monkeypatch.setattr(caching.CompileResultCacheImpl, "_locator_classes", [])
    assert [compiled(), compiled()] == [(42, False)] * 2


def test_a_damaged_index_costs_one_compilation(tmp_path, monkeypatch):
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    compiled()
    (index,) = tmp_path.rglob("*.nbi")
    for content in (b"", b"damaged", index.read_bytes()[:-9]):
        index.write_bytes(content)
        assert compiled() == (42, False)
        assert compiled() == (42, True)


def test_a_full_disk_costs_a_compilation_and_leads_to_no_older_code(tmp_path, monkeypatch):
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    compiled()
    (index,), (code,) = tmp_path.rglob("*.nbi"), tmp_path.rglob("*.nbc")
    index.unlink()
    code.write_bytes(b"of an older function")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(caching.IndexDataCacheFile, "_save_data", full)
        assert compiled() == (42, False)
    assert not index.exists()
    assert compiled() == (42, False)
    assert compiled() == (42, True)


def test_without_a_home_no_folder_is_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "~/.cache")  # as it is read without one
    monkeypatch.setattr(caching.InTreeCacheLocator, "from_function", lambda *_: None)
    assert compiled() == (42, False)
    assert not list(tmp_path.iterdir())


def with_cache():
    """{name: compiled function} of the package that has a disk cache."""
    found = {}
    for each in pkgutil.walk_packages(simspec.__path__, "simspec."):
        for name, value in vars(importlib.import_module(each.name)).items():
            if isinstance(value, Dispatcher) and not isinstance(value._cache, caching.NullCache):
                found[f"{value.py_func.__module__}.{name}"] = value
    return found


def test_functions_with_a_cache_have_one_signature():
    """numba numbers the code of several signatures: of two processes that each add one, the last
    index and the last code may be of different ones. Control: `double` above has two.
    """
    for text in ("fixed:2", "cost_ts", "ucb", "exp3", "goodput", "oracle", "greedy_oracle"):
        policy = policies.make(text, PLANNED_TRACE, PLANNED_COST)
        replay(PLANNED_TRACE, policy, 0, PLANNED_COST)
        stepper = Stepper(policy, PLANNED_TRACE.K, 0, PLANNED_COST, PLANNED_TRACE.meta.features)
        assert list(walk(stepper, PLANNED_TRACE))
    trace = example()
    for text in ("static:2x1", "tree_oracle"):
        replay_tree(trace, policies.make(text, trace, NODES), NODES)
    uniform(2**64 - 1, 3, 2, 7, GUMBEL)
    uniform(1, np.int64(3), np.int32(2), np.int64(7), GUMBEL)
    uniform_rows(1, np.arange(3), 4, GUMBEL)
    gumbel(3, 1, 2, 9)
    many = {name: f.signatures for name, f in with_cache().items() if len(f.signatures) > 1}
    assert not many
    function = cached_njit(double)
    assert (function(1), function(1.5), len(function.signatures)) == (2, 3.0, 2)
