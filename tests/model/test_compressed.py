"""Compressed weights and int8 read as the original or within half a step; damaged are refused."""

import lzma
import shutil

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from real.decode.features import drafter_identity
from real.model.checkpoint import WeightsError
from real.model.draft_head import read_state
from real.model.stored_weights import (
    MAX_RATIO,
    SCALE,
    from_int8,
    read_bytes,
    sha256,
    weight_files,
    weights_exist,
)
from real.pair import TINY, load_pair


@pytest.fixture
def file(tmp_path):
    """A plain file of weights with noise of two bytes a number."""
    path = tmp_path / "exit.safetensors"
    save_file(
        {"w": torch.randn(64, 64, generator=torch.Generator().manual_seed(0)).bfloat16()}, path
    )
    return path


def compress(path):
    """Replaces a file by path.xz, as the embedded models are stored."""
    packed = path.with_name(path.name + ".xz")
    packed.write_bytes(lzma.compress(path.read_bytes()))
    path.unlink()
    return packed


def identities(file, folder):
    return sha256(file), sha256(folder), drafter_identity(folder), weight_files(folder)


def test_packed_file_equals_the_plain_one(file):
    raw, state = file.read_bytes(), read_state(file)
    known = identities(file, file.parent)
    packed = compress(file)
    assert packed.name == "exit.safetensors.xz"
    assert not file.exists()
    assert read_bytes(file) == raw
    assert weights_exist(file)
    assert lzma.decompress(packed.read_bytes()) == raw
    assert identities(file, file.parent) == known
    assert torch.equal(read_state(file)["w"], state["w"])
    file.write_bytes(b"plain")  # control: a newly trained file comes before the packed one
    assert read_bytes(file) == b"plain"
    assert sha256(file) != known[0]
    assert weight_files(file.parent) == [file]


@pytest.mark.parametrize(
    "damage",
    [
        lambda held: held[:-9], lambda held: held + b"x", lambda held: b"hello", lambda held: b"",
        lambda held: held[:40] + b"?" + held[41:],
    ],
)  # fmt: skip
def test_damaged_file_is_refused_in_one_line(file, damage):
    packed = compress(file)
    packed.write_bytes(damage(packed.read_bytes()))
    with pytest.raises(WeightsError, match="exit.safetensors is damaged") as caught:
        read_state(file)
    assert "\n" not in str(caught.value)


def test_decompression_bomb_is_refused(tmp_path):
    path = tmp_path / "w.safetensors"
    path.write_bytes(bytes(1 << 20))
    compress(path)
    with pytest.raises(ValueError, match=f"more than {MAX_RATIO} times its size"):
        read_bytes(path)


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
