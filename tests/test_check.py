"""`simspec check`: holds on a right simulator, and fails on planted faults of each kind."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from numba.core import config
from shell import run
from strategies import traces

from simspec import formulas, metrics, policies, simulate, synthetic
from simspec.trace import Trace
from simspec.validation import check
from simspec.validation import synthetic_checks as known

RIGHT = simulate.replay


@pytest.fixture
def quick(monkeypatch):
    """Fewer texts and laws: every interval is that of its number of texts, so all statements stay true."""
    for name, value in (
        ("TEXTS", 30),
        ("ALPHAS", (0.3, 0.9)),
        ("STAY", (0.5,)),
        ("STILL_ALPHAS", (0.6, 0.95)),
        ("SOME_K", (1, 4)),
    ):
        monkeypatch.setattr(known, name, value)


@pytest.fixture
def recording(tmp_path):
    path = tmp_path / "some.parquet"
    synthetic.iid(0.7, 9, 40, 6, confidence=True).save(path)
    return path


@pytest.mark.skipif(
    config.DISABLE_JIT, reason="the full number of texts takes minutes when interpreted"
)
def test_all_hold(capsys, recording, record_property):
    code, out, err = run(capsys, "check", recording, "--json", "--seed", 3)
    data = json.loads(out)
    assert code == 0
    assert err == ""
    assert set(data) == {"ok", "checks", "recordings", "papers", "false_alarm"}
    assert data["ok"]
    assert data["false_alarm"] == 1e-4
    assert len(data["checks"]) > 1000
    for each in data["checks"]:
        low, high = each["interval"]
        assert each["ok"]
        assert low - 1e-6 <= each["expected"] <= high + 1e-6
        assert set(each) == {"name", "expected", "got", "interval", "ok"}
    assert len({each["name"] for each in data["checks"]}) == len(data["checks"])
    assert data["papers"]["cells"] == 236
    assert len(data["papers"]["misfits"]) == 12
    (facts,) = data["recordings"]
    assert facts["rows"] == 360
    assert [row["k"] for row in facts["tokens_per_round"]] == [0, 1, 2, 3, 4, 6]
    record_property(
        "measured",
        f"simspec check: {len(data['checks'])} checks hold, false alarm {data['false_alarm']:g}",
    )


def failed(capsys, *arguments):
    """(exit code, names of the checks that failed) of `simspec check --json`."""
    code, out, _ = run(capsys, "check", *arguments, "--json")
    data = json.loads(out)
    assert data["ok"] == (code == 0)
    return code, [each["name"] for each in data["checks"] if not each["ok"]]


@pytest.mark.skipif(
    config.DISABLE_JIT, reason="the full number of texts takes minutes when interpreted"
)
def test_one_token_too_many_in_a_hundredth_of_the_rounds_is_caught(monkeypatch, capsys, recording):
    """By the rules, and by the law alone too: at low acceptance a hundredth is much."""

    def generous(trace, policy, seed=0, cost=None):
        left = np.repeat(trace.offset[1:], np.diff(trace.offset)) - np.arange(trace.rows)
        lucky = np.random.default_rng(7).random(trace.rows) < 0.01
        run = np.minimum(trace.run + lucky, np.minimum(trace.depth, left)).astype(np.uint8)
        return RIGHT(replace(trace, run=run), policy, seed, cost)

    monkeypatch.setattr(simulate, "replay", generous)
    code, names = failed(capsys, recording)
    assert code == 1
    assert any("break a rule" in name for name in names)
    by_law = [name for name in names if "break a rule" not in name]
    assert len(by_law) >= 5
    assert any("acceptance at depth 1" in name for name in by_law)


def test_a_dropped_bonus_is_caught(quick, monkeypatch, capsys, recording):
    """Fully accepted drafts commit no token of the target's own: rounds are too many for the exact law of finite texts."""

    def stingy(trace, policy, seed=0, cost=None):
        if not policy.name.startswith("fixed:") or policy.name == "fixed:0":
            return RIGHT(trace, policy, seed, cost)
        texts = []
        for s in range(trace.sequences):
            row, end, parts = int(trace.offset[s]), int(trace.offset[s + 1]), []
            while row < end:
                k = min(policy.longest(trace.K), end - row - 1)
                a = min(k, int(trace.run[row]))
                parts.append((row, k, k, a))
                row += max(a, 1) if a == k else a + 1
            texts.append(parts)
        return rounds.Rounds.join(texts)

    monkeypatch.setattr(simulate, "replay", stingy)
    code, names = failed(capsys, recording)
    assert code == 1
    assert any("break a rule" in name for name in names)
    assert any("speedup" in name and name.startswith("iid") for name in names)


def test_a_reused_coin_is_caught(quick, monkeypatch, capsys, recording):
    """A policy that is handed one coin for all questions of a round no longer stops geometrically."""

    def once(params, state, slot, features, u):
        return slot == 0 or (slot >= 2 or u < state[0] / (state[0] + state[1])), True

    def sticky(**options):
        return replace(RIGHT_TS(**options), draft_more=once)

    monkeypatch.setattr(policies, "beta_ts", sticky)
    code, names = failed(capsys, recording)
    assert code == 1
    assert all(name.startswith("beta_ts standing still") for name in names)
    assert any("drafted per round" in name for name in names)


RIGHT_TS = policies.beta_ts


