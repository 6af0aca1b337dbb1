"""Acceptance ratios of all positions at once equal those of one position after another."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_lm import END, PREFIX, TOYS, toy_pair, toy_prompts

from real.record import Settings
from real.record.rows import _stepwise, record_rejection
from real.record.sequences import target_sequence
from real.sampling import Rule

RULE = Rule("rejection", 0.8, 5)


@pytest.mark.parametrize("name", sorted(set(TOYS) - {"prompt_lookup", *PREFIX}))
@settings(deadline=None, max_examples=8)
@given(st.integers(0, 500), st.integers(1, 7), st.integers(1, 14))
def test_ratios_of_all_positions_at_once_equal_the_definition(name, seed, K, budget):
    target, drafter = toy_pair(name)
    record_settings, prompt = Settings(K, budget, RULE, END, ()), toy_prompts(1, seed)[0]
    written = target_sequence(target, record_settings, prompt, seed)
    quick = record_rejection(target, drafter, record_settings, prompt, written)
    ratio, depth = _stepwise(target, drafter, record_settings, prompt, *written)
    assert np.allclose(ratio, quick.ratio, rtol=1e-6, atol=1e-9)
    assert depth.tolist() == quick.depth.tolist()
