"""Recordings whose sequences were written in two ways are compared up to the first difference."""

from dataclasses import replace

import numpy as np
import pytest
from toy_lm import toy_recording

from real.audit.rounding import near_ties
from simspec.trace.quantization import encode_margin


@pytest.fixture(scope="module")
def trace():
    return toy_recording("model", "greedy")[0]


def changed(trace, row, margin):
    """The trace with another token at `row`, whose recorded margin is `margin`."""
    token, codes = trace.token.copy(), trace.margin.copy()
    token[row] = token[row] + 1 if token[row] + 1 not in trace.meta.end_tokens else token[row] - 1
    codes[row] = encode_margin(np.array([margin]))[0]
    silent = np.zeros_like(trace.run)
    return replace(trace, token=token, margin=codes, run=silent, depth=silent, rank=None)


def test_equal_recordings_have_no_difference(trace):
    compared = near_ties(trace, trace)
    assert compared.sequences == trace.sequences
    assert compared.tokens == trace.rows
    assert not compared.near_ties
    assert not compared.failures


@pytest.mark.parametrize("margin, excused", [(1e-6, True), (0.3, False)])
def test_only_a_small_margin_excuses_a_difference(trace, margin, excused):
    row = int(trace.offset[1]) + 2
    for pair in ((trace, changed(trace, row, margin)), (changed(trace, row, margin), trace)):
        compared = near_ties(*pair)
        found, none = compared.near_ties, compared.failures
        if not excused:
            found, none = none, found
        assert not none
        assert [(d.sequence, d.position) for d in found] == [(1, 2)]
        assert compared.tokens == trace.rows - int(trace.offset[2]) + row + 1


def test_other_prompts_are_refused(trace):
    with pytest.raises(ValueError, match="other prompts"):
        near_ties(trace, replace(trace, sequence=trace.sequence + 1))


def test_recordings_without_margins_are_refused(trace):
    with pytest.raises(ValueError, match="no margins"):
        near_ties(trace, replace(trace, margin=None))
