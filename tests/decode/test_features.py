"""Features and losses are what their definitions say, and a feature's code is the nearest entry
of its grid."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from real.decode.features import (
    FEATURES,
    GRIDS,
    FeatureReader,
    drafter_features,
    encode_features,
    feature_values,
    required_predictors,
)
from real.decode.verify import PhaseTimer
from real.draft import Silent, Step
from real.draft.losses import next_token_loss
from simspec.policy.policy import TOKEN_FEATURES
from simspec.trace import quantization as grid

HELD = settings(deadline=None, max_examples=100, derandomize=True)
NAMES = ("confidence", "entropy")
LOGITS = st.lists(st.floats(-12, 12), min_size=2, max_size=20)


def probabilities(logits, temperature):
    top = max(logits)
    weight = [math.exp((x - top) / temperature) for x in logits]
    return [w / math.fsum(weight) for w in weight]


def slow_features(logits, temperature):
    p = probabilities(logits, temperature)
    return {"confidence": max(p), "entropy": -math.fsum(x * math.log(x) for x in p if x > 0)}


@HELD
@given(LOGITS, st.floats(0.3, 3))
def test_features_equal_their_definition(logits, temperature):
    logprob = torch.log_softmax(torch.tensor([logits], dtype=torch.float64) / temperature, -1)
    for name, wanted in slow_features(logits, temperature).items():
        assert abs(FEATURES[name](logprob).item() - wanted) < 1e-12


def read_features(names, *given, **named):
    return encode_features(names, feature_values(names, *given, **named).numpy())


@HELD
@given(LOGITS, st.floats(0.3, 3))
def test_codes_are_within_half_a_bin(logits, temperature):
    code, edge = read_features(NAMES, torch.tensor([logits], dtype=torch.float64), temperature)
    assert code.shape == edge.shape == (1, 2)
    assert code.dtype == np.uint8
    for i, (name, wanted) in enumerate(slow_features(logits, temperature).items()):
        table = grid.TABLES[GRIDS[name]]
        bin_index = int(code[0, i])
        assert abs(table[bin_index] - wanted) <= np.abs(table - wanted).min() + 1e-12
        below = (table[bin_index - 1] + table[bin_index]) / 2 if bin_index else -math.inf
        above = (table[bin_index] + table[bin_index + 1]) / 2 if bin_index < 255 else math.inf
        assert below - 1e-12 <= wanted <= above + 1e-12
        assert abs(edge[0, i] - min(wanted - below, above - wanted)) < 1e-9


def test_codes_separate_distributions():
    rows = torch.tensor([[0.0, 0.0, 0.0, 0.0], [2.0, 0.0, 0.0, 0.0], [9.0, 0.0, 0.0, 0.0]])
    code, _ = read_features(NAMES, rows, 1.0)
    assert (np.diff(code[:, 0].astype(int)) > 0).all()
    assert (np.diff(code[:, 1].astype(int)) < 0).all()
    warm, _ = read_features(NAMES, rows, 2.0)
    assert warm[1, 0] < code[1, 0]
    assert warm[1, 1] > code[1, 1]


def test_names_choose_the_columns():
    rows = torch.randn(5, 9, generator=torch.Generator().manual_seed(0))
    both, _ = read_features(NAMES, rows, 1.0)
    assert np.array_equal(read_features(NAMES[::-1], rows, 1.0)[0], both[:, ::-1])
    assert np.array_equal(read_features(("entropy",), rows, 1.0)[0], both[:, 1:])
    assert set(FEATURES) < set(GRIDS)
    assert set(GRIDS.values()) <= set(grid.TABLES)


def test_log_odds_are_read_beside_logits_or_alone():
    rows = torch.randn(5, 9, generator=torch.Generator().manual_seed(0))
    odds = torch.linspace(-3, 3, 5).double()
    both, far = read_features(("theta", "confidence"), rows, 1.0, {"theta": odds})
    assert np.array_equal(both[:, 1:], read_features(("confidence",), rows, 1.0)[0])
    alone, near = read_features(("theta",), None, 1.0, {"theta": odds})
    assert np.array_equal(alone, both[:, :1])
    assert np.array_equal(near, far[:, :1])
    theta = 1 / (1 + np.exp(-odds.numpy()))
    assert np.abs(grid.IDENTITY[alone[:, 0]] - theta).max() <= 0.5 / 255 + 1e-12


def test_features_ignore_which_token_is_which():
    """They may depend on the whole distribution, never on the token that was picked."""
    rows = torch.randn(1, 30, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    code, edge = read_features(NAMES, rows, 1.0)
    other, far = read_features(
        NAMES, rows[:, torch.randperm(30, generator=torch.Generator().manual_seed(2))], 1.0
    )
    assert np.array_equal(code, other)
    assert np.allclose(edge, far, atol=1e-12)


@HELD
@given(LOGITS, st.floats(0.3, 3), st.data())
def test_probability_is_of_the_picked_token(logits, temperature, data):
    token = data.draw(st.integers(0, len(logits) - 1))
    code, edge = read_features(
        ("probability", "confidence"),
        torch.tensor([logits], dtype=torch.float64),
        temperature,
        token=torch.tensor([token]),
    )
    p, table = probabilities(logits, temperature), grid.TABLES[GRIDS["probability"]]
    assert abs(table[code[0, 0]] - p[token]) <= np.abs(table - p[token]).min() + 1e-12
    assert edge[0, 0] >= 0
    assert code[0, 0] == code[0, 1] if p[token] == max(p) else code[0, 0] <= code[0, 1]


def test_probability_alone_depends_on_the_token_and_is_no_default():
    assert TOKEN_FEATURES == ("probability",)
    assert set(TOKEN_FEATURES) < set(GRIDS)
    assert not set(TOKEN_FEATURES) & set(FEATURES)
    assert not set(TOKEN_FEATURES) & set(drafter_features(Silent()))
    reader, row = FeatureReader(("probability",), 1.0, Silent()), torch.tensor([2.0, 0.0, -1.0])
    shown = [int(reader.read(Step(token, 0, row), 0)[0][0]) for token in range(3)]
    assert shown == sorted(shown, reverse=True)
    assert len(set(shown)) == 3


class Quiet(Silent):
    """Steps without logits."""

    name, has_logits = "quiet", False


def test_drafters_without_logits_have_no_features():
    assert drafter_features(Quiet()) == ()
    assert required_predictors((), Quiet()) == {}
    assert FeatureReader((), 1.0, Quiet()).names == ()
    assert drafter_features(Silent()) == NAMES
    assert required_predictors(NAMES, Silent()) == {}
    for names in (("entropy",), ("theta",), ("confidence", "theta")):
        for ask in (
            partial(required_predictors, names, Quiet()),
            partial(FeatureReader, names, 1.0, Quiet()),
        ):
            with pytest.raises(ValueError, match=f"'{names[0]}': drafter 'quiet' has no logits"):
                ask()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_features_are_computed_in_float64(dtype):
    rows = (torch.randn(6, 40, generator=torch.Generator().manual_seed(3)) * 4).to(dtype)
    for narrow, double in zip(
        read_features(NAMES, rows, 0.7), read_features(NAMES, rows.double(), 0.7)
    ):
        assert np.array_equal(narrow, double)


def test_impossible_tokens_add_nothing():
    ruled_out = torch.tensor([[1.0, 0.5, -math.inf]])
    assert np.array_equal(
        read_features(NAMES, ruled_out, 1.0)[0], read_features(NAMES, ruled_out[:, :2], 1.0)[0]
    )


def test_invalid_logits_are_refused():
    with pytest.raises(ValueError, match="NaN"):
        read_features(NAMES, torch.tensor([[0.0, math.nan]]), 1.0)


def random_logits(seed):
    return torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(seed)) * 2


def test_next_token_is_the_mean_negative_log_probability():
    logits, token = random_logits(0), torch.tensor([[0, 4, 2], [1, 1, 3]])
    log = logits.double().log_softmax(-1)
    wanted = -sum(log[b, n, token[b, n]] for b in range(2) for n in range(3)) / 6
    assert abs(next_token_loss(logits, token) - wanted) < 1e-6
    assert abs(next_token_loss(logits, token.roll(1)) - wanted) > 1e-2


def test_fetched_features_are_read_once_at_their_slot():
    """Otherwise a policy would read the features of another token."""
    reader, clock = FeatureReader(("confidence",), 1.0, Silent()), PhaseTimer(torch.device("cpu"))
    sure, torn = torch.tensor([9.0, 0.0, 0.0]), torch.tensor([1.0, 0.9, 0.8])
    code = {
        name: read_features(("confidence",), row[None], 1.0)[0][0, 0]
        for name, row in (("sure", sure), ("torn", torn))
    }
    assert code["sure"] != code["torn"]
    clock.begin()

    def fetched(slot):
        assert reader.fetch(sure.argmax()[None], sure, None, slot, clock) == 0

    fetched(0)
    assert reader.read(Step(0, 0, sure), 0)[0][0] == code["sure"]
    assert reader.read(Step(0, 0, torn), 0)[0][0] == code["torn"]  # what was fetched is gone
    fetched(0)
    assert reader.read(Step(0, 1, torn), 1)[0][0] == code["torn"]  # it was of another slot
