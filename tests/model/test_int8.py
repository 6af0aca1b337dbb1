"""Weights as int8: within half a step of the original, and refused where damaged."""

import shutil

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from real.model.checkpoint import WeightsError
from real.model.draft_head import read_state
from real.model.stored_weights import SCALE, from_int8
from real.pair import TINY, load_pair

LEVELS = 127


def to_int8(state: dict) -> dict:
    """The same weights with every floating matrix W `[out, in]` as int8 and its scales.

    round(W[i, j] / s[i]) with s[i] = max_j |W[i, j]| / 127, float32 `[out]`, under NAME.int8_scale.
    Vectors and other tensors stay as they are.
    """
    stored: dict = {}
    for name, value in state.items():
        if value.ndim != 2 or not value.is_floating_point():
            stored[name] = value
            continue
        scale = value.float().abs().amax(1) / LEVELS
        divisor = torch.where(scale > 0, scale, 1.0)[:, None]
        stored[name] = (value.float() / divisor).round().clamp(-LEVELS, LEVELS).to(torch.int8)
        stored[name + SCALE] = scale
    return stored


@given(st.integers(0, 10**6), st.integers(1, 7), st.integers(1, 7), st.floats(-8, 8))
def test_weights_return_within_half_a_step(seed, rows, columns, exponent):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(rows, columns, generator=generator) * 10.0**exponent
    weight[0] = 0
    stored = to_int8({"head": weight})
    read = from_int8(stored, "test")
    assert list(read) == ["head"]
    step = weight.abs().amax(1, keepdim=True) / 127
    assert bool(((read["head"] - weight).abs() <= 0.5001 * step).all())
    again = to_int8(read)
    assert torch.equal(again["head"], stored["head"])


@pytest.mark.parametrize(
    "change, words",
    [
        ({"head": None}, "without an int8 matrix"),
        ({"head": torch.zeros(2, 3)}, "without an int8 matrix"),
        ({"head" + SCALE: torch.ones(3)}, "expected a float for each of 2 rows"),
        ({"head" + SCALE: torch.tensor([1, 1])}, "expected a float for each"),
        ({"head" + SCALE: torch.tensor([1.0, float("nan")])}, "not of finite scales"),
        ({"head" + SCALE: torch.tensor([1.0, -1.0])}, "not of finite scales"),
    ],
)
def test_damaged_scales_are_refused(change, words):
    state = to_int8({"head": torch.ones(2, 3)}) | change
    state = {name: value for name, value in state.items() if value is not None}
    with pytest.raises(WeightsError, match=words):
        from_int8(state, "test")


def test_a_drafter_in_int8_loads_and_drafts_nearly_alike(tmp_path):
    file = "eagle.safetensors"
    shutil.copytree(TINY / "eagle", tmp_path / "eagle")
    save_file(to_int8(read_state(TINY / "eagle" / file)), tmp_path / "eagle" / file)
    (tmp_path / "eagle" / f"{file}.xz").unlink(missing_ok=True)
    plain, stored = (load_pair(TINY, "eagle", weights=w) for w in (None, tmp_path / "eagle"))
    one, two = (dict(pair.drafter.head.named_parameters()) for pair in (plain, stored))
    assert one.keys() == two.keys()
    for name, value in one.items():
        assert bool(((two[name] - value).norm() <= 0.02 * value.norm()).all()), name
