"""What a policy's functions may be, and what a Stepper asks and tells them."""

import os
import subprocess
import sys

import numba
import numpy as np
import pytest

from simspec import CostModel, Policy, PolicyError, Stepper, replay, sweep, synthetic
from simspec.numerics.rng import POLICY, uniform
from simspec.policies import confidence, fixed
from simspec.policy.policy import compile_function

COST = CostModel.from_ratio(0.1, 4)
TRACE = synthetic.iid(0.5, 2, 50, 4, confidence=True)
MORE = "params, state, slot, features, u"
OBSERVE = "params, state, computed, drafted, accepted, features, cost"


def _more(params, state, slot, features, u):
    return slot < 2, True


def _quiet(params, state, computed, drafted, accepted, features, cost):
    pass


def function(arguments, body, kind="def"):
    """A function of this source."""
    scope = {}
    exec(f"{kind} f({arguments}):\n    {body}", scope)
    return scope["f"]


@pytest.mark.parametrize(
    "parts, words",
    [
        (dict(name=""), "name is ''"), (dict(params=("a",)), "params is"),
        (dict(state0=None), "state0 is None"), (dict(state0=(float("nan"),)), "state0 holds NaN"),
        (dict(K=-1), "K is -1"), (dict(K=2.5), "K is 2.5"), (dict(reads=("a", "a")), "reads is"),
        (dict(reads=(1,)), "reads is"), (dict(scope="prompt"), "scope is 'prompt'"),
        (dict(observe=3), "observe is 3"), (dict(anticipates=1), "anticipates is 1"),
    ],
)  # fmt: skip
def test_malformed_policies_are_one_line(parts, words):
    with pytest.raises(PolicyError, match=words) as caught:
        Policy(**({"name": "x", "draft_more": _more, "observe": _quiet} | parts))
    assert "\n" not in str(caught.value)


FORMS = [
    ("draft_more", function("params, state, slot", "return True, True")),
    ("draft_more", function(f"{MORE}, seed", "return True, True")),
    ("draft_more", function("*everything", "return True, True")),
    ("draft_more", function(MORE, "yield True, True")),
    ("draft_more", function(MORE, "return True, True", "async def")),
    ("observe", function("params, state, computed", "pass")),
]
# What a function returns is known only where it is compiled.
VALUES = [
    *(("draft_more", function(MORE, body), words) for body, words in (
        ("return slot < 2", "failed to unpack bool; expected plain"),
        ("return True, True, True", ""), ("return 0.5", ""), ("pass", ""),
        ("return 'go', True", ""),
        ("return nowhere(slot), True", "NameError: name 'nowhere' is not defined; expected"),
        ("return open('x') == slot, True", "Untyped global name 'open'"),
        ("return features[slot].size2 > 1, True", "Unknown attribute 'size2' of type array("),
        ("return 'x' + slot, True", "found for signature: add(Literal[str](x), int64)"),
        ("import math; return slot < math.pi, True", "unsupported opcode (IMPORT_NAME)"),
    )),
    *(("observe", function(OBSERVE, f"return {name}"), "") for name in ("cost", "state")),
    ("draft_more", len, ""),
]  # fmt: skip
JIT = [] if numba.config.DISABLE_JIT else VALUES


@pytest.mark.parametrize("part, wrong, words", [*((*form, "") for form in FORMS), *JIT])
def test_functions_of_another_form_are_refused_in_numbas_words(part, wrong, words):
    policy = Policy(
        "mine", **({"draft_more": _more, "observe": _quiet} | {part: wrong}), state0=(0.0,)
    )
    for use in (
        policy.compiled, lambda: replay(TRACE, policy),
        lambda: sweep(TRACE, policy, progress=False),
    ):  # fmt: skip
        with pytest.raises(PolicyError, match=f"^policy 'mine': {part} ") as caught:
            use()
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 700
        assert words in str(caught.value)
        assert "nopython" not in str(caught.value)


PROGRAM = """
import numpy as np
import simspec
more, _ = simspec.Policy("p", {name}.more, {name}.observe).compiled()
print(more(np.zeros(1), np.zeros(1), 2, np.zeros((1, 1)), 0.5)[0])
"""


