"""Routers among drafters: against a slow twin, Hedge's bound, and planted worlds."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive import Clock, uniform
from strategies import costs, traces

from simspec import CostModel, replay
from simspec.policies import make as make_policy
from simspec.policy.policy import PolicyError
from simspec.replay import router as routing
from simspec.replay.replay import rounds_at_rows
from simspec.replay.router import Expert, Seen, hedge, hedge_bound, leader, outcomes, route
from simspec.reports.routers import compare_routers
from simspec.trace.synthetic import iid
from simspec.trace.trace import broken_rounds, committed

UNIT = CostModel.from_ratio(0.25, 6)


def redrafted(trace, seed):
    """Another drafter's recording of the same text."""
    rng = np.random.default_rng(seed)
    left = np.repeat(trace.offset[1:], np.diff(trace.offset)) - np.arange(trace.rows)
    depth = rng.integers(0, trace.K + 1, trace.rows)
    run = np.minimum(rng.integers(0, trace.K + 1, trace.rows), np.minimum(depth, left))
    prefix = bool(rng.integers(2)) and not run.any()
    meta = replace(trace.meta, drafter=f"drafter {seed}", prefix_only=prefix)
    return replace(trace, depth=depth.astype(np.uint8), run=run.astype(np.uint8), meta=meta)


@st.composite
def worlds(draw):
    """Experts of up to three drafters, two lengths each, on one text."""
    first = draw(traces(optional=False))
    both = [first, *(redrafted(first, seed) for seed in range(draw(st.integers(0, 2))))]
    texts = draw(st.lists(st.sampled_from(["fixed:0", "fixed:1", "entropy"]), min_size=1,
                          max_size=2, unique=True))  # fmt: skip
    priced = [(trace, draw(costs())) for trace in both]
    return [
        Expert(f"d{d}", p, trace, cost.reading(p.reads))
        for d, (trace, cost) in enumerate(priced)
        for p in (make_policy(text, trace, cost) for text in texts)
    ]


def softmax(values):
    whole = sum(math.exp(v) for v in values)
    return [math.exp(v) / whole for v in values]


def twin(experts, kind, paid, seed):
    """(rounds with their experts, plain steps, regret) of each sequence, from the definitions."""
    trace = experts[0].trace
    single = [walked(e) for e in experts]
    longest = max(r[1] for of in single for r in of)
    made = []
    for s, (start, end) in enumerate(zip(trace.offset[:-1].tolist(), trace.offset[1:].tolist())):
        clocks = {e.drafter: Clock(e.cost) for e in experts}
        row, rounds, steps, told = start, [], 0.0, []
        eta = math.sqrt(8 * math.log(len(experts)) / int(trace.budget[s]))
        while row < end:
            gains = [min(of[row][2] + 1, end - row) for of in single]
            sums = [0] * len(experts)
            for then, seen in told:
                shown = [min(of[then][2] + 1, of[then][1], end - then) for of in single]
                if then + max(shown) <= row:
                    sums = [a + g for a, g in zip(sums, seen)]
            if kind == "hedge":
                chances = softmax([eta * total / (longest + 1) for total in sums])
                u, e = uniform(seed, int(trace.sequence[s]), len(rounds), 0, 0), 0
                while u * sum(chances) >= sum(chances[: e + 1]):
                    e += 1
            else:
                e = sums.index(max(sums))
                chances = [float(i == e) for i in range(len(experts))]
            computed, drafted, accepted = single[e][row]
            told.append((row, gains))
            for name, clock in clocks.items():
                cost = clock.cost
                if name == experts[e].drafter:
                    steps += clock.price(computed, drafted, accepted) / cost.baseline
                elif paid:
                    own = [i for i, of in enumerate(experts) if of.drafter == name]
                    slots = max(single[i][row][0] for i in own)
                    one_pass = experts[own[0]].trace.meta.prefix_only
                    if slots:
                        read = min(gains[e] - 1, len(cost.catch_up) - 1)
                        shown = cost.draft[1 if one_pass else slots] + cost.catch_up[read]
                        steps += float(shown) / cost.baseline
                    clock.unread = 0
                else:
                    clock.unread += gains[e]
            rounds.append((row, e, computed, drafted, accepted, gains, chances))
            row += gains[e]
        best = max(sum(r[5][i] for r in rounds) for i in range(len(experts)))
        regret = best - sum(c * g for r in rounds for c, g in zip(r[6], r[5]))
        made.append(([r[:5] for r in rounds], steps, regret))
    return made


