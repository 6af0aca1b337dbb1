"""The papers' prices side by side with the measured one, in score, trees and drafters."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shell import run
from strategies import costs

from simspec import CostModel, formulas, replay, summary, synthetic
from simspec.policies import fixed
from simspec.reports.regimes import (
    RATIOS,
    by_regime,
    drafter_cells,
    regime_columns,
    regime_tables,
    regimes,
    score_cells,
    with_ratio,
)

TRACE = synthetic.iid(0.7, 12, 60, 6, seed=2)
COST = CostModel(
    draft=np.arange(7) * 0.4, verify=2 + 0.3 * np.arange(7), catch_up=[0, 0.2], overhead=0.1,
    baseline=2.0, feature=0.05, predictor=0.07, name="mine",
)  # fmt: skip


def test_labels_and_order():
    labels = list(regimes(COST, TRACE))
    assert labels[0] == "measured"
    assert labels[1:4] == [f"c={c:.2f}, flat" for c in RATIOS]
    assert labels[4:] == [f"c={c:.2f}, measured verification" for c in RATIOS]
    assert list(regimes(0.2, TRACE)) == labels[:4]
    assert regimes(0.2, TRACE)["measured"].draft[1] == 0.2


@given(st.sampled_from(RATIOS), st.integers(0, 6), st.integers(0, 99))
def test_flat_price_is_glides_formula_on_its_own_acceptance(c, k, seed):
    """Eq. 14 of EESD at v_d and r_d of the replay."""
    trace = synthetic.iid(0.7, 4, 40, 6, seed=seed)
    priced = regimes(COST, trace)[f"c={c:.2f}, flat"]
    figures = summary(replay(trace, fixed(k), 0, priced), trace, priced)
    if figures.accepted:
        expected = formulas.eesd_speedup(figures.v_d, figures.r_d, c)
        assert figures.speedup == pytest.approx(expected, rel=1e-9)


@given(costs(6), st.sampled_from(RATIOS), st.integers(0, 6))
def test_measured_verification_keeps_verify_alone(cost, c, k):
    priced = with_ratio(replace(cost, predictor=0.07), c)
    rounds = replay(TRACE, fixed(k))
    by_hand = c * cost.baseline * rounds.computed + cost.verify[rounds.drafted]
    assert priced.seconds(rounds) == pytest.approx(by_hand)
    assert priced.baseline == cost.baseline
    assert priced.reading(("confidence", "theta")) == priced


def test_more_rows_cost_nothing_where_verification_is_flat():
    """Control: they do where it is measured."""
    flat = regimes(COST, TRACE)["c=0.05, flat"]
    assert np.ptp(flat.verify) == 0
    assert np.ptp(regimes(COST, TRACE)["c=0.05, measured verification"].verify) > 0


def test_recordings_are_side_by_side():
    found = by_regime({"a": TRACE, "b": TRACE}, {"a": COST, "b": 0.1})
    assert set(found["measured"]) == {"a", "b"}
    assert set(found["c=0.10, measured verification"]) == {"a"}
    columns = regime_columns(found)
    assert list(columns) == ["flat", "measured verification"]
    assert columns["flat"][0] == "measured"
    assert len(columns["flat"]) == 1 + len(RATIOS)


def test_tables_have_names_down_and_prices_across():
    cells = {label: {"r": {"p": label[:6]}} for label in regimes(COST, TRACE)}
    cells["c=0.05, flat"]["r"]["q"] = "only"
    flat, measured = regime_tables("policy", cells)
    assert flat.headings == ("policy", "measured", "c=0.05", "c=0.10", "c=0.15")
    assert flat.rows == [
        ("p", "measur", "c=0.05", "c=0.10", "c=0.15"), ("q", "-", "only", "-", "-"),
    ]  # fmt: skip
    assert "as measured" in measured.title


def test_commands_print_every_regime(tmp_path, capsys):
    path = tmp_path / "a.parquet"
    synthetic.iid(0.6, 10, 30, 4, confidence=True).save(path)
    (tmp_path / "a.cost.json").write_text(json.dumps(replace(COST, origin=None).to_dict()))
    for command, options, rows in (
        ("score", ("--policy", "beta_ts"), lambda of: of[0]["policies"]),
        ("drafters", (), list),
        ("trees", ("--policy", "fixed:2", "--nodes", "4"), list),
    ):
        code, out, _ = run(capsys, command, path, *options, "--regimes", "--json")
        assert code == 0
        found = json.loads(out)["regimes"]
        assert len(found) == 1 + 2 * len(RATIOS)
        assert all(rows(of) for of in found.values())
        code, out, _ = run(capsys, command, path, *options, "--regimes", "--markdown")
        assert code == 0
        assert out.count("| measured |") == 2
    code, _, err = run(capsys, "trees", path, "--regimes", "--csv", tmp_path / "t.csv")
    assert code == 2
    assert "--csv holds one price" in err


def test_cells_are_the_rows_figures(tmp_path):
    from simspec.reports.drafters import compare_drafters
    from simspec.reports.oracle_gap import score

    (of,) = score({"a": TRACE}, ["beta_ts"], COST, resamples=100)
    cells = score_cells([of])["a"]
    assert cells["beta_ts:acceptance"] == f"{of['policies'][0]['speedup']:.2f}"
    assert cells["oracle"] == f"{of['speedup_oracle']:.2f}"
    row, *_ = compare_drafters({"a": TRACE}, COST, resamples=100)
    assert drafter_cells([row]) == {"": {"a": f"{row.speedup.value:.2f} k={row.best_k}"}}