def test_cached_policy_of_a_missing_module_is_harmless(tmp_path):
    """One user's cached policy is read by a process that cannot import its module."""
    environment = os.environ | {"NUMBA_DISABLE_JIT": "0", "NUMBA_CACHE_DIR": str(tmp_path / "c")}
    for name, k in (("first", 2), ("second", 3)):
        (tmp_path / name).mkdir()
        module = f"def more({MORE}): return slot < {k}, True\ndef observe({OBSERVE}): pass\n"
        (tmp_path / name / f"{name}.py").write_text(module)
        done = subprocess.run(
            [sys.executable, "-c", f"import {name}" + PROGRAM.format(name=name)],
            cwd=tmp_path / name, env=environment, capture_output=True, text=True,
        )  # fmt: skip
        assert done.stdout == f"{k > 2}\n", done.stderr


def _reads_far(params, state, slot, features, u):
    return slot == 0 or features[slot - 1, 40] < 2.0, True


def _reads_params(params, state, slot, features, u):
    return slot < params[2], True


def _writes_far(params, state, computed, drafted, accepted, features, cost):
    state[7] = 3.0


def _writes_later(params, state, computed, drafted, accepted, features, cost):
    state[0] += 1.0
    state[int(state[0])] = 1.0


BEYOND = {
    "state": (Policy("mine", _more, _writes_far, state0=(0.0,)), "observe"),
    "state, after rounds": (Policy("mine", _more, _writes_later, state0=(0.0,) * 9), "observe"),
    "features": (Policy("mine", _reads_far, _quiet, reads=("confidence",)), "draft_more"),
    "params": (Policy("mine", _reads_params, _quiet, params=(1.0,)), "draft_more"),
}


@pytest.mark.parametrize("kind", BEYOND)
def test_an_index_beyond_an_array_is_one_clear_error(kind):
    policy, part = BEYOND[kind]
    for use in (lambda: replay(TRACE, policy), lambda: sweep(TRACE, policy, progress=False)):
        with pytest.raises(PolicyError, match=f"^policy 'mine': {part} indexes beyond") as found:
            use()
        assert "\n" not in str(found.value)
    last = function(MORE, "return slot < params[-1], True")
    assert replay(TRACE, Policy("mine", last, _quiet, (5.0, 2.0))) == replay(TRACE, fixed(2))


UNCHECKED = """
import numba, numpy as np
from simspec.policy.policy import compile_policy
more = lambda params, state, slot, features, u: (slot < 2, True)
def observe(params, state, computed, drafted, accepted, features, cost):
    state[7] = 3.0
state = np.zeros(16)
compile_policy("mine", more, observe)[1](state, state[:1], 1, 1, 1, np.zeros((1, 0)), 0.0)
print(state[7])
"""


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="numpy checks where numba is disabled")
def test_control_compiled_code_without_the_check_writes_there():
    done = subprocess.run([sys.executable, "-c", UNCHECKED], capture_output=True, text=True)
    assert done.stdout == "3.0\n", done.stderr


def test_compilation_is_shared():
    first, second = (
        Policy("a", _more, _quiet).compiled(), Policy("b", _more, _quiet, (1.0,)).compiled()
    )  # fmt: skip
    assert first[0] is second[0]
    assert first[1] is second[1]
    assert compile_function.cache_info().currsize > 0


def test_closures_lambdas_compiled_functions_and_those_without_a_file_are_accepted():
    expected, k = replay(TRACE, fixed(3)), 3
    for more in (
        lambda params, state, slot, features, u: (slot < k, True),
        numba.njit(lambda p, s, slot, f, u: (slot < k, True)),
        function(MORE, "return slot < 3, True"),
    ):
        assert replay(TRACE, Policy("mine", more, _quiet)) == expected


def test_stepper_refuses_unsupported_policies():
    with pytest.raises(PolicyError, match=r"reads 'confidence', the drafter shows \['entropy'\]"):
        Stepper(confidence(0.5), 4, 0, COST, (("entropy", "entropy"),))
    with pytest.raises(PolicyError, match="drafts up to 5, here drafts reach 4"):
        Stepper(fixed(5), 4, 0, COST)
    with pytest.raises(PolicyError, match="prices drafts up to 4"):
        Stepper(fixed(5), 6, 0, COST)
    with pytest.raises(ValueError, match="grid is 'linear'"):
        Stepper(confidence(0.5), 4, 0, COST, (("confidence", "linear"),))
    with pytest.raises(ValueError, match="seed is -3"):
        Stepper(fixed(1), 4, -3, COST)


def _drops(params, state, slot, features, u):
    return slot < params[0], False


def _drops_later(params, state, slot, features, u):
    return slot < 2, slot == 1


TOLD = (("probability", "confidence"), ("confidence", "confidence"))


