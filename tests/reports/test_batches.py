"""simspec batch: the best length by batch and context, where drafting stops paying."""

import json
from dataclasses import replace

import numpy as np
import pytest
from shell import refused, simspec
from token_cost import TokenCost

from simspec import CostModel, policies, replay, synthetic
from simspec.cost.table import CostTable
from simspec.numerics.stats import ratio
from simspec.replay.batches import batch_replay, plain_steps, policy_steps
from simspec.replay.evaluation import evaluate
from simspec.reports.batches import BatchPlan, batch_notes, batch_rows, crossings

TRACE = synthetic.iid(0.7, 12, 60, 4, seed=4, confidence=True)
COST = TokenCost(10.0, 0.5, kv=0.001, draft=0.8, draft_round=1.0).cost(4, 30)


def speedup(K, batch, context=None, cost=COST):
    rounds = replay(TRACE, policies.parse(f"fixed:{K}"))
    steps = policy_steps(TRACE, rounds, cost, batch, context)
    return plain_steps(TRACE, cost, batch, context).seconds.sum() / steps.seconds.sum()


def test_best_lengths_are_those_of_every_length():
    for row in batch_rows(TRACE, COST, BatchPlan((1, 3, 16, 64))):
        speedups = [speedup(K, row.batch) for K in range(5)]
        assert row.best == int(np.argmax(speedups))
        assert row.drafting == 1 + int(np.argmax(speedups[1:]))
        for K in range(5):
            assert row.fixed(K).value == pytest.approx(speedups[K])


def test_drafting_stops_paying_where_a_linear_scan_says():
    rows = batch_rows(TRACE, COST, BatchPlan())
    (crossing,) = crossings(TRACE, COST, BatchPlan(), rows)
    best = [max(speedup(K, batch) for K in range(1, 5)) for batch in range(1, 65)]
    last = max(batch for batch, value in enumerate(best, 1) if value >= 1)
    assert crossing.last.batch == last
    assert crossing.first.batch == last + 1
    assert crossing.last.speedup == pytest.approx(best[last - 1])
    assert crossing.first.speedup < 1 <= crossing.last.speedup


def test_contexts_share_the_cache_between_plain_and_drafted_steps():
    """With more cached tokens a step's rows matter less: drafting pays in larger batches."""
    plan = BatchPlan(context=(0, 2000, 20000))
    found = crossings(TRACE, COST, plan, batch_rows(TRACE, COST, plan))
    lasts = [crossing.last.batch for crossing in found]
    assert lasts == sorted(lasts)
    assert found[0].first is not None
    assert found[-1].first is None


def test_flat_verification_pays_at_every_batch_and_dear_drafts_never():
    cost = CostModel.from_ratio(0.1, 4)
    rows = batch_rows(TRACE, cost, BatchPlan((1, 7, 100)))
    first, *others = (row.fixed(2).value for row in rows)
    assert others == pytest.approx([first, first], rel=0.01)  # steps wait where budgets cut drafts
    (crossing,) = crossings(TRACE, cost, BatchPlan(), rows)
    assert crossing.first is None
    assert any("upper bounds" in note for note in batch_notes(cost, BatchPlan()))
    cost = CostModel.from_ratio(5.0, 4)
    rows = batch_rows(TRACE, cost, BatchPlan((1, 2)))
    (crossing,) = crossings(TRACE, cost, BatchPlan(), rows)
    assert [row.best for row in rows] == [0, 0]
    assert crossing.last is None
    assert crossing.first.batch == 1


def test_intervals_at_batch_one_are_those_of_a_sweep():
    cost = CostModel.from_ratio(0.2, 4)
    names = ["fixed:2", "confidence:0.5"]
    (row,) = batch_rows(TRACE, cost, BatchPlan((1,), policies=names))
    found = evaluate(TRACE, names, cost, 1)
    for name in names:
        assert row.speedup[name] == ratio(found.plain, found.times[name])


