"""Compiled code without a place to keep it, or with a damaged one: slower, never an error."""

import os
import resource
import subprocess
import sys

import numba
import pytest
from numba.core import caching, config

from simspec.numerics import compile as compile_cache
from simspec.numerics.compile import cached_njit

pytestmark = pytest.mark.skipif(
    config.DISABLE_JIT, reason="there is no cache where numba is disabled"
)


def double(x):
    return 2 * x


def compiled(decorate=cached_njit):
    """(double(21), whether its code came from the disk) of a new compiled function."""
    function = decorate(double)
    return function(21), bool(function.stats.cache_hits)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The folder of an empty cache."""
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_control_code_is_read_from_the_cache(cache):
    assert compiled() == (42, False)
    assert compiled() == (42, True)


DAMAGE = {
    "empty": lambda content: b"",
    "cut": lambda content: content[: len(content) // 2],
    "zeros": lambda content: bytes(len(content)),
    "another object": lambda content: b"\x80\x04N.",
}


@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_cache_files_are_replaced(cache, suffix, damage):
    compiled()
    (path,) = cache.rglob(f"*{suffix}")
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    assert compiled() == (42, False)
    assert compiled() == (42, True)


def test_control_numba_alone_fails_on_a_damaged_index(cache):
    """Control: the damage is noticed."""
    numba.njit(cache=True)(double)(21)
    (path,) = cache.rglob("*.nbi")
    path.write_bytes(b"")
    with pytest.raises(EOFError):
        numba.njit(cache=True)(double)(21)


@pytest.mark.parametrize("step", ["_save_index", "_save_data", "_open_for_write"])
def test_cache_on_a_full_disk_is_left_alone(cache, monkeypatch, step):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(caching.IndexDataCacheFile, step, full)
    assert compiled() == (42, False)
    assert compiled() == (42, False)


def test_cache_whose_folder_becomes_read_only_is_left_alone(cache, monkeypatch):
    function = cached_njit(double)

    def sealed(self):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(caching._CacheLocator, "ensure_cache_path", sealed)
    assert function(21) == 42
    assert not list(cache.rglob("*.nb?"))


def test_without_a_cache_folder_code_is_compiled_anew(cache, monkeypatch):
    monkeypatch.setattr(compile_cache._Places, "_locator_classes", [])
    monkeypatch.setattr(caching.CompileResultCacheImpl, "_locator_classes", [])
    assert compiled() == (42, False)
    with pytest.raises(RuntimeError, match="no locator available"):
        numba.njit(cache=True)(double)  # control


SEALED = """
import errno, os, pwd, sys
writable = os.getcwd(), "/dev/"

def sealed(event, arguments):
    path = arguments[0] if arguments else None
    writes = event == "os.mkdir" or event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)
    if writes and isinstance(path, str | bytes):
        if not os.path.abspath(os.fsdecode(path)).startswith(writable):
            raise PermissionError(errno.EACCES, "sealed", path)

def nobody(*_):
    raise KeyError("no such user")

pwd.getpwuid = pwd.getpwnam = nobody
sys.addaudithook(sealed)
"""
PROGRAM = """
from simspec.cli import main
import simspec.policies, simspec.replay.sweep  # functions ask for their caches
main({})
"""
SHOW = "show", "tiny-model-greedy", "--json"
SWEEP = "sweep", "tiny-model-greedy", "--policy", "fixed:2", "--json"


@pytest.mark.parametrize("cache_folder", ["", "/dev/null/cache"])
def test_commands_without_home_and_writable_cache(tmp_path, cache_folder):
    """A user without a name or a home, who may write to the working folder alone."""
    command = SWEEP if os.environ.get("SIMSPEC_SLOW") else SHOW  # a sweep compiles for 14 s
    homeless = {k: v for k, v in os.environ.items() if k not in ("HOME", "XDG_CACHE_HOME")}
    homeless |= {"NUMBA_CACHE_DIR": cache_folder, "TMPDIR": str(tmp_path)}
    program = [sys.executable, "-c", SEALED + PROGRAM.format(list(command))]
    done = subprocess.run(program, cwd=tmp_path, env=homeless, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.startswith("{")
    assert list(tmp_path.iterdir()) == []


def test_cached_code_survives_a_real_limit_of_file_sizes(cache):
    """The kernel refuses all but the first bytes of a file, as a full disk does."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        results = compiled(), compiled()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert results == ((42, False), (42, False))
    assert not list(cache.rglob("*.nb?"))