def walked(expert):
    """[(computed, drafted, accepted)] of each row, by a replay of the text from that row on."""
    trace, found = expert.trace, []
    for s, (start, end) in enumerate(zip(trace.offset[:-1].tolist(), trace.offset[1:].tolist())):
        for row in range(start, end):
            rest = trace.select([s])
            names = ("token", "depth", "run", "feature")
            rows = {name: getattr(rest, name)[row - start :] for name in names}
            left = replace(
                rest, offset=np.array([0, end - row]), budget=rest.budget - (row - start), **rows
            )
            of = replay(left, expert.policy, 0, expert.cost)
            found.append((int(of.computed[0]), int(of.drafted[0]), int(of.accepted[0])))
    return found


@given(worlds(), st.sampled_from(["hedge", "leader"]), st.booleans(), st.integers(0, 3))
@settings(max_examples=15)
def test_rounds_steps_and_regret_are_those_of_the_slow_twin(experts, kind, paid, seed):
    found = outcomes(experts)
    router = hedge(tokens=True) if kind == "hedge" else replace(leader(), tokens=True)
    routed, expected = route(found, router, seed), twin(experts, kind, paid, seed)
    r = routed.rounds
    columns = zip(r.row, routed.used, r.computed, r.drafted, r.accepted)
    assert [tuple(map(int, of)) for of in columns] == [of for each in expected for of in each[0]]
    steps = routed.paid if paid else routed.steps
    np.testing.assert_allclose(steps[:, 0], [each[1] for each in expected], rtol=1e-12)
    np.testing.assert_allclose(routed.regret, [each[2] for each in expected], atol=1e-9)
    assert (routed.regret <= routed.bound + 1e-9).all() or kind == "leader"


@given(worlds(), st.integers(0, 3))
@settings(max_examples=15)
def test_every_router_commits_the_text_by_rounds_of_its_drafters(experts, seed):
    found = outcomes(experts)
    trace = found.trace
    for router in (routing.normal_hedge(), routing.bandit(), routing.cascade(found),
                   routing.oracle(found), hedge()):  # fmt: skip
        routed = route(found, router, seed)
        lengths = np.add.reduceat(committed(routed.rounds, trace), routed.rounds.offset[:-1])
        np.testing.assert_array_equal(lengths, np.diff(trace.offset))
        for e, expert in enumerate(experts):
            own = np.flatnonzero(routed.used == e)
            for name in ("computed", "drafted", "accepted"):
                of_row = getattr(rounds_at_rows(expert.trace, expert.policy, expert.cost), name)
                np.testing.assert_array_equal(
                    getattr(routed.rounds, name)[own], of_row[routed.rounds.row[own]]
                )


@given(worlds())
@settings(max_examples=15)
def test_one_expert_and_equal_drafters_make_the_rounds_of_a_replay(experts):
    one = experts[0]
    expected = replay(one.trace, one.policy, 0, one.cost)
    alone = route(outcomes([one]), hedge())
    assert alone.rounds == expected
    assert broken_rounds(one.trace, alone.rounds, one.trace.K) == 0
    seconds = np.add.reduceat(one.cost.seconds(expected), expected.offset[:-1])
    np.testing.assert_allclose(alone.steps[:, 0], seconds / one.cost.baseline, rtol=1e-12)
    twins = outcomes([replace(one, drafter=name) for name in "abc"])
    for router in (hedge(), hedge(True), leader(), routing.normal_hedge(), routing.bandit(),
                   routing.cascade(twins), routing.oracle(twins)):  # fmt: skip
        assert route(twins, router, seed=3).rounds == expected


