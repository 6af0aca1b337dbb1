"""Weights of traces/smollm2/weights: complete, near those of their training, and as recorded."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from real.model.draft_head import read_state
from real.model.stored_weights import sha256
from simspec import load_trace, replay
from simspec.policies.fixed import fixed

ROOT = Path(__file__).parents[2]
EXHIBIT = ROOT / "traces" / "smollm2"
FOLDERS = sorted(path for path in (EXHIBIT / "weights").iterdir() if path.name != "self_skip")
"""Sub-layers to skip have no weights."""
folders = pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)


def cards(folder):
    """The card of the int8 weights, and of their training."""
    trained = EXHIBIT / "drafters" / f"{folder.name}.json"
    return [json.loads(path.read_text()) for path in (folder / "card.json", trained)]


@folders
def test_weights_are_those_of_the_training(folder):
    stored, trained = cards(folder)
    state = read_state(folder / f"{trained['drafter']}.safetensors")
    vocabulary = state.pop("draft_token")
    assert sum(value.numel() for value in state.values()) == trained["parameters"]["trained"]
    assert all(torch.isfinite(value).all() for value in state.values())
    assert len(vocabulary) == trained["draft_vocabulary"]["tokens"]
    assert (vocabulary[1:] > vocabulary[:-1]).all()
    assert stored["stored"] == "int8"
    assert stored["source_sha256"] == trained["sha256"]
    assert 0 < max(stored["relative_error"].values()) < 0.03


@folders
@pytest.mark.parametrize("rule", ["greedy", "coupled"])
def test_recordings_are_by_these_weights(folder, rule):
    trace = load_trace(EXHIBIT / rule / f"{folder.name}.parquet")
    assert trace.meta.drafter_sha256 == sha256(folder)


@folders
def test_the_page_has_their_acceptance_on_the_exhibit(folder):
    trace = load_trace(EXHIBIT / "greedy" / f"{folder.name}.parquet")
    first, five = (trace.run > 0).mean(), np.minimum(trace.run, 5).mean()
    chat = trace.select([s for s, task in enumerate(trace.task) if task == "chat"])
    page = " ".join((ROOT / "docs" / "smollm2.md").read_text(encoding="utf-8").split())
    assert f"accepts {first:.3f} of first tokens and {five:.2f} of five" in page
    assert f"on chat alone {(chat.run > 0).mean():.3f} of first tokens" in page
    rounds = len(replay(trace, fixed(5)))
    assert f"Chains of five commit {trace.rows / rounds:.2f} tokens a round" in page
