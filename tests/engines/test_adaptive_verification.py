"""Our adaptive verification and vLLM's released files, executed on the same random batches.

Budgets, admitted tokens and stale confidences over more than 10,000 steps, coefficients over 1,000.
"""

import subprocess
from pathlib import Path

import numpy as np
from own_vllm import needs_vllm

from real.engines import RELEASED, find_environment
from simspec.cost.batch import StepSeconds
from simspec.policies import parse_batch
from simspec.policy.batch import BatchStart, BatchStep

pytestmark = needs_vllm()


def released(tmp_path, seed, steps, fit):
    script, out = Path(__file__).with_name("released_adaptive.py"), tmp_path / "released.npz"
    python = find_environment(RELEASED["vllm"]).python
    words = [python, script, out, str(seed), str(steps), str(fit)]
    subprocess.run(list(map(str, words)), check=True, cwd=tmp_path, capture_output=True)
    return np.load(out)


def differences(told, text="adaptive_verification", fit=True):
    """(steps of other budgets, of other admitted tokens; largest errors of p, slope and bias)."""
    batch, K = told["scheduled"].shape[1:][0], told["feature"].shape[2]
    draft = np.tile(told["draft"], (K + 1, 1))
    table = StepSeconds(draft, told["verify"], 0.0)
    rule = parse_batch(text).rule(BatchStart(batch, K, table))
    if not fit:  # confidences were drawn: ours are taken from there
        taken = {}
        rule.estimator.predict = lambda feature: taken["p"]
        rule.estimator.step = lambda *outcomes: None
    budgets = admitted = 0
    errors = np.zeros(3)
    for i in range(len(told["budget"])):
        slots = np.flatnonzero(told["active"][i])
        scheduled, accepted = told["scheduled"][i][slots], told["accepted"][i][slots]
        feature, predicted = told["feature"][i][slots], told["predicted"][i][slots]
        confidence = 1 / (1 + np.exp(-feature.astype(np.float64)))
        step = BatchStep(slots, told["new"][i][slots], scheduled, confidence)
        if not fit:
            taken["p"] = predicted.astype(np.float64)
        found = rule.submit(step)
        budgets += int(found.sum() != told["budget"][i])
        admitted += int(not np.array_equal(found, told["admitted"][i][slots]))
        if fit:
            errors[0] = max(errors[0], np.abs(rule.predicted - predicted).max())
        rule.observe(step, told["admitted"][i][slots], accepted, 0.0)
        if fit:
            errors[1] = max(errors[1], abs(rule.estimator.slope - told["slope"][i]))
            errors[2] = max(errors[2], np.abs(rule.estimator.bias - told["bias"][i]).max())
    return len(told["budget"]), budgets, admitted, errors


def test_budgets_and_admitted_tokens_of_ten_thousand_steps_are_equal(tmp_path):
    told = released(tmp_path, 1, 10_400, 0)
    steps, budgets, admitted, _ = differences(told, fit=False)
    assert steps >= 10_000
    assert (budgets, admitted) == (0, 0)
    trimmed = (told["budget"] < told["scheduled"].sum(axis=1)) & (told["budget"] > 0)
    assert trimmed.mean() > 0.3  # the batches put the rule to the test
    for lag in (0, 2):  # control
        assert differences(told, f"adaptive_verification:lag={lag}", fit=False)[1] > 100


def test_coefficients_of_a_thousand_steps_are_equal(tmp_path):
    told = released(tmp_path, 2, 1050, 1)
    steps, budgets, admitted, errors = differences(told)
    assert steps >= 1000
    assert np.unique(told["slope"]).size >= 9  # refits
    assert (errors < 1e-6).all()
    assert (budgets, admitted) == (0, 0)
    for other in ("ridge=0.1", "interval=99", "damping=51.0"):  # controls
        assert differences(told, f"adaptive_verification:{other}")[3].max() > 1e-4
