"""Costs of an engine from its passes, and predicted beside measured speedups."""

import re
from dataclasses import replace

import numpy as np
import pytest
from fake_engine import FakeRunner, do_run, prompts

from real.engines.measure import engine_cost, speedup_table, timed_block, whole_blocks
from real.engines.run import Plan
from real.engines.summary import advised
from simspec import CostModel
from simspec.cost.gate import PriceError

PLAN = Plan((0, 1, 2, 4), repeats=3, group=4)
FORCED = replace(PLAN, ks=(0, 1, 2, 3, 4), force=True)
VERIFY = np.array([1.05, 1.1, 1.3, 1.9, 2.4])
"""Seconds of passes with drafts; a plain engine's pass takes 1."""


def stepped(drafted, k):
    return float(VERIFY[drafted]) if k else 1.0


def noisy(seed, spread=0.1):
    """A machine whose speed drifts over minutes, and passes that scatter."""
    rng, state = np.random.default_rng(seed), {"pace": 1.0}

    def seconds(drafted, k):
        state["pace"] = float(np.clip(state["pace"] + rng.normal(0, 0.004), 0.6, 1.6))
        return stepped(drafted, k) * state["pace"] * float(rng.lognormal(0, spread))

    return seconds


def measured(folder, name, seconds=stepped, plan=PLAN, seed=0, count=12, **options):
    world = prompts(count, seed)
    return do_run(folder / name, FakeRunner(world, seconds=seconds, **options), world, plan)


def test_forced_drafts_give_the_cost_of_every_length(tmp_path):
    cost = engine_cost(*measured(tmp_path, "f.jsonl", plan=FORCED))
    assert cost.baseline == 1.0
    assert np.allclose(cost.verify, [1.0, *VERIFY[1:]])  # plain is the only undrafted pass
    assert cost.draft.tolist() == [0.0] * 5


def test_a_wider_pass_that_is_faster_is_a_warning(tmp_path):
    """Noise of 2% a pass: none where wider passes are slower, one where plain ones are slowest."""

    def machine(ratio, seed):
        rng = np.random.default_rng(seed)
        return lambda drafted, k: (ratio if drafted > 1 else 1.0) * float(rng.lognormal(0, 0.02))

    slow = engine_cost(*measured(tmp_path, "s.jsonl", machine(0.92, 0), FORCED))
    (warning,) = slow.warnings
    assert re.match(r"a pass of [234] draft tokens is faster than one of [01] by [78]% ", warning)
    assert "in this engine: speedups may exceed tokens a pass" in warning
    for seed in range(3):
        cost = engine_cost(*measured(tmp_path, f"{seed}.jsonl", machine(1.2, seed), FORCED))
        assert cost.warnings == ()
    with pytest.raises(PriceError, match="a round of 4 drafts at 0.70 of a plain step; measure"):
        engine_cost(*measured(tmp_path, "lie.jsonl", machine(0.7, 0), FORCED))


def test_costs_of_one_sample_or_few_blocks_confirm_nothing(tmp_path):
    """They predict what the engine measures, and yet have no interval; a lie is refused."""
    held = measured(tmp_path, "held.jsonl", seed=1)
    for plan, count, why in (
        (FORCED, 12, "200 replicates that are all alike"),
        (replace(FORCED, repeats=1), 12, "3 undisturbed timing blocks, expected 4 or more"),
    ):
        cost = engine_cost(*measured(tmp_path, f"{why[0]}.jsonl", plan=plan, count=count))
        (warning,) = cost.warnings
        assert warning == f"no interval and no confirmation at these costs, which have {why}" + (
            ": one sample a cell" if "alike" in why else ""
        )
        table = speedup_table(*held, replace(cost, verify=VERIFY))
        assert table.recommended == table.best > 0
        assert not table.confirmed
        assert all(row.predicted_interval is None for row in table.rows if row.k)
        assert advised(table)[1].startswith(f"not settled: the costs have {why}")
    lie = cost.verify * [1.0, 1.0, 0.45, 1.0, 1.0]
    with pytest.raises(
        PriceError, match=r"K = 2 would be .* at 1.\d\d tokens .* of 2 drafts at 0.5"
    ):
        speedup_table(*held, replace(cost, verify=lie))


def test_a_measured_speedup_above_tokens_a_pass_is_refused(tmp_path):
    """Plain passes are slowed by something else while drafts run alone."""
    cost = replace(engine_cost(*measured(tmp_path, "c.jsonl", plan=FORCED)), precision=None)
    disturbed = measured(tmp_path, "d.jsonl", lambda d, k: stepped(d, k) if k else 3.0, seed=1)
    with pytest.raises(PriceError, match=r"the measured K = 1 would be .*disturbed; run again"):
        speedup_table(*disturbed, cost)


