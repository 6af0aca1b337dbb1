"""Compressed weights read as the original file; damaged ones are refused."""

import lzma

import pytest
import torch
from safetensors.torch import save_file

from real.decode.features import drafter_identity
from real.model.checkpoint import WeightsError
from real.model.draft_head import read_state
from real.model.stored_weights import (
    MAX_RATIO,
    compress,
    read_bytes,
    sha256,
    weight_files,
    weights_exist,
)


@pytest.fixture
def file(tmp_path):
    """A plain file of weights with noise of two bytes a number."""
    path = tmp_path / "exit.safetensors"
    save_file(
        {"w": torch.randn(64, 64, generator=torch.Generator().manual_seed(0)).bfloat16()}, path
    )
    return path


def test_packed_file_equals_the_plain_one(file):
    raw, state = file.read_bytes(), read_state(file)
    known = (
        sha256(file),
        sha256(file.parent),
        drafter_identity(file.parent),
        weight_files(file.parent),
    )
    packed = compress(file)
    assert packed.name == "exit.safetensors.xz"
    assert not file.exists()
    assert packed.stat().st_size < 0.85 * len(raw)
    assert read_bytes(file) == raw
    assert weights_exist(file)
    assert lzma.decompress(packed.read_bytes()) == raw
    assert (
        sha256(file),
        sha256(file.parent),
        drafter_identity(file.parent),
        weight_files(file.parent),
    ) == known
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
    (tmp_path / "w.safetensors.xz").write_bytes(lzma.compress(bytes(1 << 20)))
    with pytest.raises(ValueError, match=f"more than {MAX_RATIO} times its size"):
        read_bytes(path)
    path.write_bytes(bytes(1 << 20))
    with pytest.raises(ValueError, match="more than"):  # and none is made, the plain file stays
        compress(path)
    assert path.stat().st_size == 1 << 20
