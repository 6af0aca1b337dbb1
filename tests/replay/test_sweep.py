from dataclasses import replace

import numpy as np
import pandas
import pytest
from strategies import nosy

from simspec import CostModel, PolicyError, TraceError, replay, summary, sweep, synthetic
from simspec.policies import beta_ts, fixed, oracle

A, B = (
    synthetic.iid(0.8, 4, 60, 6, seed=1, confidence=True),
    synthetic.iid(0.5, 3, 40, 5, seed=2, confidence=True),
)
QUIET = dict(progress=False)


def test_rows_equal_summaries_of_replays():
    table = sweep(
        {"a": A, "b": B}, [fixed(2), "beta_ts", nosy(), oracle], 0.1, replicates=3, seed=7, **QUIET
    )
    assert len(table) == 2 * (3 + 3 + 2)
    for name, trace in (("a", A), ("b", B)):
        cost = CostModel.from_ratio(0.1, trace.K)
        for policy in (fixed(2), beta_ts(), nosy(), oracle(trace, cost)):
            for replicate in range(3 if policy.random else 1):
                m = summary(
                    replay(trace, policy, 7 + replicate if policy.random else 0, cost), trace, cost
                )
                row = table[
                    (table.trace == name)
                    & (table.policy == policy.name)
                    & (table.replicate == replicate)
                ]
                assert len(row) == 1
                assert row.random.item() == policy.random
                for field in (
                    "rounds", "drafted", "computed", "accepted", "seconds", "speedup",
                    "committed_per_round"
                ):  # fmt: skip
                    assert row[field].item() == getattr(m, field)


def test_order_and_threads_change_nothing():
    policies = [fixed(1), beta_ts(), nosy(), nosy("stream"), oracle]
    costs = {"cheap": 0.05, "dear": CostModel.from_ratio(0.4, 6)}
    keys = ["trace", "policy", "cost", "replicate", "group"]
    one = sweep({"a": A, "b": B}, policies, costs, by="prompt", **QUIET)
    threads = sweep({"a": A, "b": B}, policies, costs, by="prompt", jobs=4, **QUIET)
    pandas.testing.assert_frame_equal(one, threads)
    turned = sweep(
        {"b": B, "a": A}, policies[::-1], dict(reversed(costs.items())), by="prompt", **QUIET
    )
    pandas.testing.assert_frame_equal(
        one.sort_values(keys, ignore_index=True), turned.sort_values(keys, ignore_index=True)
    )


def test_common_random_numbers_pair_policies():
    """Two settings of one rule share their draws: the difference varies less over replicates
    than with draws of its own.
    """
    near = [beta_ts(alpha0=2.0), beta_ts(alpha0=2.2)]
    pair = sweep(A, near, 0.1, replicates=24, **QUIET).pivot(
        index="replicate", columns="policy", values="speedup"
    )
    unpaired = sweep(A, near[1:], 0.1, replicates=24, seed=1000, **QUIET).speedup.to_numpy()
    first = pair[near[0].name].to_numpy()
    assert np.var(first - pair[near[1].name].to_numpy()) < 0.7 * np.var(first - unpaired)


def test_a_policy_that_draws_nothing_has_one_row():
    table = sweep(A, ["fixed:2", "beta_ts"], 0.1, replicates=3, **QUIET)
    assert table.replicate.tolist() == [0, 0, 1, 2]
    assert table.random.tolist() == [False, True, True, True]


def test_without_costs_tokens_are_counted_and_nothing_is_priced():
    bare, priced = (sweep(A, ["fixed:2", "beta_ts"], c, **QUIET) for c in (None, 0.3))
    pandas.testing.assert_frame_equal(bare, priced.drop(columns=["cost", "seconds", "speedup"]))
    for policy in ("cost_ts", "oracle", lambda trace, cost: fixed(int(cost.K))):
        with pytest.raises(PolicyError, match="plans with costs: give --cost FILE"):
            sweep(A, policy, **QUIET)
    assert len(sweep(A, lambda trace, cost: fixed(2), **QUIET)) == 1


