"""Costs of shapes: the bundled H200 table, its 18 measured speedups, and steps as costs."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from shell import simspec

from real.engines.shapes import StepCell, StepRun, read_steps, step_table
from simspec.cost.gate import Claim, check_claims, no_interval
from simspec.cost.table import bundled_costs, load_cost
from simspec.numerics.formulas import expected_committed

NAME = "h200-vllm-0.26"
STEPS = read_steps(bundled_costs()[NAME].with_name(f"{NAME}.steps.json"))
RUN = replace(STEPS, alternating=True, cells=())


def speed(cell):
    """Tokens a second of the whole batch."""
    return cell.batch * cell.tokens / np.mean(cell.seconds)


def test_the_bundled_table_is_that_of_its_steps_and_passes_the_gate():
    table = load_cost(NAME)
    assert step_table(STEPS).to_dict() == table.to_dict()
    assert (table.batch, table.context, table.K) == ((1, 8, 64), (1024,), 7)
    assert bundled_costs()[NAME].stat().st_size < 100_000
    assert table.origin.engines["target"] == "vllm 0.26.0, V2 runner"
    for cell in table.known:
        assert no_interval(cell) == ""
        assert cell.precision.samples["verify"] == [12, 12, 0, 12, 0, 0, 0, 12]
        tokens = expected_committed(1.0, np.arange(8))
        rounds = cell.verify / cell.baseline
        check_claims([Claim(str(k), tokens[k] / rounds[k], tokens[k]) for k in range(8)], cell)


def test_rounds_of_the_table_predict_the_18_speedups_measured_at_stated_acceptance():
    """From the seconds at rate 0 and the law of acceptance alone.

    An error is that of the tokens that 60 steps drew, times that of the seconds of a step, which
    acceptance does not change: both are printed where they are large.
    """
    table = load_cost(NAME)
    plain = {cell.batch: speed(cell) for cell in STEPS.cells if cell.k == 0}
    measured = [cell for cell in STEPS.cells if cell.rate]
    errors, parts = [], {}
    for cell in measured:
        cost = table.at(cell.batch)
        tokens = expected_committed(cell.rate, cell.k)
        predicted = tokens / (cost.verify[cell.k] / cost.baseline)
        assert predicted <= tokens  # no round is cheaper than a plain step here
        errors.append(predicted / (speed(cell) / plain[cell.batch]) - 1)
        drawn, spent = tokens / cell.tokens, np.mean(cell.seconds) / cost.verify[cell.k]
        base = cost.baseline * plain[cell.batch] / cell.batch
        assert 1 + errors[-1] == pytest.approx(drawn * spent * base, rel=1e-9)
        parts[cell.batch, cell.k, cell.rate] = round(drawn - 1, 3), round(spent - 1, 3)
    assert len(errors) == 18
    assert np.median(np.abs(errors)) == pytest.approx(0.0246, abs=1e-3)
    assert np.abs(errors).max() == pytest.approx(0.117, abs=1e-3)
    large = {at: parts[at] for at, error in zip(parts, errors) if abs(error) > 0.06}
    assert large == {
        (1, 3, 0.6): (-0.033, -0.027),
        (1, 3, 0.8): (-0.037, -0.049),
        (1, 7, 0.8): (0.076, 0.004),  # 60 rounds at batch 1 drew few tokens
        (8, 3, 0.8): (-0.008, 0.128),  # one cell whose steps were 13% slower than at rate 0
        (8, 7, 0.6): (0.016, 0.054),
        (64, 3, 0.8): (0.002, 0.061),
    }


def test_control_the_wrong_law_does_not_predict_them():
    """Acceptance of 0.6 for every cell: half of the speedups are off by more than the worst."""
    table = load_cost(NAME)
    plain = {cell.batch: speed(cell) for cell in STEPS.cells if cell.k == 0}
    cells = [cell for cell in STEPS.cells if cell.rate == 0.8 and cell.k > 1]
    for cell in cells:
        cost = table.at(cell.batch)
        wrong = expected_committed(0.6, cell.k) / (cost.verify[cell.k] / cost.baseline)
        assert abs(wrong / (speed(cell) / plain[cell.batch]) - 1) > 0.15


def test_commands_take_bundled_costs_by_name(tmp_path):
    """`report` prices one request at a time: the cell of batch 1."""
    given = ("tiny-medusa-greedy", "--cost", NAME)
    out, _ = simspec("sweep", *given, "--policy", "fixed:4", "--batch", 8, "--json", cwd=tmp_path)
    (row,) = json.loads(out)["rows"]
    assert row["speedup"] < row["committed_per_round"]
    assert "batch 8" in row["cost"]
    simspec("report", *given, "--policy", "fixed:3", "--out", "r.html", cwd=tmp_path)
    assert "costs of NVIDIA H200" in (tmp_path / "r.html").read_text()
    _, error = simspec("sweep", "tiny-eagle-greedy", "--cost", "h100", cwd=tmp_path, code=2)
    assert "h100" in error


def blocks(values, noise=0.0, count=12, seed=0):
    """Cells of batch 1, context 8 of these seconds by length, of a machine that slows down once."""
    rng, pace = np.random.default_rng(seed), np.where(np.arange(count) < count // 2, 1.0, 1.3)
    return tuple(
        StepCell(1, 8, k, 0.0, 1.0, tuple(value * pace * rng.lognormal(0, noise, count)))
        for k, value in values.items()
    )


def test_alternating_blocks_cancel_a_machine_that_slows_down():
    cells = blocks({0: 0.01, 1: 0.011, 2: 0.012})
    (cost,) = step_table(replace(RUN, cells=cells)).known
    assert cost.verify / cost.baseline == pytest.approx([1.0, 1.1, 1.2])
    assert cost.precision.half_width["verify"][1] == pytest.approx(0.0, abs=1e-12)
    assert cost.warnings == ()
    apart = step_table(replace(RUN, alternating=False, cells=cells)).known[0]
    assert "plain steps drifted by +" in apart.warnings[0]  # the control
    assert apart.precision.half_width["verify"][1] > 0.0005


def test_a_wider_pass_that_is_faster_is_a_warning():
    cells = blocks({0: 0.01, 1: 0.011, 2: 0.009}, 0.01)
    (cost,) = step_table(replace(RUN, cells=cells)).known
    assert cost.warnings[0].startswith("a pass of 2 draft tokens is faster than one of 1 by 2")


def test_invalid_steps_are_one_line(tmp_path):
    good = blocks({0: 0.01, 2: 0.012})
    for cells, reason in (
        (good[1:], "expected plain ones"),
        ((*good, replace(good[0], batch=2)), "the longest draft 2 of the other cells"),
        ((replace(good[0], rate=0.5),), "expected cells of rate 0"),
        ((good[0], replace(good[1], seconds=(0.1,))), "alternating blocks differ in number"),
    ):
        with pytest.raises(ValueError, match=reason):
            step_table(replace(RUN, cells=cells))
    data = json.loads(bundled_costs()[NAME].with_name(f"{NAME}.steps.json").read_text())
    data["cells"][0]["seconds"][0] = 1e9
    Path(tmp_path / "s.json").write_text(json.dumps(data))
    with pytest.raises(ValueError, match=r"s.json: not a file of steps: .*<= 600"):
        read_steps(tmp_path / "s.json")
    assert isinstance(STEPS, StepRun)