def regret_of(router, rewards, delay):
    """(regret, unknown outcomes) of a router on rewards [R, E] that it sees `delay` rounds late."""
    experts, expected, unknown = len(rewards[0]), 0.0, 0
    for t, reward in enumerate(rewards):
        known = [sum(of[e] for of in rewards[: max(t - delay, 0)]) for e in range(experts)]
        unknown += min(t, delay)
        seen = Seen(0, len(rewards), 1.0, known, 0.0, [0] * experts, [])
        expected += sum(c * r for c, r in zip(router.chances(seen), reward))
    return max(map(sum, zip(*rewards))) - expected, unknown


@pytest.mark.parametrize("delay", [0, 2])
@pytest.mark.parametrize(("experts", "rounds"), [(2, 6), (3, 4)])
def test_hedge_keeps_its_bound_on_every_sequence_and_the_leader_does_not(experts, rounds, delay):
    everything = list(product(product((0, 1), repeat=experts), repeat=rounds))
    worst = 0.0
    for rewards in everything:
        regret, unknown = regret_of(hedge(), rewards, delay)
        bound = hedge_bound(experts, rounds, rounds, unknown)
        assert regret <= bound + 1e-12
        worst = max(worst, regret / bound)
    assert worst > 0.5  # the bound is not vacuous
    least = hedge_bound(experts, rounds, rounds)
    assert least == pytest.approx(math.sqrt(rounds * math.log(experts) / 2))
    broken = max(regret_of(leader(), rewards, delay)[0] for rewards in everything[::-1])
    assert broken > hedge_bound(experts, rounds, rounds, 0)


def specialists(prompts, shares):
    """Two drafters of one text: each is right on its prompts, every second (shares 1), or all."""
    easy, hard = (iid(alpha, prompts, 60, 4, seed=1) for alpha in (0.95, 0.05))
    first = np.arange(prompts) % 2 < shares
    rows = np.repeat(first, 60)
    runs = np.where(rows, easy.run, hard.run), np.where(rows, hard.run, easy.run)
    return {name: replace(easy, run=run) for name, run in zip("ab", runs)}


def gains(world):
    return {(r.router, r.feedback): r.gain for r in compare_routers(world, UNIT, ["fixed:4"])}


def test_a_router_wins_where_each_drafter_has_its_prompts_and_not_where_one_has_all():
    won, lost = gains(specialists(24, 1)), gains(specialists(24, 2))
    for name in ("normal hedge", "leader"):
        assert won[name, "free"].low > 0.3
        assert won[name, "free"].value > won[name, "paid"].value
    assert won["oracle", ""].value >= max(gain.value for gain in won.values())
    assert all(gain.high <= 0 for (name, _), gain in lost.items() if name not in ("oracle",))
    assert won["hedge on tokens", "free"].value > lost["hedge on tokens", "free"].value


def test_what_cannot_be_routed_is_refused():
    trace = iid(0.5, 3, 10, 4)
    alike = Expert("a", make_policy("fixed:2", trace, UNIT), trace, UNIT)
    with pytest.raises(ValueError, match="different experts"):
        outcomes([alike, alike])
    for other in (replace(trace, token=trace.token + 1), trace.shorten(5)):
        with pytest.raises(ValueError, match="a and b hold other prompts"):
            outcomes([alike, replace(alike, drafter="b", trace=other)])
    for text in ("beta_ts", "exp3", "oracle"):
        with pytest.raises(PolicyError, match="remembers or draws"):
            rounds_at_rows(trace, make_policy(text, trace, UNIT), UNIT)
