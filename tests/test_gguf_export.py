"""Checkpoints written as GGUF files and read again: the same values, another engine's order."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from shell import command, refused
from toy_gguf import write_gguf

from real.jobs import export_gguf, import_gguf
from real.model.checkpoint import load_decoder
from real.model.draft_head import VOCABULARY, load_vocabulary


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a GGUF file and its import."""
    folder = tmp_path_factory.mktemp("gguf")
    write_gguf(folder / "toy.gguf")
    import_gguf(folder / "toy.gguf", folder / "target")
    return folder


def test_an_export_reads_back_as_the_same_checkpoint(place, tmp_path):
    card = export_gguf(place / "target", place / "toy.gguf", tmp_path / "out.gguf")
    import_gguf(tmp_path / "out.gguf", tmp_path / "again")
    before = load_file(place / "target" / "model.safetensors")
    after = load_file(tmp_path / "again" / "model.safetensors")
    assert set(before) == set(after)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert card["weights"] == sum(values.numel() for values in before.values())
    for file in ("tokenizer.json", "generation_config.json"):
        assert (place / "target" / file).read_text() == (tmp_path / "again" / file).read_text()


def test_float16_rounds_the_matrices_alone(place, tmp_path):
    export_gguf(place / "target", place / "toy.gguf", tmp_path / "out.gguf", "float16")
    import_gguf(tmp_path / "out.gguf", tmp_path / "again")
    after = load_file(tmp_path / "again" / "model.safetensors")
    for name, values in load_file(place / "target" / "model.safetensors").items():
        expected = values.half().float() if values.ndim == 2 else values
        assert torch.equal(after[name], expected), name


def test_a_draft_vocabulary_becomes_a_head_whose_other_rows_are_their_mean(place, tmp_path):
    drafter = shutil.copytree(place / "target", tmp_path / "model")
    token = torch.tensor([1, 5, 8], dtype=torch.int32)
    save_file({"draft_token": token}, drafter / VOCABULARY)
    vocab = load_decoder(drafter).config.vocab
    assert load_vocabulary(drafter, vocab).tolist() == [1, 5, 8]
    card = export_gguf(drafter, place / "toy.gguf", tmp_path / "out.gguf")
    assert card["draft_vocab"] == 3
    import_gguf(tmp_path / "out.gguf", tmp_path / "again")
    after = load_file(tmp_path / "again" / "model.safetensors")
    head, embedding = after["lm_head.weight"], after["model.embed_tokens.weight"]
    rows, outside = embedding[token.long()], [i for i in range(vocab) if i not in (1, 5, 8)]
    assert torch.equal(head[token.long()], rows)
    torch.testing.assert_close(head[outside], rows.mean(0).expand(len(outside), -1))


def test_the_command_says_what_it_wrote(place, tmp_path):
    asked = ("export-gguf", str(place / "target"), "--tokenizer-of", str(place / "toy.gguf"))
    code, out, _ = command(tmp_path, *asked, "--out", "out.gguf")
    assert code == 0
    assert "weights in float32; sha256" in out
    refused(tmp_path, *asked, "--out", "x.gguf", "--dtype", "int8", words="dtype is 'int8'")
    assert not (tmp_path / "x.gguf").exists()


def test_weights_out_of_range_and_other_vocabularies_leave_nothing(place, tmp_path):
    large = shutil.copytree(place / "target", tmp_path / "large")
    state = load_file(large / "model.safetensors")
    state["model.layers.0.mlp.up_proj.weight"][0, 0] = 1e5
    save_file(state, large / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match="out of float16's range"):
        export_gguf(large, place / "toy.gguf", tmp_path / "out.gguf", "float16")
    tiny = Path(__file__).parents[1] / "real" / "tiny" / "target"
    with pytest.raises(ValueError, match="a model with the same tokenizer"):
        export_gguf(tiny, place / "toy.gguf", tmp_path / "out.gguf")
    with pytest.raises(ValueError, match="no folder"):
        export_gguf(tmp_path / "none", place / "toy.gguf", tmp_path / "out.gguf")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["large"]
