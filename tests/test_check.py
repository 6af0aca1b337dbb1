"""`simspec check` passes on the simulator and fails on planted faults of each kind."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from numba.core import config
from shell import run
from strategies import traces

from simspec import formulas, policies, synthetic
from simspec.cost.model import CostModel
from simspec.replay import metrics
from simspec.replay import replay as simulate
from simspec.trace import rounds
from simspec.trace.acceptance import depth_acceptance
from simspec.trace.trace import Trace
from simspec.validation import check as check_module
from simspec.validation import checks as checks_module
from simspec.validation import settings as sizes
from simspec.validation.check import recording_checks
from simspec.validation.checks import CheckPlan, PlannedCheck, RoundDistribution, broken_rounds
from simspec.validation.synthetic_checks import RewardTables

RIGHT = simulate.replay


@pytest.fixture
def quick(monkeypatch):
    """Fewer sequences and settings; intervals are those of the number of sequences."""
    for name, value in (
        ("SEQUENCES", 30),
        ("ALPHAS", (0.3, 0.9)),
        ("CONTINUE", (0.5,)),
        ("CONSTANT_ALPHAS", (0.6, 0.95)),
        ("SOME_LENGTHS", (1, 4)),
    ):
        monkeypatch.setattr(sizes, name, value)


@pytest.fixture
def recording(tmp_path):
    path = tmp_path / "some.parquet"
    synthetic.iid(0.7, 9, 40, 6, confidence=True).save(path)
    return path


@pytest.mark.skipif(
    config.DISABLE_JIT, reason="the full number of texts takes minutes when interpreted"
)
def test_all_checks_pass(capsys, recording, record_property):
    code, out, err = run(capsys, "check", recording, "--json", "--seed", 3)
    data = json.loads(out)
    assert code == 0
    assert err == ""
    assert set(data) == {"ok", "checks", "recordings", "papers", "false_alarm"}
    assert data["ok"]
    assert data["false_alarm"] == 1e-4
    assert len(data["checks"]) > 1000
    for entry in data["checks"]:
        low, high = entry["interval"]
        assert entry["ok"]
        assert low - 1e-6 <= entry["expected"] <= high + 1e-6
        assert set(entry) == {"name", "expected", "got", "interval", "ok"}
    assert len({entry["name"] for entry in data["checks"]}) == len(data["checks"])
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
    return code, [entry["name"] for entry in data["checks"] if not entry["ok"]]


@pytest.mark.skipif(
    config.DISABLE_JIT, reason="the full number of texts takes minutes when interpreted"
)
def test_extra_token_in_one_percent_of_rounds_is_caught(monkeypatch, capsys, recording):
    """By the rules, and by the distribution alone: at low acceptance one percent is much."""

    def generous(trace, policy, seed=0, cost=None):
        left = np.repeat(trace.offset[1:], np.diff(trace.offset)) - np.arange(trace.rows)
        lucky = np.random.default_rng(7).random(trace.rows) < 0.01
        run = np.minimum(trace.run + lucky, np.minimum(trace.depth, left)).astype(np.uint8)
        return RIGHT(replace(trace, run=run), policy, seed, cost)

    monkeypatch.setattr(simulate, "replay", generous)
    code, names = failed(capsys, recording)
    assert code == 1
    assert any("break a rule" in name for name in names)
    by_distribution = [name for name in names if "break a rule" not in name]
    assert len(by_distribution) >= 5
    assert any("acceptance at depth 1" in name for name in by_distribution)


def test_missing_bonus_token_is_caught(quick, monkeypatch, capsys, recording):
    """Fully accepted drafts commit no bonus token: there are too many rounds."""

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


def test_reused_random_draw_is_caught(quick, monkeypatch, capsys, recording):
    """One uniform for all decisions of a round: drafts no longer stop geometrically."""

    def once(params, state, slot, features, u):
        return slot == 0 or (slot >= 2 or u < state[0] / (state[0] + state[1])), True

    def sticky(**options):
        return replace(RIGHT_TS(**options), draft_more=once)

    monkeypatch.setattr(policies, "beta_ts", sticky)
    code, names = failed(capsys, recording)
    assert code == 1
    assert all(name.startswith("beta_ts with a constant posterior") for name in names)
    assert any("drafted per round" in name for name in names)


RIGHT_TS = policies.beta_ts


def test_wrong_cost_is_caught(quick, monkeypatch, capsys, recording):
    """Verification charged twice in every twentieth round: Eq. 13 and exact speedups fail."""
    right = CostModel.seconds

    def dear(self, rounds):
        return right(self, rounds) + (np.arange(len(rounds)) % 20 == 0)

    monkeypatch.setattr(CostModel, "seconds", dear)
    code, names = failed(capsys, recording)
    assert code == 1
    assert any("Eq. 13" in name for name in names)
    assert any("speedup at c=" in name for name in names)


def test_wrong_formula_is_caught(quick, monkeypatch, capsys, recording):
    right = formulas.expected_committed
    monkeypatch.setattr(
        formulas, "expected_committed", lambda alpha, k: 1 + 0.7 * (right(alpha, k) - 1)
    )
    code, names = failed(capsys, recording)
    assert code == 1
    assert any(name.endswith("formula 1") for name in names)
    exact_failures = {name for name in names if name.endswith("by the exact distribution")}
    monkeypatch.setattr(formulas, "expected_committed", lambda alpha, k: right(alpha, k) + 1e-6)
    code, names = failed(capsys, recording)
    assert code == 1
    assert exact_failures <= set(names)


def test_wrong_optimal_length_is_caught(quick, monkeypatch, capsys, recording):
    monkeypatch.setattr(formulas, "optimal_k", lambda alpha, c, k_max: k_max)
    code, names = failed(capsys, recording)
    assert code == 1
    assert all(name.startswith("optimal_k") for name in names)


def test_paper_misfits_are_no_failures(quick, monkeypatch, capsys, recording):
    cells = check_module.paper_cells
    monkeypatch.setattr(cells, "misfits", lambda: cells.cells())
    assert failed(capsys, recording) == (0, [])


@settings(deadline=None, max_examples=60)
@given(traces(optional=False))
def test_valid_recordings_pass_every_check(trace):
    """Cut drafts, end tokens and large budgets included."""
    checks, facts = recording_checks("r", trace, 0)
    assert checks
    assert all(entry.ok for entry in checks)
    alpha, alphas = depth_acceptance(trace)
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
def test_changed_round_breaks_a_rule(trace: Trace):
    rounds = RIGHT(trace, policies.fixed(1))
    assert broken_rounds(trace, rounds, 1) == 0
    for name in ("accepted", "row"):
        part = getattr(rounds, name).copy()
        part[len(part) // 2] += 1
        assert (
            broken_rounds(trace, replace(rounds, **{name: np.minimum(part, trace.rows - 1)}), 1) > 0
            or part.max() >= trace.rows
        )


def test_risks_add_up_to_the_false_alarm_rate(monkeypatch):
    """Every planned interval gets its share and no more, exact checks none."""
    risks = []
    monkeypatch.setattr(
        checks_module,
        "interval",
        lambda distribution, reward, sequences, risk: risks.append(risk) or (1.0, 1.0, 1.0),
    )
    plan, tables = CheckPlan(), RewardTables(2)
    d = RoundDistribution(np.full((1, 2, 1), 0.5), np.eye(1), np.ones(1), np.ones(2), 64)
    for i in range(7):
        reward = tables.a - 0.5 * tables.k
        plan.planned.append(PlannedCheck(f"r{i}", d, reward, "ratio", 0.5, 0.5, 10))
        plan.planned.append(PlannedCheck(f"s{i}", d, tables.one, "speedup", np.nan, 1.0, 640))
        plan.add_exact(f"e{i}", 1.0, 1.0)
    assert len(plan.evaluate(1e-3)) == 21
    assert sum(risks) == pytest.approx(1e-3)
    assert len(risks) == 14


def test_checks_pass_with_few_sequences(quick, capsys, recording):
    assert failed(capsys, recording, "--seed", 5) == (0, [])


def test_text_output_is_short_and_names_failures(quick, monkeypatch, capsys, recording):
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
def test_invalid_input_is_one_line_and_exit_code_two(quick, capsys, recording, arguments):
    code, out, err = run(
        capsys, "check", *([] if arguments[0].endswith("parquet") else [recording]), *arguments
    )
    assert code == 2
    assert out == ""
    assert err.startswith("simspec: ")
    assert err.count("\n") == 1


def test_counting_submitted_tokens_alone_is_caught(quick, monkeypatch, capsys, recording):
    """A v_d of submitted tokens disagrees only where a policy drops one."""
    right = metrics.summary
    monkeypatch.setattr(
        metrics,
        "summary",
        lambda *arguments: replace(result := right(*arguments), v_d=result.acceptance_rate),
    )
    code, names = failed(capsys, recording)
    assert code == 1
    assert any("computed tokens submitted" in name for name in names)
    assert all("submitted" in name or "inclusive=false" in name for name in names)


def test_wrong_summary_is_caught(quick, monkeypatch, capsys, recording):
    """The summary feeds the checks: a v_d that is 30% too small fails."""
    right = metrics.summary
    monkeypatch.setattr(
        metrics,
        "summary",
        lambda *arguments: replace(result := right(*arguments), v_d=0.7 * result.v_d),
    )
    code, names = failed(capsys, recording)
    assert code == 1
    assert any(name.startswith("iid") and name.endswith("v_d") for name in names)
