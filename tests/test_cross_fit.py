"""Lengths and trees are fitted on one half of the prompts and judged on the other."""

from dataclasses import replace

import numpy as np
import pytest

from simspec import CostModel, synthetic
from simspec.policies import fixed
from simspec.policy_kind import DeferredPolicy
from simspec.replay.evaluation import halves
from simspec.reports.trees import fit_length, fit_tree

COST = CostModel.from_ratio(0.3, 4, 8)


def alternating():
    """Prompts 0, 2, ... accept every draft, prompts 1, 3, ... none."""
    trace = synthetic.iid(1.0, 8, 20, 4)
    sequence = np.repeat(np.arange(8), 20)
    meta = replace(trace.meta, ids=tuple(map(str, range(8))))
    return replace(trace, run=np.where(sequence % 2, 0, trace.run).astype(np.uint8), meta=meta)


def test_a_length_is_taken_from_the_other_half():
    trace = alternating()
    figures, chosen, _ = fit_length(trace, COST, fixed, None)
    shortest, longest = (fit_length(trace, COST, fixed, k)[0] for k in (1, 4))
    assert chosen == "k=4 / k=1"
    assert figures[1::2].tolist() == longest[1::2].tolist()
    assert figures[::2].tolist() == shortest[::2].tolist()
    assert shortest.tolist() != longest.tolist()


def test_a_policy_is_fitted_on_the_half_that_does_not_judge_it():
    """It drafts four tokens where it is fitted on prompt 0, else one."""
    trace = alternating()

    def policy_of(sequences):
        k = 4 if 0 in sequences else 1
        return DeferredPolicy(f"fitted:{k}", lambda trace, cost: fixed(k))

    figures, *_ = fit_tree(trace, COST, policy_of)
    shortest, longest = (fit_length(trace, COST, fixed, k)[0] for k in (1, 4))
    assert figures[1::2].tolist() == longest[1::2].tolist()
    assert figures[::2].tolist() == shortest[::2].tolist()


@pytest.mark.parametrize("sequences", [2, 5])
def test_halves_are_disjoint_and_cover_all(sequences):
    for fit, rest in halves(synthetic.iid(0.5, sequences, 4, 2)):
        assert sorted([*fit, *rest]) == list(range(sequences))