def test_costs_are_a_cost_file_that_names_their_origin(tmp_path):
    about, rows = measured(tmp_path, "f.jsonl", plan=FORCED)
    engine_cost(about, rows).to_json(tmp_path / "engine.cost.json")
    cost = CostModel.from_json(tmp_path / "engine.cost.json")
    assert (cost.name, cost.device) == ("vllm 1.0", "fake")
    assert cost.origin.engines == {
        "target": "vllm 1.0, V1 runner", "drafter": "vllm 1.0, V1 runner, ngram"
    }  # fmt: skip
    assert (cost.origin.threads, cost.origin.dtype) == (1, "float32")
    assert cost.origin.known
    assert len(cost.replicates) == 200
    exact = np.array(cost.precision.replicates["verify"])
    assert (exact == exact.round(5)).all()  # a file of them stays small


def test_drift_cancels_in_pairs_and_intervals_hold_the_costs(tmp_path):
    """10 noisy runs; half-widths are 95% intervals, so that few cells of 40 may miss."""
    inside, true = [], VERIFY[1:]
    for seed in range(10):
        cost = engine_cost(*measured(tmp_path, f"{seed}.jsonl", noisy(seed), FORCED, seed))
        ratio = cost.verify[1:] / cost.baseline
        width = np.array(cost.precision.half_width["verify"][1:]) / cost.baseline
        assert (abs(ratio / true - 1) < 0.1).all()
        inside += (abs(ratio - true) <= width).tolist()
    assert 0.85 <= np.mean(inside) <= 1.0


def test_control_without_pairing_drift_biases_the_costs(tmp_path):
    """A machine that halves its speed: the median over the file is off, the paired ratio is not."""
    state = {"passes": 0}

    def slowing(drafted, k):
        state["passes"] += 1
        return stepped(drafted, k) * (1 + state["passes"] / 4000)

    about, rows = measured(tmp_path, "s.jsonl", slowing, replace(FORCED, ks=(0, 4)), count=16)
    paired = engine_cost(about, rows)
    assert abs(paired.verify[4] / paired.baseline / VERIFY[4] - 1) < 0.02
    first, last = (
        timed_block(part) for part in (whole_blocks(about, rows)[0], whole_blocks(about, rows)[-1])
    )
    assert abs(last.plain / first.plain - 1) > 0.2


def test_disturbed_blocks_are_left_out(tmp_path):
    rng = np.random.default_rng(0)
    state = {"passes": 0}

    def bursts(drafted, k):
        state["passes"] += 1
        slow = state["passes"] // 2000 % 3 == 1
        return stepped(drafted, k) * (1 + 4 * slow * (rng.random() < 0.3))

    cost = engine_cost(*measured(tmp_path, "b.jsonl", bursts, FORCED, count=16))
    assert 0 < cost.precision.disturbed < cost.precision.blocks
    assert np.allclose(cost.verify[1:] / cost.baseline, VERIFY[1:], rtol=0.05)


def test_blocks_that_a_kill_divided_do_not_count(tmp_path):
    about, rows = measured(tmp_path, "k.jsonl", plan=FORCED)
    whole = whole_blocks(about, rows)
    split = [replace(row, session=1) if row.block == 0 and row.k == 2 else row for row in rows]
    assert len(whole_blocks(about, split)) == len(whole) - 1
    assert len(whole_blocks(about, rows[:-1])) == len(whole) - 1
    with pytest.raises(ValueError, match="timed no passes of 4 draft tokens"):
        engine_cost(about, [row for row in rows if row.k < 4])


def test_predicted_speedups_are_the_measured_ones(tmp_path):
    cost = engine_cost(*measured(tmp_path, "cost.jsonl", plan=FORCED))
    cost = replace(cost, verify=VERIFY, precision=None)  # the undrafted pass too
    about, rows = measured(tmp_path, "held.jsonl", seed=1)
    table = speedup_table(about, rows, cost)
    assert table.repeats == 3
    assert table.prompts == 11  # one text ends with its first token
    for row in table.rows:
        assert row.predicted == pytest.approx(row.measured, rel=1e-12)
        assert row.measured in row.measured_interval
    assert table.confirmed
    assert table.recommended == table.best > 0
    assert table.to_dict()["worst_error"] < 1e-9


def test_control_the_costs_of_another_engine_do_not_predict(tmp_path):
    cost = CostModel.from_ratio(0.0, 4)
    table = speedup_table(*measured(tmp_path, "held.jsonl", seed=1), cost)
    assert table.to_dict()["worst_error"] > 0.2
    dear = {"seconds": lambda drafted, k: 1.0 + 2 * drafted}
    wrong = speedup_table(*measured(tmp_path, "dear.jsonl", seed=1, **dear), cost)
    assert wrong.recommended > 0
    assert not wrong.confirmed


def test_forced_drafts_have_no_speedup(tmp_path):
    cost = engine_cost(*measured(tmp_path, "r.jsonl"))
    with pytest.raises(ValueError, match="forced drafts, by which costs are measured: name"):
        speedup_table(*measured(tmp_path, "f.jsonl", plan=FORCED), cost)
