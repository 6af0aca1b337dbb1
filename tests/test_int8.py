"""Weights as int8: within half a step of the original, and refused where damaged."""

import json

import pytest
import shell
import torch
from hypothesis import given
from hypothesis import strategies as st

from real.model.hf_config import WeightsError
from real.model.stored_weights import SCALE, from_int8, read_bytes, sha256, to_int8
from real.pair import TINY, load_pair


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


def test_vectors_and_maps_stay_as_they_are():
    state = {"norm": torch.randn(4, dtype=torch.bfloat16), "map": torch.arange(6).view(2, 3)}
    stored = to_int8(state)
    assert list(stored) == ["norm", "map"]
    assert all(torch.equal(from_int8(stored, "test")[name], state[name]) for name in state)


def test_size_is_a_quarter_of_float32():
    state = {"head": torch.randn(64, 256)}
    size = sum(t.numel() * t.element_size() for t in to_int8(state).values())
    assert size == 64 * 256 + 4 * 64


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


@pytest.fixture
def models(tmp_path):
    """The embedded models with eagle stored as int8 beside it."""
    shell.simspec("quantize", TINY / "eagle", "--out", "eagle-int8", cwd=tmp_path)
    return tmp_path


def test_a_quantized_drafter_loads_and_drafts_nearly_alike(models):
    plain, stored = (load_pair(TINY, "eagle", weights=w) for w in (None, models / "eagle-int8"))
    one, two = (dict(pair.drafter.head.named_parameters()) for pair in (plain, stored))
    assert one.keys() == two.keys()
    for name, value in one.items():
        assert bool(((two[name] - value).norm() <= 0.02 * value.norm()).all()), name
    size = (models / "eagle-int8" / "eagle.safetensors").stat().st_size
    whole = len(read_bytes(TINY / "eagle" / "eagle.safetensors"))
    assert size < 0.6 * whole
    card = json.loads((models / "eagle-int8" / "card.json").read_text())
    assert 0 < max(card["relative_error"].values()) < 0.02
    assert card["source_sha256"] == sha256(TINY / "eagle" / "eagle.safetensors")


def test_quantize_refuses_what_it_cannot_store(models):
    for arguments, words in (
        ((TINY / "target", "--out", "x"), "holds no draft head"),
        ((TINY / "eagle", "--out", "eagle-int8"), "holds files already"),
        (("nowhere", "--out", "x"), "holds no draft head"),
    ):
        shell.refused(models, "quantize", *arguments, words=words)
    assert not (models / "x").exists()
