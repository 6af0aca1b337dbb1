import numba
import numpy as np
import pytest

from simspec import CostModel, Policy, PolicyError, Stepper, replay, synthetic
from simspec.numerics.rng import POLICY, uniform
from simspec.policies import confidence, fixed
from simspec.policy.policy import compile_function


def _more(params, state, slot, features, u):
    return slot < 2, True


def _quiet(params, state, computed, drafted, accepted, features, cost):
    pass


def _bad_types(params, state, slot, features, u):
    return "go", True


def _bad_count(params, state, slot):
    return True, True


COST = CostModel.from_ratio(0.1, 4)


@pytest.mark.parametrize(
    "parts, words",
    [
        (dict(name=""), "name is ''"),
        (dict(params=("a",)), "params is"),
        (dict(state0=None), "state0 is None"),
        (dict(state0=(float("nan"),)), "state0 holds NaN"),
        (dict(K=-1), "K is -1"),
        (dict(K=2.5), "K is 2.5"),
        (dict(reads=("a", "a")), "reads is"),
        (dict(reads=(1,)), "reads is"),
        (dict(scope="prompt"), "scope is 'prompt'"),
        (dict(observe=3), "observe is 3"),
    ],
)
def test_malformed_policies_are_one_line(parts, words):
    with pytest.raises(PolicyError, match=words) as caught:
        Policy(**({"name": "x", "draft_more": _more, "observe": _quiet} | parts))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("function", [_bad_types, _bad_count])
def test_uncompilable_policy_is_named_in_one_line(function, monkeypatch):
    monkeypatch.setattr(
        numba.core.config, "DISABLE_JIT", 0
    )  # also where the suite runs interpreted
    with pytest.raises(PolicyError, match="^policy 'mine': draft_more does not compile") as caught:
        Policy("mine", function, _quiet).compiled()
    assert "\n" not in str(caught.value)


def test_compilation_is_shared():
    first, second = (
        Policy("a", _more, _quiet).compiled(),
        Policy("b", _more, _quiet, (1.0,)).compiled(),
    )
    assert first[0] is second[0]
    assert first[1] is second[1]
    assert compile_function.cache_info().currsize > 0


def test_closures_lambdas_and_compiled_functions_are_accepted():
    from numba import njit

    trace = synthetic.iid(0.8, 2, 20, 5)
    expected = replay(trace, fixed(3))
    k = 3
    for more in (
        lambda params, state, slot, features, u: (slot < k, True),
        njit(lambda p, s, slot, f, u: (slot < k, True)),
    ):
        assert replay(trace, Policy("mine", more, _quiet)) == expected


def test_functions_without_a_source_file_are_accepted():
    namespace = {}
    exec("def more(params, state, slot, features, u):\n    return slot < 3, True", namespace)
    trace = synthetic.iid(0.8, 2, 20, 5)
    assert replay(trace, Policy("mine", namespace["more"], _quiet)) == replay(trace, fixed(3))


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


def _half(params, state, slot, features, u):
    state[0] = u
    return u < 0.5, False


def _drops(params, state, slot, features, u):
    return slot == 0, False


def _drops_later(params, state, slot, features, u):
    return slot < 2, slot == 1


TOLD = (("probability", "confidence"), ("confidence", "confidence"))


def test_stepper_refuses_anticipating_policies_under_rejection():
    """Declared: at once. Undeclared: at the moment it drops a token that it could see.
    Elsewhere, and where it looks at q alone: never.
    """
    sees = Policy("sees", _drops, _quiet, reads=("probability",))
    for drawn in (False, True):
        stepper = Stepper(sees, 4, 0, COST, TOLD)
        stepper.unforeseeing(drawn)
        stepper.begin(0)
        assert stepper.ask(0) == (True, True)
        stepper.see(0, np.array([9, 9], np.uint8))
        if not drawn:
            assert stepper.ask(1) == (False, False)
            continue
        with pytest.raises(
            PolicyError, match="'sees' drops a drawn token by which token it is"
        ) as caught:
            stepper.ask(1)
        assert "\n" not in str(caught.value)
    with pytest.raises(PolicyError, match="drops a drawn token"):
        Stepper(Policy("says so", _more, _quiet, anticipates=True), 4, 0, COST).unforeseeing(True)
    for policy in (
        Policy("blind", _drops, _quiet),
        Policy("q alone", _drops, _quiet, reads=("confidence",)),
    ):
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
    with pytest.raises(PolicyError, match="anticipates is 1"):
        Policy("odd", _more, _quiet, anticipates=1)


def test_stepper_draws_at_the_documented_address_and_go_implies_keep():
    stepper = Stepper(Policy("half", _half, _quiet, state0=(0.0,), random=True), 4, 9, COST)
    for sequence in (3, 2**32 - 1):
        stepper.begin(sequence)
        for round_ in range(3):
            for slot in range(6):
                u = uniform(9, sequence, round_, slot, POLICY)
                assert stepper.ask(slot) == (u < 0.5, u < 0.5)
            assert stepper.end(2, 1, 0) == pytest.approx(0.2 + 1)


def _remember(params, state, computed, drafted, accepted, features, cost):
    state[0] = 1.0
    state[1] = cost


def _told(params, state, slot, features, u):
    return state[0] > 0, True


def test_stepper_scopes_and_modelled_cost():
    for scope, kept in (("sequence", False), ("stream", True)):
        cost = CostModel([0, 1, 2], [5, 6, 7], [0, 0.5], overhead=0.25, baseline=5)
        stepper = Stepper(
            Policy("memory", _told, _remember, (), (0.0, 0.0), scope=scope), 2, 0, cost
        )
        stepper.begin(0)
        assert stepper.ask(0) == (False, True)
        assert stepper.end(0, 0, 0) == 5.25
        assert stepper.ask(0) == (True, True)
        assert stepper.end(2, 2, 2) == 0.25 + 2 + 7 + 0.5
        stepper.begin(1)
        assert stepper.ask(0)[0] is kept


def test_policy_repr_omits_its_tables():
    assert repr(Policy("long", _more, _quiet, params=tuple(range(100_000)))).count(",") < 10
    assert np.asarray(Policy("p", _more, _quiet, (1, True)).params).dtype == np.float64
