"""Damaged or mismatched models and draft heads: commands refuse them in one line."""

import json
import pickle
import shutil
from dataclasses import replace

import pytest
from inputs import COSTS, HEADS, PROMPT_LINE, PickleBomb, with_fields
from safetensors.torch import load, load_file, save_file
from shell import command, refused

from real.drafters.self_skip import SelfSkipDrafter
from real.files import replace_json
from real.model.checkpoint import WeightsError, load_decoder, load_tokenizer
from real.model.draft_head import HASHES, load_draft_head, save_draft_head
from real.model.stored_weights import made_for, read_bytes
from real.pair import TINY
from simspec import CostModel, load_trace
from simspec.trace.recordings import CHECKOUT as TRACES


def copied_models(folder):
    """A copy of the embedded models' folder that may be spoilt."""
    for name in ("target", "model", "early_exit"):
        shutil.copytree(TINY / name, folder / "models" / name)
    shutil.copy(TINY / "target" / "tokenizer.json", folder / "models" / "model")
    (folder / "p.jsonl").write_bytes(PROMPT_LINE)
    return folder / "models"


def edit_json(path, change):
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def swap_tokens(tokenizer):
    vocab = tokenizer["model"]["vocab"]
    first, second = list(vocab)[300:302]
    vocab[first], vocab[second] = vocab[second], vocab[first]


@pytest.mark.parametrize("drafter", ["model", "early_exit"])
def test_drafter_of_another_target_is_refused(tmp_path, drafter):
    models = copied_models(tmp_path)
    arguments = [
        "record",
        "p.jsonl",
        "--models",
        models,
        "--drafter",
        drafter,
        "-k",
        2,
        "--budget",
        2,
    ]
    assert (
        command(tmp_path, *arguments, "--out", "good.parquet")[0] == 0
    )  # control: the same tokenizer, the right target
    tokenizer = models / "model" / "tokenizer.json"
    if drafter == "model":
        edit_json(tokenizer, lambda value: value.update(padding=None, decoder=None))
        assert (
            command(tmp_path, *arguments, "--out", "good.parquet")[0] == 0
        )  # what decides no token is not compared
        edit_json(tokenizer, swap_tokens)
        refused(tmp_path, *arguments, "--out", "x.parquet", words="has another tokenizer than")
        tokenizer.write_text("{}")
        refused(tmp_path, *arguments, "--out", "x.parquet", words="is not a tokenizer")
        tokenizer.unlink()
        edit_json(models / "model" / "config.json", lambda value: value.update(vocab_size=4000))
        refused(tmp_path, *arguments, "--out", "x.parquet", words="model cannot be loaded")
    else:
        for invalid, words in (
            ("0" * 64, "holds no drafter 'exit'"),
            (5, "holds no drafter 'exit'"),
            ([], "a target with tokenizer None"),
        ):
            edit_json(
                models / "early_exit" / "exit.json",
                lambda value, target=invalid: value.update(target=target),
            )
            refused(tmp_path, *arguments, "--out", "x.parquet", words=words)
        (models / "early_exit" / "exit.json").write_text("[" * 200_000)
        refused(tmp_path, *arguments, "--out", "x.parquet", words="holds no drafter 'exit'")


@pytest.fixture(scope="module")
def untrained_heads(tmp_path_factory):
    """Folders of parts for the embedded target, as training would save them."""
    folder, target = tmp_path_factory.mktemp("parts"), load_decoder(TINY / "target")
    hashes = made_for(TINY / "target", target, load_tokenizer(TINY / "target"))
    for name, part in HEADS.items():
        (folder / name).mkdir()
        save_draft_head(part(target), folder / name, name, hashes)
    (folder / "self_skip").mkdir()
    replace_json(
        folder / "self_skip" / "self_skip.json",
        {"settings": {"attention": [2], "mlp": [1, 2]}, "target": hashes},
    )
    return folder


def copied_head(folder, name, untrained_heads):
    """The command that records with a copy of that part in `folder`, and the copy."""
    shutil.copytree(untrained_heads / name, folder / name)
    (folder / "p.jsonl").write_bytes(PROMPT_LINE)
    return [
        "record",
        "p.jsonl",
        "--drafter",
        name,
        "--weights",
        name,
        "-k",
        3,
        "--budget",
        3,
    ], folder / name


def change_tensors(file, change):
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)


@pytest.mark.parametrize("name", HEADS)
def test_draft_head_with_wrong_tensor_is_refused(tmp_path, untrained_heads, name):
    arguments, folder = copied_head(tmp_path, name, untrained_heads)
    assert command(tmp_path, *arguments, "--out", "good.parquet")[0] == 0  # control
    file = folder / f"{name}.safetensors"
    whole_part, first = file.read_bytes(), sorted(load_file(file))[0]
    spoilt = {
        f"lacks the tensor {first}": lambda tensors: tensors.pop(first),
        f"does not fit this target: {first} is [3]": lambda tensors: tensors.update(
            {first: tensors[first].flatten()[:3].clone()}
        ),
        "a tensor another.one": lambda tensors: tensors.update(
            {"another.one": tensors[first].clone()}
        ),
        f"{first} that is not of finite numbers": lambda tensors: (
            tensors[first].view(-1)[:1].fill_(float("nan"))
        ),
    }
    for words, change in spoilt.items():
        file.write_bytes(whole_part)
        change_tensors(file, change)
        refused(tmp_path, *arguments, "--out", "x.parquet", words=words)
    for damage, words in (
        (whole_part[:-9], "damaged"),
        (pickle.dumps(PickleBomb()), "damaged"),
        (None, f"{name}.safetensors cannot be read"),
    ):
        file.write_bytes(damage) if damage else file.unlink()
        refused(tmp_path, *arguments, "--out", "x.parquet", words=words)
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("name", [*HEADS, "self_skip"])
def test_draft_head_of_another_target_is_refused(tmp_path, untrained_heads, name):
    arguments, folder = copied_head(tmp_path, name, untrained_heads)
    assert command(tmp_path, *arguments, "--out", "good.parquet")[0] == 0  # control
    for key in HASHES:
        shutil.copy(untrained_heads / name / f"{name}.json", folder)
        edit_json(
            folder / f"{name}.json", lambda value, key=key: value["target"].update({key: "0" * 64})
        )
        refused(
            tmp_path,
            *arguments,
            "--out",
            "x.parquet",
            words=f"was made for a target with {key} 000000000000",
        )
    shutil.copy(untrained_heads / name / f"{name}.json", folder)
    edit_json(folder / f"{name}.json", lambda value: value["settings"].update(nonsense=1))
    refused(tmp_path, *arguments, "--out", "x.parquet", words="cannot have")


