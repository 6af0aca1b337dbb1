"""The audit of acceptance: a likelihood ratio of mean 1 under every policy, and its power."""

from dataclasses import replace

import numpy as np
import pytest
from emitter import SAMPLED, decoded
from enumerated_world import CASES, case_world, real_rounds
from test_rejection_ratio import ratios_of
from test_run_sampled import Doubtful
from toy_lm import toy_pair

from real.audit.auditor import audit
from real.audit.bias import ACCEPTANCE_TILTS, bias_of_rounds, chain_depth
from real.audit.report import report_rows


@pytest.mark.parametrize(
    "text", ["fixed:2", "beta_ts", "confidence:0.6", "confidence:0.6,inclusive=false"]
)
def test_the_likelihood_ratio_has_mean_one(text):
    """Every draw enumerated, for policies that read features of drafted tokens too."""
    for case in CASES:
        (_, rule, _), world, means, tested = case, case_world(case), 0.0, 0
        for (tokens, rounds), odds in real_rounds(text, case)[0].items():
            bias = bias_of_rounds(ratios_of(world, rule, tokens, 2), rounds, len(tokens))
            means = means + odds * np.exp(bias.tilt.sum(0))
            tested = max(tested, len(bias.score))
        np.testing.assert_allclose(means, np.ones(len(ACCEPTANCE_TILTS)), atol=1e-12)
        assert tested >= 2


@pytest.mark.parametrize("drafter, policy", [("model", "fixed:3"), ("prompt_lookup", "fixed:3")])
def test_clean_runs_are_tested(drafter, policy):
    target, toy_drafter = toy_pair(drafter)
    result = audit(target, decoded(SAMPLED, 20, policy=policy, drafter=drafter), None, toy_drafter)
    assert result.clean
    assert result.sampling.p_acceptance > 1e-4
    assert "z = " in dict(report_rows(result))["acceptance"]


def test_control_doubtful_acceptance_is_detected(monkeypatch):
    """A third of acceptances lost: more than is stated to be detected with probability 0.99."""
    monkeypatch.setattr("real.decode.loop.AddressedDraws", Doubtful)
    target, drafter = toy_pair("model")
    result = audit(target, decoded(SAMPLED, 30), None, drafter)
    assert 0 < result.sampling.detectable_loss < 1 / 3
    assert result.sampling.acceptance_z < -4
    assert "acceptance" in result.sampling.alarms
    assert "drafted tokens are not accepted" in " ".join(result.alarms)


def test_unknown_rounds_and_trees_are_not_tested():
    target, drafter = toy_pair("model")
    run = decoded(SAMPLED, 4)
    unknown = replace(run, sequences=tuple(replace(s, rounds=()) for s in run.sequences))
    assert chain_depth(unknown.sequences) == 0
    assert chain_depth(run.sequences) == 3
    result = audit(target, unknown, None, drafter)
    assert result.sampling.p_acceptance is None
    assert "not tested" in dict(report_rows(result))["acceptance"]
    first = run.sequences[0]
    tree = replace(first, rounds=((0, 1, 3, first.rounds[0][3]), *first.rounds[1:]))
    assert chain_depth((tree,)) == 0