def test_intervals_of_batches_are_as_wide_as_resampled_batches():
    """The share of a prompt in its steps stands for its influence: 60 resampled recordings."""
    (row,) = batch_rows(TRACE, COST, BatchPlan((8,)))
    interval, random = row.fixed(2), np.random.default_rng(0)
    drawn = []
    for _ in range(60):
        chosen = TRACE.select(random.integers(0, TRACE.sequences, TRACE.sequences))
        rounds = replay(chosen, policies.parse("fixed:2"))
        steps = policy_steps(chosen, rounds, COST, 8)
        drawn.append(plain_steps(chosen, COST, 8).seconds.sum() / steps.seconds.sum())
    spread = 2 * 1.96 * np.std(drawn)
    assert 0.7 < (interval.high - interval.low) / spread < 1.6


def test_policies_wait_for_the_longest_draft():
    """One sequence drafts as far as it is sure; of a batch the least sure one waits."""
    names = ["confidence:0.5"]
    one, many = batch_rows(TRACE, COST, BatchPlan((1, 32), policies=names))
    drop = [row.speedup["confidence:0.5"].value / row.fixed(2).value for row in (one, many)]
    assert drop[1] < 0.9 * drop[0]


def test_tables_are_priced_at_their_own_sizes():
    cell = CostModel(0.1 * np.arange(5), np.ones(5), [0], 0, 1.0)
    dear = replace(cell, verify=1 + np.arange(5.0))
    table = CostTable((1, 8), (100, 900), ((cell, cell), (dear, dear)))
    rows = batch_rows(TRACE, table, BatchPlan())
    assert [(row.batch, row.context) for row in rows] == [(1, 100), (8, 100), (1, 900), (8, 900)]
    found = crossings(TRACE, table, BatchPlan(), rows)
    assert [(c.last.batch, c.first.batch) for c in found] == [(1, 8), (1, 8)]
    assert "measured at batch sizes 1, 8" in batch_notes(table, BatchPlan())[0]


def test_command_shows_policies_of_a_whole_batch(tmp_path):
    TRACE.save(tmp_path / "t.parquet")
    synthetic.iid(0.7, 12, 60, 4, seed=4).save(tmp_path / "blind.parquet")
    COST.to_json(tmp_path / "c.json")
    batch = ("sweep", "--report", "batch", "-b", 8, "--cost", "c.json")
    chosen = ("adaptive_verification:k=3", "goodput", "fixed:2")
    asked = [word for text in chosen for word in ("--policy", text)]
    out, _ = simspec(*batch, "t.parquet", *asked, "--json", cwd=tmp_path)
    gains, speeds = json.loads(out)["tables"]
    assert speeds["title"] == "t.parquet: tokens a second"
    assert any("Ends: refill" in note for note in gains["notes"])
    (row,), (speed,) = gains["rows"], speeds["rows"]
    policy = policies.parse_batch("adaptive_verification:k=3")
    run = batch_replay(TRACE, policy, COST, 8)
    committed, verified = map(float, speed["adaptive_verification:k=3, verified"].split(" of "))
    assert verified == pytest.approx(run.rounds.drafted.mean(), abs=0.005)
    assert committed == pytest.approx(1 + run.rounds.accepted.mean(), abs=0.05)
    plain = plain_steps(TRACE, COST, 8)
    found = row["adaptive_verification:k=3"]
    assert found["value"] == pytest.approx(plain.share.sum() / run.steps.share.sum())
    assert found["low"] < found["value"] < found["high"]
    tokens = 8 * len(plain.seconds) / plain.seconds.sum() * found["value"]
    assert speed["adaptive_verification:k=3"]["value"] == pytest.approx(tokens)
    both = (*batch, "--policy", "adaptive_verification")
    _, error = simspec(*both, "t.parquet", "blind.parquet", cwd=tmp_path)
    assert "blind.parquet: adaptive_verification is left out: feature 'confidence'" in error
    refused(tmp_path, *both, "blind.parquet", words="'confidence' is not in this")
    words = "simspec sweep --report batch --policy"
    refused(tmp_path, "sweep", "t.parquet", "--policy", "adaptive_verification", words=words)


def test_trees_are_refused():
    tree = policies.parse("dynamic_tree:4")
    with pytest.raises(ValueError, match="expected a policy of chains"):
        batch_rows(TRACE, COST, BatchPlan((2,), policies=[tree]))
