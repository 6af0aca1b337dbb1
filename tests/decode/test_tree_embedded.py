"""The embedded models in float32 on the bundled recordings: tree and CAPE runs and replays."""

import os
from functools import lru_cache

import pytest
from tree_runs import ran

from real.decode.plans import make_plan
from real.model_settings import evenly_spaced
from real.pair import TINY, load_pair
from real.rerun import NOTHING, compare, rerun, run_on
from simspec import CostModel, load_trace, policies
from simspec.trace.recordings import recordings
from simspec.tree.replay import replay_tree

SLOW = os.environ.get("SIMSPEC_SLOW")
BUDGET = 72  # else new tokens at most; recorded are up to 96
DRAFTERS = [d for d in ("eagle", "early_exit", "medusa") if f"tiny-{d}-greedy" in recordings()]
POLICIES = (
    "static:4x2x1", "cape:section", "dynamic_tree:16", "dynamic_tree:beams",
    "cape:appendix,k=4", "static:2x2x2", "cape:3,k=4",
    "optimal_tree:12", "static:8", "dynamic_tree:40",
)  # fmt: skip


@lru_cache(maxsize=2)
def _pair(drafter):
    return load_pair(TINY, drafter)


def test_tree_drafters_of_the_papers_are_bundled():
    assert DRAFTERS == ["eagle", "early_exit", "medusa"]


@pytest.mark.parametrize("rule", ["greedy", "coupled"])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_tree_runs_equal_their_replays(drafter, rule, record_property):
    trace = load_trace(recordings()[f"tiny-{drafter}-{rule}"])
    cost, pair, total = CostModel.from_ratio(0.1, trace.K, 63), _pair(drafter), NOTHING
    texts = evenly_spaced(trace.sequences, 12 if SLOW else 4)
    # every policy all texts, or every other one of the first four on one text, in turn
    turn = (DRAFTERS.index(drafter) + (rule == "greedy")) % 2
    few = [(texts[i : i + 1], POLICIES[i : i + 1]) for i in range(turn, 4, 2)]
    exam = [(texts, POLICIES)] if SLOW else few
    for chosen, names in exam:
        part = trace.select(chosen)
        if not SLOW and names != (
            "dynamic_tree:beams",
        ):  # a search's nodes are those of the recorded budget
            part = part.shorten(BUDGET)
        chosen = [policies.make(name, part, cost) for name in names]
        with_plain = names == exam[0][1]  # the others' texts are compared with the recorded ones
        if with_plain:
            *runs, plain = rerun(pair, part, chosen, 0, cost)
        else:
            plans = [make_plan(policy, part.K, 0, cost, part.meta.tree) for policy in chosen]
            runs = [ran(pair.target, pair.drafter, part, plan) for plan in plans]
        for policy, results in zip(chosen, runs):
            comparison = compare(part, policy, replay_tree(part, policy), results)
            total += comparison
            if with_plain and not comparison.text_flips:
                assert all((a.token == b.token).all() for a, b in zip(results, plain))
    flips = [f"{f.margin:.1e}" for f in total.exceptions]
    record_property(
        "measured",
        f"{drafter}-{rule}: {total.rounds} rounds, exceptions at gaps {flips}, "
        f"{len(total.failures)} failures",
    )
    assert total.rounds > 20, total
    assert not total.failures, total
    assert total.equal or (not SLOW and len(total.exceptions) == 1), (
        total
    )  # one near-tie may fall into a few rounds


def test_tree_policy_text_is_run_and_priced():
    trace = load_trace(recordings()["tiny-eagle-greedy"])
    trace = trace.select(evenly_spaced(trace.sequences, 1))
    cost = CostModel.from_ratio(0.1, trace.K, 63)
    run = run_on(trace, _pair("eagle"), "static:4x2x1", cost)
    assert run.policy == "static:4x2x1"
    assert run.comparison.equal
    assert run.simulated > 1 < run.committed
    with pytest.raises(
        ValueError, match="prices 8 nodes, policy 'static:4x2x1' takes 20: measure with more rows"
    ):
        run_on(trace, _pair("eagle"), "static:4x2x1", CostModel.from_ratio(0.1, trace.K))
