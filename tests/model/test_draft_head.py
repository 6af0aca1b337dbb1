"""Draft heads: saved, loaded, and refused if damaged or trained for another target."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_checkpoint import TEXT, decoder_of, refused

from real.drafters.early_exit import EarlyExitHead
from real.model.draft_head import load_draft_head, save_draft_head

MADE_FOR = {"weights": "a" * 64, "config": "c" * 64, "tokenizer": "t" * 64}


def exit_of(target, **changes):
    head = EarlyExitHead(target, 2, **changes).requires_grad_(False)
    for p in head.parameters():
        p.mul_(0.9).add_(0.01)
    return head


def load(folder, target, made_for=MADE_FOR):
    return load_draft_head(EarlyExitHead, folder, "exit", target, made_for)


@pytest.mark.parametrize(
    "own_head, layers", [(True, 0), (True, 1), (True, 2), (False, 1), (False, 2)]
)
def test_saved_head_loads(tmp_path, own_head, layers):
    target = decoder_of()
    exit = exit_of(target, own_head=own_head, layers=layers)
    save_draft_head(exit, tmp_path, "exit", MADE_FOR)
    loaded = load(tmp_path, target)
    assert loaded.settings == exit.settings == {"depth": 2, "own_head": own_head, "layers": layers}
    assert all(
        torch.equal(v, exit.state_dict()[k].bfloat16().float())
        for k, v in loaded.state_dict().items()
    )
    exit.load_state_dict(loaded.state_dict())
    assert torch.equal(loaded.as_language_model(target)(TEXT), exit.as_language_model(target)(TEXT))
    assert not torch.equal(loaded.as_language_model(target)(TEXT), target(TEXT))


def test_a_head_alone_is_its_own_and_starts_as_the_targets():
    target = decoder_of()
    alone = EarlyExitHead(target, 2, layers=0)
    assert alone.settings == {"depth": 2, "own_head": True, "layers": 0}
    assert sum(p.numel() for p in alone.parameters()) > target.head.weight.numel()
    assert torch.equal(alone.head.weight, target.head.weight)
    assert EarlyExitHead(target, 2, layers=2).settings["own_head"] is False
    with pytest.raises(ValueError, match="leave a norm alone to train"):
        EarlyExitHead(target, 2, own_head=False, layers=0)


def test_head_of_another_target_is_refused(tmp_path):
    target = decoder_of()
    save_draft_head(exit_of(target), tmp_path, "exit", MADE_FOR)
    load(tmp_path, target)
    for what in MADE_FOR:
        refused(
            f"{what} {MADE_FOR[what][:12]}, this one has bbbbbbbbbbbb",
            load,
            tmp_path,
            target,
            MADE_FOR | {what: "b" * 64},
        )
    refused("does not fit this target: layers.0.down.weight", load, tmp_path, decoder_of(hidden=30))
    refused("holds no drafter 'exit'", load, tmp_path / "nowhere", target)


@pytest.mark.parametrize(
    "settings", [{"depth": 9}, {"depth": 2, "layers": -1}, {"depth": 2, "width": 3}, {}]
)
def test_invalid_settings_are_refused(tmp_path, settings):
    save_draft_head(exit_of(decoder_of()), tmp_path, "exit", MADE_FOR)
    (tmp_path / "exit.json").write_text(json.dumps({"settings": settings, "target": MADE_FOR}))
    refused("cannot have", load, tmp_path, decoder_of())


@pytest.mark.parametrize(
    "text", ["{", "[1, 2]", '{"settings": {"depth": 2}}', '{"settings": 3, "target": {}}']
)
def test_broken_settings_are_refused(tmp_path, text):
    save_draft_head(exit_of(decoder_of()), tmp_path, "exit", MADE_FOR)
    (tmp_path / "exit.json").write_text(text)
    refused("holds no drafter 'exit'", load, tmp_path, decoder_of())


def test_truncated_files_are_refused(tmp_path):
    save_draft_head(exit_of(decoder_of()), tmp_path, "exit", MADE_FOR)
    file = tmp_path / "exit.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    refused("damaged", load, tmp_path, decoder_of())
    file.unlink()
    refused("no such file", load, tmp_path, decoder_of())
    (tmp_path / "exit.bin").write_bytes(b"never opened")
    refused("exit.bin is a pickle", load, tmp_path, decoder_of())


def _without(state):
    del state["norm.weight"]


def _unknown(state):
    state["another"] = torch.ones(1)


def _wider(state):
    state["norm.weight"] = torch.ones(3)


def _nan(state):
    state["norm.weight"][0] = float("nan")


@pytest.mark.parametrize(
    "change, words",
    [
        (_without, "lacks the tensor norm.weight"),
        (_unknown, "another"),
        (_wider, r"norm.weight is \[3\]"),
        (_nan, "finite"),
    ],
)
def test_every_tensor_is_checked(tmp_path, change, words):
    save_draft_head(exit_of(decoder_of()), tmp_path, "exit", MADE_FOR)
    file = tmp_path / "exit.safetensors"
    state = load_file(file)
    change(state)
    save_file(state, file)
    refused(words, load, tmp_path, decoder_of())
