"""Weights of traces/smollm2/weights: complete, of the sizes and near the values of training."""

import json
from pathlib import Path

import pytest
import torch

from real.model.draft_head import read_state

ROOT = Path(__file__).parents[1]
WEIGHTS = ROOT / "traces" / "smollm2" / "weights"
FOLDERS = sorted(path for path in WEIGHTS.iterdir() if path.is_dir())


def cards(folder):
    """The card of the int8 weights, and of their training."""
    trained = ROOT / "traces" / "smollm2" / "drafters" / f"{folder.name}.json"
    return [json.loads(path.read_text()) for path in (folder / "card.json", trained)]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_weights_are_those_of_the_training(folder):
    stored, trained = cards(folder)
    state = read_state(folder / f"{trained['drafter']}.safetensors")
    vocabulary = state.pop("draft_token")
    assert sum(value.numel() for value in state.values()) == trained["parameters"]["trained"]
    assert all(torch.isfinite(value).all() for value in state.values())
    assert len(vocabulary) == trained["draft_vocabulary"]["tokens"]
    assert (vocabulary[1:] > vocabulary[:-1]).all()
    assert stored["stored"] == "int8" and len(stored["source_sha256"]) == 64
    assert 0 < max(stored["relative_error"].values()) < 0.03


def test_some_weights_are_there():
    assert [folder.name for folder in FOLDERS] == ["eagle-vllm"]
