"""What a comparison with a replay excuses: one exception in a thousand rounds, and no failure."""

from dataclasses import replace

from toy_lm import run_all, toy_cost, toy_recording

from real.rerun import Comparison, Flip, compare
from simspec import policies, replay

FLIP = Flip(0, 0, 0, 1e-5, False)


def test_one_exception_in_a_thousand_rounds_is_excused():
    assert Comparison(1000, (FLIP,), ()).equal
    assert not Comparison(999, (FLIP,), ()).equal
    assert not Comparison(2999, (FLIP,) * 3, ()).equal


def test_failures_are_never_excused():
    assert not Comparison(10**6, (), (FLIP,)).equal
    assert not Comparison(10**6, (FLIP,), (FLIP,)).equal


def test_a_missing_round_is_a_difference():
    trace, target, drafter = toy_recording("model", "greedy", 2)
    policy = policies.parse("fixed:2")
    results = run_all(target, drafter, trace, policy, toy_cost())
    replayed = replay(trace, policy)
    assert compare(trace, policy, replayed, results).exact
    columns = ("position", "computed", "drafted", "accepted", "seconds", "gap")
    short = {name: getattr(results[1], name)[:-1] for name in columns}
    compared = compare(trace, policy, replayed, [results[0], replace(results[1], **short)])
    (flip,) = compared.exceptions + compared.failures
    assert (flip.sequence, flip.round, flip.text) == (1, len(results[1].position) - 1, False)
