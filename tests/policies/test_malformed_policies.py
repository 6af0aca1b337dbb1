"""Policies whose functions have the wrong form, and compiled ones of a missing module."""

import os
import subprocess
import sys

import numba
import pytest

from simspec import Policy, PolicyError, replay, sweep, synthetic


def _more(params, state, slot, features, u):
    return slot < 2, True


def _quiet(params, state, computed, drafted, accepted, features, cost):
    pass


def _few(params, state, slot):
    return True, True


def _many(params, state, slot, features, u, seed):
    return True, True


def _one(params, state, slot, features, u):
    return slot < 2


def _three(params, state, slot, features, u):
    return True, True, True


def _number(params, state, slot, features, u):
    return 0.5


def _nothing(params, state, slot, features, u):
    pass


def _words(params, state, slot, features, u):
    return "go", True


def _unknown(params, state, slot, features, u):
    return nowhere(slot), True  # noqa: F821


def _opens(params, state, slot, features, u):
    return open("x") == slot, True


def _observes_little(params, state, computed):
    pass


def _returns_cost(params, state, computed, drafted, accepted, features, cost):
    return cost


def _returns_state(params, state, computed, drafted, accepted, features, cost):
    return state


def _yields(params, state, slot, features, u):
    yield True, True


async def _waits(params, state, slot, features, u):
    return True, True


def _takes_all(*everything):
    return True, True


FORMS = [("draft_more", f) for f in (_few, _many, _yields, _waits, _takes_all)] + [
    ("observe", _observes_little)
]


VALUES = [
    ("draft_more", f) for f in (_one, _three, _number, _nothing, _words, _unknown, _opens, len)
]


VALUES += [("observe", f) for f in (_returns_cost, _returns_state)]


# What a function returns is known only where it is compiled.
MALFORMED = FORMS + ([] if numba.config.DISABLE_JIT else VALUES)


@pytest.mark.parametrize(
    "part, function", MALFORMED, ids=lambda value: getattr(value, "__name__", value)
)
def test_malformed_policy_is_refused_by_name(part, function, monkeypatch):
    policy = Policy(
        "mine", **({"draft_more": _more, "observe": _quiet} | {part: function}), state0=(0.0,)
    )
    trace = synthetic.iid(0.7, 2, 20, 4)
    for use in (
        policy.compiled,
        lambda: replay(trace, policy),
        lambda: sweep(trace, policy, progress=False),
    ):
        with pytest.raises(PolicyError, match=f"^policy 'mine': {part} ") as caught:
            use()
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 700


def test_control_valid_policy_runs():
    assert replay(synthetic.iid(0.7, 2, 20, 4), Policy("mine", _more, _quiet)).computed.max() == 2


POLICY_MODULE = """
def more(params, state, slot, features, u):
    return slot < {k}, True

def observe(params, state, computed, drafted, accepted, features, cost):
    pass
"""


PROGRAM = """
import numpy as np
import simspec
more, _ = simspec.Policy("p", {name}.more, {name}.observe).compiled()
print(more(np.zeros(1), np.zeros(1), 2, np.zeros((1, 1)), 0.5)[0])
"""


def test_cached_policy_of_a_missing_module_is_harmless(tmp_path):
    """One user's cached policy is read by a process that cannot import its module."""
    environment = os.environ | {
        "NUMBA_DISABLE_JIT": "0",
        "NUMBA_CACHE_DIR": str(tmp_path / "cache"),
    }
    for name, k in (("first", 2), ("second", 3)):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.py").write_text(POLICY_MODULE.format(k=k))
        code = f"import {name}" + PROGRAM.format(name=name)
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path / name,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.stdout == f"{k > 2}\n", done.stderr