def test_stepper_refuses_anticipating_policies_under_rejection():
    """Declared: at once. Undeclared: at the moment it drops a token that it could see.
    Elsewhere, where it looks at q alone, and at slot 0, where plain decoding drops nothing: never.
    """
    for drawn, length in ((False, 1), (True, 0), (True, 1)):
        sees = Policy("sees", _drops, _quiet, (length,), reads=("probability",))
        stepper = Stepper(sees, 4, 0, COST, TOLD)
        stepper.unforeseeing(drawn)
        stepper.begin(0)
        for slot in range(length):
            assert stepper.ask(slot) == (True, True)
            stepper.see(slot, np.array([9, 9], np.uint8))
        if not (drawn and length):
            assert stepper.ask(length) == (False, False)
            continue
        with pytest.raises(
            PolicyError, match="'sees' drops a drawn token by which token it is"
        ) as caught:
            stepper.ask(1)
        assert "\n" not in str(caught.value)
    with pytest.raises(PolicyError, match="drops a drawn token"):
        Stepper(Policy("says so", _more, _quiet, anticipates=True), 4, 0, COST).unforeseeing(True)
    for reads in ((), ("confidence",)):
        policy = Policy("q alone", _drops, _quiet, (1,), reads=reads)
        stepper = Stepper(policy, 4, 0, COST, TOLD)
        stepper.unforeseeing(True)
        stepper.begin(0)
        assert stepper.ask(0)[0]
        assert stepper.ask(1) == (False, False)
    late = Stepper(Policy("late", _drops_later, _quiet, reads=("probability",)), 4, 0, COST, TOLD)
    late.unforeseeing(True)
    late.begin(0)
    assert late.ask(0)[0]
    assert late.ask(1)[0]
    with pytest.raises(PolicyError, match="'late'"):
        late.ask(2)


def test_policy_repr_omits_its_tables():
    assert repr(Policy("long", _more, _quiet, params=tuple(range(100_000)))).count(",") < 10
    assert np.asarray(Policy("p", _more, _quiet, (1, True)).params).dtype == np.float64


PRICED = CostModel([0, 1, 2, 3], [4, 5, 6, 7], [0, 0.5], 0.25, 4, feature=0.125)
HEARD = 64


def _note(params, state, computed, drafted, accepted, features, cost):
    n = int(state[0])
    state[1 + n] = cost
    state[0] = n + 1.0


def listening(reads):
    """A policy of two tokens that keeps the costs that it observes."""
    return Policy(
        f"listens:{reads}", _more, _note, state0=(0.0,) * HEARD, reads=reads, scope="stream"
    )


def _replayed(params, state, slot, features, u):
    # one token behind a round that took longer than params[0], else two
    return slot < state[0], True


def _keep(params, state, computed, drafted, accepted, features, cost):
    state[0] = 1.0 if cost > params[0] else 2.0


def test_replay_observes_seconds_with_its_features():
    """A round of two costs 8.5, of which reading the features of both tokens is 0.25."""
    trace = synthetic.iid(0.0, 1, 6, 3, confidence=True)
    policy = Policy("hears", _replayed, _keep, (8.375,), (2.0,), reads=("confidence",))
    assert replay(trace, policy, cost=PRICED).computed.tolist()[:3] == [2, 1, 2]


@pytest.mark.parametrize("reads", [(), ("confidence",)])
def test_engine_observes_seconds_with_its_features(reads):
    stepper = Stepper(listening(reads), 3, 0, PRICED, (("confidence", "confidence"),))
    stepper.begin(0)
    stepper.end(2, 2, 0)
    stepper.end(2, 2, 2)
    stepper.end(1, 1, 0)
    heard = stepper._state[1:4].tolist()
    read = 0.125 if reads else 0.0
    assert heard == [8.25 + 2 * read, 8.25 + 2 * read, 6.25 + 0.5 + read]


def _draws(params, state, slot, features, u):
    return u < 0.8, True


def test_replayed_draws_have_the_address_of_round_and_slot():
    """Ten slots: more than one block of draws; rounds count within their sequence."""
    trace = synthetic.iid(1.0, 3, 40, 10, seed=1)
    rounds = replay(trace, Policy("draws", _draws, _quiet, random=True, scope="stream"), seed=7)
    for s in range(3):
        for r in range(rounds.offset[s], rounds.offset[s + 1]):
            drawn = [uniform(7, s, r - rounds.offset[s], slot, POLICY) < 0.8 for slot in range(10)]
            left = trace.offset[s + 1] - rounds.row[r] - 1
            expected = next((i for i, go in enumerate(drawn) if not go), 10)
            assert rounds.computed[r] == min(expected, left)
