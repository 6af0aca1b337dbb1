import textwrap

import numba
import numpy as np
import pytest
from numba import njit, types
from warm_programs import WarmPrograms

from simspec import Policy, replay, synthetic
from simspec.numerics.compile import fingerprint, specialize
from simspec.policies import confidence, fixed

SCALE = 2.0


@pytest.fixture(scope="module")
def warm():
    started = WarmPrograms()
    yield started
    started.process.communicate(timeout=60)
    assert started.process.returncode == 0


@njit
def _helper(x):
    return x * SCALE


def _uses_helper(x):
    return _helper(x) + 1.0


def _same_code(x):
    return _helper(x) + 1.0


def _template(key):
    def loop(x):
        return given(x) + key[1]  # noqa: F821

    return loop


def test_template_runs_the_given_functions():
    signature = types.float64(types.float64)
    double, triple = (
        specialize(_template, signature, 1.0, given=njit(f))
        for f in (lambda x: 2.0 * x, lambda x: 3.0 * x)
    )
    assert (double(5.0), triple(5.0)) == (11.0, 16.0)
    assert specialize(_template, signature, 7.0, given=_helper)(1.0) == 9.0


def test_fingerprints_follow_called_functions(monkeypatch):
    before = fingerprint(_uses_helper)
    assert before == fingerprint(njit(_uses_helper)) == fingerprint(_same_code)
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    assert fingerprint(_uses_helper) not in (before, None)
    monkeypatch.setitem(globals(), "SCALE", np.arange(3.0))
    one = fingerprint(_uses_helper)
    monkeypatch.setitem(globals(), "SCALE", np.arange(4.0))
    assert fingerprint(_uses_helper) not in (one, None)


def test_fingerprints_follow_constants():
    assert fingerprint(lambda slot: slot < 1) == fingerprint(lambda slot: slot < 1)
    assert fingerprint(lambda slot: slot < 1) != fingerprint(lambda slot: slot < 2)


def test_unknown_values_have_no_fingerprint(monkeypatch):
    monkeypatch.setitem(globals(), "SCALE", object())
    assert fingerprint(_uses_helper) is None


def test_closures_differ_by_their_values():
    def make(k):
        return lambda slot: slot < k

    assert fingerprint(make(1)) == fingerprint(make(1)) != fingerprint(make(2))


FILES = {
    "rule.py": """
        import lib.deep
        from constants import LIMIT
        from helper import wanted

        def draft_more(params, state, slot, features, u):
            return slot < wanted(LIMIT) + lib.deep.more(0), True

        def observe(params, state, computed, drafted, accepted, features, cost):
            pass
        """,
    "helper.py": """
        from numba import njit
        import constants

        @njit
        def wanted(limit):
            return limit + constants.EXTRA
        """,
    "constants.py": "LIMIT, EXTRA = 1, 0",
    "lib/__init__.py": "",
    "lib/deep.py": """
        from numba import njit

        @njit
        def more(n):
            return n
        """,
    "main.py": """
        import sys
        import numpy as np
        import rule, simspec
        from simspec.replay.replay import kernel
        policy = simspec.Policy("mine", rule.draft_more, rule.observe)
        functions = policy.compiled()
        if "replay" in sys.argv:
            computed = simspec.replay(simspec.synthetic.iid(0.5, 1, 40, 8), policy).computed.max()
            functions = *functions, kernel(policy)
        else:
            none = np.zeros(0), np.zeros(0)
            slots = (functions[0](*none, slot, np.zeros((9, 0)), 0.5) for slot in range(9))
            computed = sum(go for go, _ in slots)
        print(computed, sum(sum(f.stats.cache_hits.values()) for f in functions))
        """,
}


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="there is no cache where numba is disabled")
def test_cache_follows_edits_of_policies_and_helpers(tmp_path, warm):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(textwrap.dedent(text))

    def run(*replayed):
        return tuple(map(int, warm(tmp_path, tmp_path / "cache", "main.py", *replayed).split()))

    assert run("replay") == (1, 0)
    # nothing changed: both functions and the kernel come from the disk
    assert run("replay") == (1, 3)
    # a replay compiles six functions, the policy alone two
    for name, old, new, expected, *replayed in (
        ("constants.py", "LIMIT, EXTRA = 1, 0", "LIMIT, EXTRA = 2, 0", 2),
        ("constants.py", "LIMIT, EXTRA = 2, 0", "LIMIT, EXTRA = 2, 1", 3),
        ("helper.py", "limit + ", "limit + 1 + ", 4),
        ("lib/deep.py", "return n", "return n + 1", 5, "replay"),
        ("rule.py", "return slot <", "return 1 + slot <", 4),
    ):
        path = tmp_path / name
        path.write_text(path.read_text().replace(old, new))
        assert run(*replayed)[0] == expected, (name, new)
    assert run() == (4, 2)


COMPILES = """
import sys
from simspec import replay, synthetic
from simspec.policies import parse
replay(synthetic.iid(0.5, 1, 4, 3), parse(sys.argv[1]))
"""


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="compiles in processes of its own either way")
def test_kernels_share_no_cache_file(tmp_path, warm):
    """Processes that compile different policies at once may write into one folder: no file of
    one takes the place of the other's.
    """
    files = {}
    (tmp_path / "compiles.py").write_text(COMPILES)
    for policy in ("fixed:1", "beta_ts"):
        folder = tmp_path / policy.split(":")[0]
        warm(tmp_path, folder, "compiles.py", policy)
        files[policy] = {
            path.name
            for path in folder.rglob("*.nb*")
            if "loop" in path.name or "draft_more" in path.name
        }
    one, other = files.values()
    assert len(one) >= 4
    assert len(other) >= 4
    assert not one & other


def test_one_kernel_serves_all_settings_of_a_policy():
    from simspec.replay.replay import kernel

    assert kernel(fixed(1)) is kernel(fixed(7))
    assert (
        kernel(confidence(0.2)) is kernel(confidence(0.9, inclusive=False)) is not kernel(fixed(1))
    )


def _with_scratch_and_helper(params, state, slot, features, u):
    scratch = np.zeros(3)
    scratch[0] = _helper(slot)
    return scratch.sum() < 4.0, True


@njit
def _pair(x):
    return np.array([x + 0.0, x + 1.0])


def _with_a_helpers_array(params, state, slot, features, u):
    return _pair(slot)[1] < 3.0, True


def test_policies_may_make_arrays_and_call_helpers():
    trace = synthetic.iid(0.8, 4, 50, 6)
    for more in (_with_scratch_and_helper, _with_a_helpers_array):
        mine = Policy("mine", more, fixed(2).observe)
        assert replay(trace, mine) == replay(trace, fixed(2))


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="memory is Python's where numba is disabled")
def test_arrays_that_a_helper_returns_are_freed():
    """Without counted references they never would be; a policy that is compiled so would leave
    some behind.
    """
    from numba.core.runtime import _nrt_python, rtsys

    _nrt_python.memsys_enable_stats()
    trace = synthetic.iid(0.8, 4, 50, 6)
    before = rtsys.get_allocation_stats()
    replay(trace, Policy("mine", _with_a_helpers_array, fixed(2).observe))
    after = rtsys.get_allocation_stats()
    assert after.alloc - before.alloc > 100
    assert after.alloc - before.alloc == after.free - before.free
