"""End tokens at which recordings stop: those of both files of a checkpoint."""

import json

import pytest
from shell import command
from toy_lm import VOCAB, toy_decoder
from transformers import AutoConfig, GenerationConfig

from real.files import replace_json
from real.model.checkpoint import WeightsError, end_tokens, save_decoder
from real.pair import TINY
from simspec import load_trace


@pytest.fixture
def folder(tmp_path):
    """A checkpoint whose config names end token 3."""
    save_decoder(toy_decoder(0), tmp_path, end_token=3, context=64)
    return tmp_path


def configure(folder, value):
    config = json.loads((folder / "config.json").read_text())
    replace_json(folder / "config.json", config | {"eos_token_id": value})


def generate(folder, value):
    replace_json(folder / "generation_config.json", {"eos_token_id": value})


@pytest.mark.parametrize(
    "config, generation, ends",
    [
        (3, None, (3,)), (3, 3, (3,)), (3, 5, (3, 5)), (3, [5, 3, 4], (3, 5, 4)),
        ([7, 3], [3, 8], (7, 3, 8)), (None, [4, 4], (4,)), (None, None, ()),
        (None, VOCAB - 1, (VOCAB - 1,)),
    ],
)  # fmt: skip
def test_end_tokens_are_those_of_both_files(folder, config, generation, ends):
    configure(folder, config)
    generate(folder, generation)
    assert end_tokens(folder, VOCAB) == ends
    named = [AutoConfig.from_pretrained(folder), GenerationConfig.from_pretrained(folder)]
    theirs = [c.eos_token_id for c in named]
    flat = {t for e in theirs for t in (e if isinstance(e, list) else [e]) if t is not None}
    assert set(ends) == flat


def test_a_checkpoint_needs_no_generation_config(folder):
    assert end_tokens(folder, VOCAB) == (3,)
    assert end_tokens(TINY / "target", 4096) == (0,)


@pytest.mark.parametrize("content", [
    *(VOCAB, -1, [3, 99], True, 2.5, "3", "x" * 5000),  # end tokens outside the vocabulary
    *(b"", b"[1]", b'{"eos_token_id": ', b"3", b"\xff"),  # files that are damaged
])  # fmt: skip
def test_end_tokens_outside_the_vocabulary_and_damaged_files_are_refused(folder, content):
    damaged, words = isinstance(content, bytes), "eos_token_id in generation_config.json is"
    generate(folder, content if not damaged else 3)
    if damaged:
        (folder / "generation_config.json").write_bytes(content)
    with pytest.raises(
        WeightsError, match="is no generation config" if damaged else words
    ) as caught:
        end_tokens(folder, VOCAB)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_a_recording_ends_at_the_tokens_of_the_generation_config(tmp_path):
    (tmp_path / "target").mkdir()
    for file in (TINY / "target").iterdir():
        (tmp_path / "target" / file.name).symlink_to(file)
    row = {"task": "t", "text": "User: How many words?\n\nAssistant:"}
    (tmp_path / "p.jsonl").write_text(json.dumps(row) + "\n")

    def record(name):
        code, _, error = command(
            tmp_path, "record", "p.jsonl", "--models", ".", "--drafter", "prompt_lookup",
            "-k", 2, "--budget", 8, "--out", name,
        )  # fmt: skip
        assert code == 0, error
        return load_trace(tmp_path / name)

    free = record("free.parquet")
    generate(tmp_path / "target", int(free.token[3]))
    ended = record("ended.parquet")
    first = free.token.tolist().index(free.token[3])
    assert ended.meta.end_tokens == (0, int(free.token[3]))
    assert ended.token.tolist() == free.token[: first + 1].tolist()
