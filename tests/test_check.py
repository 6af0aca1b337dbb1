"""`simspec check` holds on the simulator and fails on planted faults of each kind."""

import json
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba.core import config
from shell import run
from strategies import traces

from simspec import check as module
from simspec import formulas, policies, synthetic
from simspec.check import Check, Comparison, interval, recording_checks, round_law
from simspec.cost.model import CostModel
from simspec.replay import metrics
from simspec.replay import replay as simulate
from simspec.trace.trace import Rounds, Trace, broken_rounds

RIGHT, RIGHT_TS = simulate.replay, policies.beta_ts


@pytest.fixture
def quick(monkeypatch):
    """Fewer sequences and settings; intervals are those of the number of rounds."""
    for name, value in (("SEQUENCES", 30), ("ALPHAS", (0.3, 0.6, 0.9)), ("CONTINUE", (0.5,))):
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(module, "controls", lambda seed: {"none planted": True})


@pytest.fixture
def recording(tmp_path):
    path = tmp_path / "some.parquet"
    synthetic.iid(0.7, 9, 40, 6, confidence=True).save(path)
    return path


def failed(capsys, *arguments):
    """(exit code, names of the checks that failed) of `simspec check --json`."""
    code, out, _ = run(capsys, "check", *arguments, "--json")
    data = json.loads(out)
    assert data["ok"] == (code == 0)
    return code, [entry["name"] for entry in data["checks"] if not entry["ok"]]


slow = pytest.mark.skipif(
    config.DISABLE_JIT, reason="the full number of texts takes minutes when interpreted"
)


@slow
def test_all_checks_hold_and_planted_faults_are_found(capsys, recording, record_property):
    code, out, err = run(capsys, "check", recording, "--json")
    data = json.loads(out)
    assert (code, err) == (0, "")
    assert data["ok"]
    assert data["false_alarm"] == 1e-4
    assert len(data["checks"]) > 1000
    assert all(
        entry["low"] - 1e-6 <= entry["got"] <= entry["high"] + 1e-6 for entry in data["checks"]
    )
    assert len({entry["name"] for entry in data["checks"]}) == len(data["checks"])
    assert all(data["controls"].values())
    assert len(data["controls"]) == 2
    record_property("measured", f"simspec check: {len(data['checks'])} checks hold")


@slow
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
    assert len([name for name in names if "break a rule" not in name]) >= 5


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
        return Rounds.join(texts)

    monkeypatch.setattr(simulate, "replay", stingy)
    code, names = failed(capsys, recording)
    assert code == 1
    assert any("break a rule" in name for name in names)


def test_reused_random_draw_is_caught(quick, monkeypatch, capsys, recording):
    """One uniform for all decisions of a round: drafts no longer stop geometrically."""

    def once(params, state, slot, features, u):
        return slot == 0 or (slot >= 2 or u < state[0] / (state[0] + state[1])), True

    monkeypatch.setattr(
        policies, "beta_ts", lambda **options: replace(RIGHT_TS(**options), draft_more=once)
    )
    code, names = failed(capsys, recording)
    assert code == 1
    assert all(name.startswith("beta_ts, constant posterior") for name in names)
    assert any("drafted" in name for name in names)


def test_wrong_cost_or_summary_is_caught_by_eq_13(quick, monkeypatch, capsys, recording):
    """Verification charged twice in every twentieth round; a v_d that is 30% too small."""
    right, summary = CostModel.seconds, metrics.summary
    with monkeypatch.context() as planted:
        planted.setattr(
            CostModel,
            "seconds",
            lambda self, rounds: right(self, rounds) + (np.arange(len(rounds)) % 20 == 0),
        )
        code, names = failed(capsys, recording)
    assert code == 1
    assert all("Eq. 13" in name for name in names)
    for change in (lambda m: 0.7 * m.v_d, lambda m: m.acceptance_rate):
        monkeypatch.setattr(
            metrics,
            "summary",
            lambda *given, change=change: replace(m := summary(*given), v_d=change(m)),
        )
        code, names = failed(capsys, recording)
        assert code == 1
        assert all("Eq. 13" in name for name in names)


@pytest.mark.parametrize("wrong", [lambda tokens: 1 + 0.7 * (tokens - 1), lambda t: t + 1e-6])
def test_wrong_formula_is_caught(quick, monkeypatch, capsys, recording, wrong):
    right = formulas.expected_committed
    monkeypatch.setattr(formulas, "expected_committed", lambda alpha, k: wrong(right(alpha, k)))
    code, names = failed(capsys, recording)
    assert code == 1
    assert any(name.endswith("formula 1, by the law of a round") for name in names)