def test_a_wrong_price_is_caught(quick, monkeypatch, capsys, recording):
    """Verification charged twice in one round of twenty: Eq. 13 on recordings and the exact speedups notice."""
    right = known.CostModel.seconds

    def dear(self, rounds):
        return right(self, rounds) + (np.arange(len(rounds)) % 20 == 0)

    monkeypatch.setattr(known.CostModel, "seconds", dear)
    code, names = failed(capsys, recording)
    assert code == 1
    assert any("Eq. 13" in name for name in names)
    assert any("speedup at c=" in name for name in names)


def test_a_wrong_formula_is_caught(quick, monkeypatch, capsys, recording):
    right = formulas.expected_committed
    monkeypatch.setattr(
        formulas, "expected_committed", lambda alpha, k: 1 + 0.7 * (right(alpha, k) - 1)
    )
    code, names = failed(capsys, recording)
    assert code == 1
    assert any(name.endswith("formula 1") for name in names)
    right_by_law = {name for name in names if name.endswith("by the exact law")}
    monkeypatch.setattr(formulas, "expected_committed", lambda alpha, k: right(alpha, k) + 1e-6)
    code, names = failed(capsys, recording)
    assert code == 1
    assert right_by_law <= set(names)


def test_a_wrong_best_length_is_caught(quick, monkeypatch, capsys, recording):
    monkeypatch.setattr(formulas, "optimal_k", lambda alpha, c, k_max: k_max)
    code, names = failed(capsys, recording)
    assert code == 1
    assert all(name.startswith("optimal_k") for name in names)


def test_misfits_of_papers_do_not_count(quick, monkeypatch, capsys, recording):
    monkeypatch.setattr(check.papers, "misfits", lambda: check.papers.cells())
    assert failed(capsys, recording) == (0, [])


@settings(deadline=None, max_examples=60)
@given(traces(optional=False))
def test_every_valid_recording_obeys_the_rules_and_eq_13(trace):
    """Cut drafts, end tokens, budgets beyond the text: bookkeeping and Eq. 13 hold exactly, whatever was recorded."""
    checks, facts = check._recording("r", trace, 0)
    assert checks
    assert all(each.ok for each in checks)
    alpha, alphas = check.depth_acceptance(trace)
    tried, taken = np.zeros(trace.K), np.zeros(trace.K)
    for s in range(trace.sequences):
        for row in range(trace.offset[s], trace.offset[s + 1]):
            for depth in range(min(trace.depth[row], trace.offset[s + 1] - row)):
                if trace.run[row] >= depth:
                    tried[depth] += 1
                    taken[depth] += trace.run[row] > depth
    for depth in range(trace.K):
        assert (
            alphas[depth] == pytest.approx(taken[depth] / tried[depth])
            if tried[depth]
            else np.isnan(alphas[depth])
        )
    assert alpha == pytest.approx(taken.sum() / max(tried.sum(), 1))
    assert facts["rows"] == trace.rows


@settings(deadline=None, max_examples=60)
@given(traces(optional=False))
def test_any_tampered_round_breaks_a_rule(trace: Trace):
    rounds = RIGHT(trace, policies.fixed(1))
    assert known.faults(trace, rounds, 1) == 0
    for name in ("accepted", "row"):
        part = getattr(rounds, name).copy()
        part[len(part) // 2] += 1
        assert (
            known.faults(trace, replace(rounds, **{name: np.minimum(part, trace.rows - 1)}), 1) > 0
            or part.max() >= trace.rows
        )


def test_risks_add_up_to_the_rate(monkeypatch):
    """Every planned interval gets its share and no more, the exact checks none."""
    asked = []
    monkeypatch.setattr(
        known, "interval", lambda law, reward, texts, risk: asked.append(risk) or (1.0, 1.0, 1.0)
    )
    ledger, tables = known.Ledger(), known.Tables(2)
    law = known._law(np.full((1, 2, 1), 0.5), np.ones(2))
    for i in range(7):
        ledger.ratio(f"r{i}", law, tables.a, tables.k, 0.5, 0.5, 10)
        ledger.speedup(f"s{i}", law, tables.one, 1.0)
        ledger.same(f"e{i}", 1.0, 1.0)
    assert len(ledger.judge(1e-3)) == 21
    assert sum(asked) == pytest.approx(1e-3)
    assert len(asked) == 14


def test_few_texts_hold_too(quick, capsys, recording):
    assert failed(capsys, recording, "--seed", 5) == (0, [])


def test_plain_output_is_short_and_names_failures(quick, monkeypatch, capsys, recording):
    code, out, _ = run(capsys, "check", recording)
    assert code == 0
    assert "all hold" in out
    assert len(out.splitlines()) < 60
    monkeypatch.setattr(formulas, "optimal_k", lambda alpha, c, k_max: k_max)
    code, out, _ = run(capsys, "check", recording)
    assert code == 1
    assert "NOT ALL HOLD" in out
    assert "FAILED optimal_k" in out


@pytest.mark.parametrize("arguments", [["no-such-file.parquet"], ["--seed", "-1"]])
def test_bad_input_is_one_line_and_exit_code_two(quick, capsys, recording, arguments):
    code, out, err = run(
        capsys, "check", *([] if arguments[0].endswith("parquet") else [recording]), *arguments
    )
    assert code == 2
    assert out == ""
    assert err.startswith("simspec: ")
    assert err.count("\n") == 1


def test_a_wrong_summary_is_caught(quick, monkeypatch, capsys, recording):
    """The package's own summary feeds the checks: a v_d that is a third too small shows."""
    right = metrics.summary
    monkeypatch.setattr(
        metrics, "summary", lambda *given: replace(found := right(*given), v_d=0.7 * found.v_d)
    )
    code, names = failed(capsys, recording)
    assert code == 1
    assert any(name.startswith("iid") and name.endswith("v_d") for name in names)