def test_groups():
    tasks = sweep(A, "fixed:2", 0.1, replicates=1, by="task", **QUIET)
    assert tasks.group.tolist() == ["synthetic"]
    prompts = sweep(A, "fixed:2", 0.1, replicates=1, by="prompt", **QUIET)
    assert prompts.group.tolist() == list(A.meta.ids)
    assert (prompts.sequences == 1).all()
    assert prompts.seconds.sum() == pytest.approx(tasks.seconds.sum())
    twice = sweep(A.select([0, 0]), "fixed:2", replicates=1, by="prompt", **QUIET)
    assert len(twice) == 2
    assert twice.group.nunique() == 2


def test_costs_and_traces_in_every_form(tmp_path):
    A.save(tmp_path / "a.parquet")
    ratio = CostModel.from_ratio(0.3, 6)
    by_path = sweep(tmp_path / "a.parquet", "fixed:2", ratio, replicates=1, **QUIET)
    assert by_path.trace.item() == str(tmp_path / "a.parquet")
    assert by_path.cost.item() == "c=0.3"
    assert (
        by_path.seconds.item()
        == sweep(A, "fixed:2", {"x": 0.3}, replicates=1, **QUIET).seconds.item()
    )
    both = sweep({"a": A, "b": B}, "fixed:2", {"a": 0.1, "b": 0.2}, replicates=1, **QUIET)
    assert both.cost.tolist() == ["c=0.1", "c=0.2"]
    assert sweep([A, A], "fixed:2", replicates=1, **QUIET).trace.nunique() == 2


@pytest.mark.parametrize(
    "arguments, error, words",
    [
        (dict(policies=[]), ValueError, "no policy was given"),
        (dict(traces=[]), ValueError, "no trace was given"),
        (dict(costs={}), ValueError, "no cost model was given"),
        (dict(costs="cheap"), ValueError, "cost is 'cheap'"),
        (dict(by="token"), ValueError, "by is 'token'"),
        (dict(replicates=0), ValueError, "replicates is 0"),
        (dict(jobs=0), ValueError, "jobs 0"),
        (dict(policies=[fixed(2), "fixed:2"]), PolicyError, "share a name"),
        (dict(policies=[3]), PolicyError, "3 is no policy"),
        (dict(policies=[lambda trace, cost: 5]), PolicyError, "is no policy"),
        (dict(policies=["fixed:9"]), PolicyError, "drafts up to 9"),
        (
            dict(policies=["fixed:2", "confidence:0.5"], traces=synthetic.iid(0.5, 1, 4, 3)),
            TraceError,
            "not in this trace",
        ),
        (dict(costs=CostModel.from_ratio(0.1, 2)), ValueError, "prices drafts up to 2"),
    ],
)
def test_invalid_input_is_refused_before_any_replay(arguments, error, words):
    with pytest.raises(error, match=words):
        sweep(**({"traces": A, "policies": ["fixed:3"]} | arguments | QUIET))


def test_a_draft_of_the_policys_own_longest_is_not_cut():
    """Every row offers three tokens: a policy of three never asks for more, one of six does."""
    shallow = replace(A, depth=np.minimum(A.depth, 3), run=np.minimum(A.run, 3))
    table = sweep(shallow, [fixed(3), fixed(6), fixed(2)], 0.1, replicates=1, **QUIET)
    three, six, two = table.cut_share
    assert three == two == 0
    assert six > 0.5


def test_kept_results_are_read_and_what_changed_is_replayed(tmp_path, monkeypatch):
    from simspec.replay import sweep as module

    trace, ran = synthetic.iid(0.7, 5, 40, 4, seed=1), []
    run = module.run_jobs
    monkeypatch.setattr(module, "run_jobs", lambda todo, *by: (ran.extend(todo), run(todo, *by))[1])
    policies = [fixed(2), beta_ts()]
    kept = dict(replicates=2, keep=tmp_path / "kept", progress=False)
    expected = sweep(trace, policies, replicates=2, progress=False)
    for changed, replays in (({}, 3), ({}, 0), ({"costs": 0.2}, 3), ({"by": "prompt"}, 3)):
        ran.clear()
        table = sweep(trace, policies, **kept, **changed)
        assert len(ran) == replays
        if not changed:
            pandas.testing.assert_frame_equal(table, expected, check_exact=True)
