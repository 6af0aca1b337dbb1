"""Damaged or mismatched models and draft heads: commands refuse them in one line."""

import json
import logging
import shutil
from dataclasses import replace

import pytest
import torch
from inputs import COSTS, PROMPT_LINE, with_fields
from safetensors.torch import load, load_file, save_file
from shell import command, refused, said_within
from toy_checkpoint import qwen2_checkpoint

from real.model.checkpoint import WeightsError, load_decoder, load_tokenizer
from real.model.stored_weights import read_bytes
from real.pair import TINY
from simspec import load_trace
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


def test_drafter_of_another_target_is_refused(tmp_path):
    models = copied_models(tmp_path)
    given = ["record", "p.jsonl", "--models", models, "-k", 2, "--budget", 2, "--drafter", "model"]
    good = [*given, "--out", "good.parquet"]
    assert command(tmp_path, *good)[0] == 0  # control: the same tokenizer
    tokenizer = models / "model" / "tokenizer.json"
    edit_json(tokenizer, lambda value: value.update(padding=None, decoder=None))
    assert command(tmp_path, *good)[0] == 0  # what decides no token is not compared
    edit_json(tokenizer, swap_tokens)
    refused(tmp_path, *given, "--out", "x.parquet", words="has another tokenizer than")
    tokenizer.write_text("{}")
    refused(tmp_path, *given, "--out", "x.parquet", words="is not a tokenizer")
    tokenizer.unlink()
    edit_json(models / "model" / "config.json", lambda value: value.update(vocab_size=4000))
    refused(tmp_path, *given, "--out", "x.parquet", words="model cannot be loaded")
    edit_json(models / "early_exit" / "exit.json", lambda value: value.update(target={}))
    words = "a target with tokenizer None"
    refused(tmp_path, *given[:-1], "early_exit", "--out", "x.parquet", words=words)


@pytest.mark.parametrize("token", [4096, 1 << 31])
def test_token_beyond_the_models_vocabulary_is_refused(tmp_path, token):
    models = copied_models(tmp_path)
    given = "record", "p.jsonl", "--models", models, "-k", 2, "--budget", 2, "--out", "x.parquet"
    prompt = load_tokenizer(models / "target").encode(json.loads(PROMPT_LINE)["text"])

    def move(tokenizer):
        tokenizer["model"]["vocab"][prompt.tokens[0]] = token

    edit_json(models / "target" / "tokenizer.json", move)
    if token == 4096:
        refused(tmp_path, *given, words="gives a prompt token 4096, the model has 4096")
    else:
        said = said_within(1 << 30, lambda: load_tokenizer(models / "target").to_str())
        assert said.endswith("it has the id 2147483648, expected ids below 4194304")


@pytest.mark.parametrize("name, rows", [
    ("model.evil\x1b]0;owned\x07", 1), ("model.norm.weight", 0), ("model.norm.weight", 17),
])  # fmt: skip
def test_tensor_too_many_missing_or_of_another_shape_is_one_line(tmp_path, name, rows):
    """Its name is a stranger's, and reaches the terminal in our line alone: without escapes."""
    folder, printed = qwen2_checkpoint(tmp_path / "models" / "target"), logging.Handler()
    weights = load_file(folder / "model.safetensors")
    weights |= {name: torch.zeros(rows)}
    if not rows:
        del weights[name]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    (tmp_path / "p.jsonl").write_bytes(PROMPT_LINE)
    printed.emit = lambda record: pytest.fail(record.getMessage())
    logging.getLogger("transformers.modeling_utils").addHandler(printed)
    try:
        words = f"{name.encode('unicode_escape').decode()} is missing, unknown or of another shape"
        given = "--models", "models", "-k", 2, "--budget", 2, "--out", "x.parquet"
        refused(tmp_path, "record", "p.jsonl", "--drafter", "prompt_lookup", *given, words=words)
    finally:
        logging.getLogger("transformers.modeling_utils").removeHandler(printed)
    (folder / "config.json").unlink()
    with pytest.raises(WeightsError, match="holds no config.json; expected the folder of"):
        load_decoder(folder)


@pytest.mark.parametrize("kind", ["tokenizer", "tokenizer is text", "config", "weights"])
def test_damaged_target_is_refused(tmp_path, kind):
    models = copied_models(tmp_path)
    file = {"config": "config.json", "weights": "model.safetensors.xz"}.get(kind, "tokenizer.json")
    path = models / "target" / file
    path.write_bytes(b"hello" if kind == "tokenizer is text" else path.read_bytes()[:-100])
    words = "is not a tokenizer" if "tokenizer" in kind else "cannot be loaded"
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
        meta = replace(trace.meta, target=f"models/{trace.meta.target.split('/')[-1]}")
        with_fields(trace, meta=meta).save(tmp_path / "t" / "t.parquet")
        given = ["t/t.parquet", "--models", models, "--policy", "confidence:0.5", "--cost", COSTS]
        refused(tmp_path, "run", *given, words="NaN")
