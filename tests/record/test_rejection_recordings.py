"""The bundled recordings of the rejection rule: small, of one text, and what they claim to be."""

import json

import numpy as np
import pytest
from documents import ROOT

from simspec import replay
from simspec.policies.fixed import fixed
from simspec.trace.acceptance import expected_accepted_length
from simspec.trace.trace import load_trace

FOLDER = ROOT / "traces" / "tiny-rejection"
FILES = sorted(FOLDER.glob("*.parquet"))
NAMES = [path.stem for path in FILES]
MOST_BYTES = 300_000


def shifted(trace, ratio):
    """Share of rows whose later slots are the next row's: what a reader of the prefix gives."""
    longest = int(np.median(trace.depth))  # Medusa has fewer heads than K
    left = np.repeat(trace.offset[1:], np.diff(trace.offset)) - np.arange(trace.rows)
    whole = (trace.depth >= longest) & (left > trace.K)
    whole = whole[:-1] & whole[1:]
    here, there = ratio[:-1, 1:longest], ratio[1:, : longest - 1]
    return float(np.isclose(here, there, atol=1e-4).all(axis=1)[whole].mean())


def test_there_are_several_and_they_are_small():
    assert len(FILES) >= 4
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= MOST_BYTES


def test_all_hold_the_same_text():
    traces = [load_trace(path) for path in FILES]
    for trace in traces[1:]:
        assert np.array_equal(trace.token, traces[0].token)
        assert np.array_equal(trace.prompt, traces[0].prompt)
    assert len(traces[0].prompt) > 0


@pytest.mark.parametrize("name", NAMES)
def test_each_is_of_the_rejection_rule_and_its_card_says_so(name):
    trace = load_trace(FOLDER / f"{name}.parquet")
    card = json.loads((FOLDER / f"{name}.json").read_text())
    assert (trace.meta.rule, trace.meta.temperature) == ("rejection", 1.0)
    assert trace.meta.target == "tiny/3f3badec8534"
    expected = expected_accepted_length(trace)
    assert card["mean_accepted_length"] == pytest.approx(float(expected.mean()), abs=1e-4)
    assert card["repeated_8grams"] < 0.2


@pytest.mark.parametrize("name", [name for name in NAMES if name != "prompt_lookup"])
def test_acceptance_of_a_reader_of_the_prefix_moves_with_it(name):
    trace = load_trace(FOLDER / f"{name}.parquet")
    share = shifted(trace, trace.ratio)
    if trace.meta.prefix_only:
        assert share == 1
        assert shifted(trace, trace.ratio[::-1]) < 0.5  # the control
    else:
        assert share < 0.9


@pytest.mark.parametrize("name", NAMES)
def test_replays_accept_what_the_ratios_expect(name):
    """Mean accepted length of the first round of each prompt; 400 draws, six standard errors."""
    trace = load_trace(FOLDER / f"{name}.parquet")
    first = trace.offset[:-1]
    K = np.minimum(trace.depth[first], 3)
    chance = np.where(np.arange(3) < K[:, None], trace.ratio[first, :3], 0).cumprod(axis=1)
    drawn = np.array([
        [rounds.accepted[rounds.offset[:-1]].sum() for rounds in [replay(trace, fixed(3), seed)]]
        for seed in range(400)
    ])  # fmt: skip
    error = drawn.std() / np.sqrt(400)
    assert abs(drawn.mean() - chance.sum()) < 6 * error + 1e-9