def test_a_planted_fault_that_is_not_found_fails(quick, monkeypatch, capsys, recording):
    monkeypatch.setattr(module, "controls", lambda seed: {"a fault": False})
    code, out, _ = run(capsys, "check", recording)
    assert code == 1
    assert "control, a fault: NOT FOUND" in out
    assert len(out.splitlines()) < 40


@settings(deadline=None, max_examples=60)
@given(traces(optional=False))
def test_valid_recordings_pass_every_check(trace):
    """Cut drafts, end tokens and large budgets included."""
    checks = recording_checks("r", trace, 0)
    assert checks
    assert all(entry.ok for entry in checks)


@settings(deadline=None, max_examples=60)
@given(traces(optional=False))
def test_changed_round_breaks_a_rule(trace: Trace):
    rounds = RIGHT(trace, policies.fixed(1))
    assert broken_rounds(trace, rounds, 1) == 0
    for name in ("accepted", "row"):
        part = getattr(rounds, name).copy()
        part[len(part) // 2] += 1
        changed = replace(rounds, **{name: np.minimum(part, trace.rows - 1)})
        assert broken_rounds(trace, changed, 1) > 0 or part.max() >= trace.rows


rates = st.sampled_from([0.0, 0.2, 0.5, 0.9, 1.0])


@st.composite
def laws(draw):
    """(acceptance, probability to go on) of each depth."""
    K = draw(st.integers(1, 3))
    return [draw(st.lists(rates, min_size=K, max_size=K)) for _ in range(2)]


@given(laws())
def test_law_of_a_round_equals_enumeration(law):
    alphas, go = law
    K = len(go)
    expected = np.zeros((K + 1, K + 1))
    for k in range(K + 1):
        for a in range(k + 1):
            drafted = np.prod(go[:k]) * (1 - go[k] if k < K else 1)
            expected[k, a] = drafted * np.prod(alphas[:a]) * (1 - alphas[a] if a < k else 1)
    np.testing.assert_allclose(round_law(alphas, go), expected, atol=1e-12)


@settings(deadline=None, max_examples=60)
@given(laws(), st.integers(1, 6), st.sampled_from([0.3, 0.05, 1e-3]), st.booleans())
def test_error_rate_is_at_most_the_risk(law, rounds, risk, stops):
    """The distribution of a sum by convolution: at or beyond x lies a probability of risk at most.

    `stops`: the number of rounds depends on the rounds before, one more after each gain.
    """
    law = round_law(*law)
    k, a = np.indices(law.shape).astype(float)
    reward = (a + 1) - (law * (a + 1)).sum()
    bound = interval(law, reward, rounds, risk)
    ends, states = [], {(0.0, 0): 1.0}
    for n in range(1, rounds + 1):
        more = defaultdict(float)
        for (total, _), p in states.items():
            for value, q in zip(reward.ravel(), law.ravel()):
                more[round(total + value, 9), n] += p * q
        states = {}
        for (total, at), p in more.items():
            (
                ends.append((total, at, p))
                if stops and total < 0
                else states.update({(total, at): p})
            )
    ends += [(total, at, p) for (total, at), p in states.items()]
    assert sum(p for *_, p in ends) == pytest.approx(1)
    if np.abs(reward[law > 0]).max() > 1e-9:
        assert sum(p for total, at, p in ends if total >= bound(at) + 1e-9) <= risk


def test_each_side_has_half_of_the_risk():
    """A sum of many rounds is nearly normal: the bound is sqrt(2 log(2 / risk)) deviations."""
    law = round_law([0.7] * 4, [1.0] * 4)
    k, a = np.indices(law.shape).astype(float)
    mean = (law * (a + 1)).sum()
    seen = round(module.SEQUENCES * module.ROWS / mean)
    counts = np.round(law * seen).astype(int)
    one = np.ones_like(a)
    deviation = np.sqrt((law * (a + 1 - mean) ** 2).sum() / counts.sum())
    for risk in (0.1, 1e-3):
        _, check = Comparison("c", law, counts, a + 1, one, mean).checks(risk)
        reach = np.sqrt(2 * np.log(2 / risk)) * deviation
        assert check.high - mean == pytest.approx(reach, rel=0.03)
        assert mean - check.low == pytest.approx(reach, rel=0.03)
        assert check.high - mean != pytest.approx(mean - check.low, rel=1e-9)


@pytest.mark.parametrize("got, ok", [(1.0, True), (2.0, True), (2 + 1e-8, False), (0.9999, False)])
def test_a_check_excuses_rounding_alone(got, ok):
    assert Check("c", 1.5, got, 1.0, 2.0).ok == ok


def test_checks_share_the_risk(quick, monkeypatch):
    risks = []
    monkeypatch.setattr(Comparison, "checks", lambda self, risk: risks.append(risk) or [])
    module.synthetic_checks()
    assert len(risks) > 100
    assert sum(risks) == pytest.approx(module.FALSE_ALARM)