def test_policy_reading_a_missing_feature_is_refused(tmp_path):
    (tmp_path / "p.jsonl").write_bytes(PROMPT_LINE)
    assert (
        command(
            tmp_path,
            "record",
            "p.jsonl",
            "--drafter",
            "prompt_lookup",
            "-k",
            3,
            "--budget",
            4,
            "--out",
            "t.parquet",
        )[0]
        == 0
    )
    CostModel.from_ratio(0.1, 3).to_json(tmp_path / "c.json")
    with_meta = ["t.parquet", "--cost", "c.json", "--policy"]
    for reader in ("run", "sweep"):
        assert command(tmp_path, reader, *with_meta, "fixed:2")[0] == 0  # control
        refused(tmp_path, reader, *with_meta, "confidence:0.5", words="'confidence'")


@pytest.mark.parametrize("kind", ["tokenizer", "tokenizer is text", "config", "weights"])
def test_damaged_target_is_refused(tmp_path, kind):
    models = copied_models(tmp_path)
    path = (
        models
        / "target"
        / {"config": "config.json", "weights": "model.safetensors"}.get(kind, "tokenizer.json")
    )
    path.write_bytes(b"hello" if kind == "tokenizer is text" else path.read_bytes()[:-100])
    words = {"config": "cannot be loaded", "weights": "cannot be loaded"}.get(
        kind, "is not a tokenizer"
    )
    for arguments in (["record", "p.jsonl", "--out", "x.parquet"], ["measure", "--out", "x.json"]):
        refused(tmp_path, *arguments, "--models", models, words=words)


def put_nan(path):
    """Makes one number of a checkpoint's last norm NaN."""
    tensors = load(read_bytes(path))
    name = next(name for name in tensors if name.endswith("norm.weight") and "layer" not in name)
    tensors[name][3] = float("nan")
    save_file(tensors, path, {"format": "pt"})


@pytest.mark.parametrize("who", ["model", "early_exit", "target"])
def test_model_with_nan_is_refused(tmp_path, who):
    models = copied_models(tmp_path)
    arguments = ["--models", models, "--drafter", "model" if who == "target" else who]
    (tmp_path / "t").mkdir()
    load_trace(TRACES / f"tiny-{arguments[-1]}-greedy.parquet").select([0]).save(
        tmp_path / "t" / "t.parquet"
    )
    put_nan(models / who / ("exit.safetensors" if who == "early_exit" else "model.safetensors"))
    for path in models.rglob("theta*"):
        path.unlink()  # they would notice that the weights are not theirs
    record = ["record", "p.jsonl", *arguments, "-k", 3, "--budget", 4, "--out", "x.parquet"]
    if who == "early_exit":
        refused(tmp_path, *record, words="norm.weight that is not of finite numbers")
        return
    reason = "sequence 0 (prompt '1') cannot be recorded: "
    if who == "target":
        refused(tmp_path, *record, words=reason)
    code, _, error = command(tmp_path, *record)
    assert code == 2
    assert reason in error.splitlines()[-1]
    assert "NaN" in error.splitlines()[-1]
    assert not (tmp_path / "x.parquet").exists()
    if who == "model":
        trace = load_trace(tmp_path / "t" / "t.parquet")
        trace = with_fields(
            trace, meta=replace(trace.meta, target=f"models/{trace.meta.target.split('/')[-1]}")
        )
        trace.save(tmp_path / "t" / "t.parquet")
        refused(
            tmp_path,
            "run",
            "t/t.parquet",
            "--models",
            models,
            "--policy",
            "confidence:0.5",
            "--cost",
            COSTS,
            words="NaN",
        )


def test_settings_of_no_head_are_refused_before_it_is_made(tmp_path):
    stored = {"settings": {"blocks": 10**6}, "target": dict.fromkeys(HASHES, "a")}
    (tmp_path / "heads.json").write_text(json.dumps(stored))
    with pytest.raises(WeightsError, match="blocks is 1000000, expected an integer of at most"):
        load_draft_head(
            lambda *_, **__: pytest.fail("made"), tmp_path, "heads", None, stored["target"]
        )


def test_unknown_settings_are_cut_in_the_message(tmp_path):
    stored = {"settings": {"x" * 20_000: 1}, "target": dict.fromkeys(HASHES, "a")}
    (tmp_path / "self_skip.json").write_text(json.dumps(stored))
    with pytest.raises(WeightsError, match="has settings that this target cannot have") as caught:
        SelfSkipDrafter.load(tmp_path, None, stored["target"])
    assert len(str(caught.value)) < 1000
