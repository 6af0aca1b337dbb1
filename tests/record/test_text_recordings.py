"""`record_texts`: recordings along written texts, from untrusted files."""

import json

import numpy as np
import pytest
from shell import simspec

from simspec import load_trace, replay
from simspec.engines import text as texts_module
from simspec.engines.ngram import ngram_rule
from simspec.engines.text import read_texts, record_texts
from simspec.policies.fixed import fixed

LINES = [
    {"id": "a", "task": "code", "prompt": [5, 6, 5], "output": [6, 5, 6, 5, 9], "max_tokens": 8},
    {"prompt": [1], "output": [2, 2, 2, 2]},
    {"id": 7, "prompt": [], "output": []},
]


def write(folder, lines, name="texts.jsonl"):
    path = folder / name
    rows = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(rows))
    return path


def test_texts_become_a_recording_that_replays(tmp_path):
    texts = read_texts(write(tmp_path, LINES))
    assert [text.id for text in texts] == ["a", "2"]  # the empty output is left out
    trace = record_texts(texts, ngram_rule("vllm:1,2"), 4, (9,), source="mine")
    trace.save(tmp_path / "t.parquet")
    held = load_trace(tmp_path / "t.parquet")
    assert (held.meta.rule, held.meta.target) == ("greedy", "mine")
    assert held.meta.drafter == "ngram vllm:1,2"
    assert held.budget.tolist() == [8, 4]  # the second text was cut at its length
    assert held.meta.tasks == ("code", "text")
    assert held.depth.tolist() == [2, 2, 2, 4, 4, 0, 0, 1, 1]
    assert held.run.tolist() == [2, 2, 2, 1, 0, 0, 0, 1, 1]
    assert replay(held, fixed(4)).accepted.tolist() == [2, 1, 0, 0, 1]


def test_strings_need_an_encoder(tmp_path):
    path = write(tmp_path, [{"prompt": "ab", "output": "abab"}])
    with pytest.raises(ValueError, match="line 1: a text is a string: give token ids, or --token"):
        read_texts(path)
    (text,) = read_texts(path, lambda string: [ord(letter) for letter in string])
    assert text.output.tolist() == [97, 98, 97, 98]


def test_sampled_texts_are_refused_or_labelled(tmp_path):
    path = write(tmp_path, [{**LINES[0], "temperature": 0.8}])
    with pytest.raises(ValueError, match="temperature 0.8.*give sampled=True"):
        record_texts(read_texts(path), ngram_rule("vllm:1,2"), 4, (9,))
    trace = record_texts(read_texts(path), ngram_rule("vllm:1,2"), 4, (9,), sampled=True)
    assert (trace.meta.rule, trace.meta.temperature) == ("coupled", 0.8)
    mixed = read_texts(write(tmp_path, [LINES[1], {**LINES[0], "temperature": 1}]))
    with pytest.raises(ValueError, match="2 temperatures, 0 to 1, expected one"):
        record_texts(mixed, ngram_rule("vllm:1,2"), 4, (9,), sampled=True)


def test_an_end_token_inside_a_text_is_refused(tmp_path):
    texts = read_texts(write(tmp_path, LINES))
    with pytest.raises(ValueError, match="'a' holds end token 6 at 1 of 5"):
        record_texts(texts, ngram_rule("vllm:1,2"), 4, (6,))


WRONG = [
    ("{", "line 1"),
    ("[]", "Expected `object`"),
    ({"prompt": [1]}, "missing required field `output`"),
    ({"prompt": [1], "output": 3}, "got `int` - at `.*output`"),
    ({"prompt": [1], "output": [True]}, "Expected `int`"),
    ({"prompt": [1], "output": [-1]}, "Expected `int`"),
    ({"prompt": [1], "output": [1 << 31]}, "Expected `int`"),
    ({"prompt": [1], "output": [1.0]}, "Expected `int`"),
    ({"prompt": [1], "output": [1, 2], "max_tokens": 1}, "max_tokens is 1"),
    ({"prompt": [1], "output": [1, 2], "max_tokens": "9"}, "max_tokens`"),
    ({"prompt": [1], "output": [1], "temperature": -1}, "temperature`"),
    ({"prompt": [1], "output": [1], "temperature": 10**400}, "out of range|temperature"),
    ('{"prompt": [1], "output": [1], "temperature": NaN}', "JSON is malformed"),
    ({"prompt": [1], "output": [1], "task": 4}, "task`"),
    ("[" * 100_000, "line 1"),
    ("\udcff".encode("utf-8", "surrogateescape").decode("latin-1"), "line 1"),
]


@pytest.mark.parametrize("line,reason", WRONG, ids=range(len(WRONG)))
def test_other_lines_are_refused_in_one_line(tmp_path, line, reason):
    with pytest.raises(ValueError, match=reason) as refused:
        read_texts(write(tmp_path, [line]))
    assert "\n" not in str(refused.value)
    assert str(tmp_path) in str(refused.value)


def test_sizes_are_bounded_before_parsing(tmp_path, monkeypatch):
    path = write(tmp_path, [LINES[0], LINES[1]])
    monkeypatch.setattr(texts_module, "MOST_LINE", 40)
    with pytest.raises(ValueError, match="at most 40 bytes a line"):
        read_texts(path)
    monkeypatch.undo()
    monkeypatch.setattr(texts_module, "MOST_BYTES", 100)
    with pytest.raises(ValueError, match="100 a file"):
        read_texts(path)
    monkeypatch.undo()
    monkeypatch.setattr(texts_module, "MOST_TEXT", 4)
    string = write(tmp_path, [{"prompt": "twelve", "output": "on"}], "s.jsonl")
    with pytest.raises(ValueError, match="a text has 6 characters, expected at most 4: cut it"):
        read_texts(string, encode=pytest.fail)
    monkeypatch.undo()
    monkeypatch.setattr(texts_module, "MOST_TOKENS", 4)
    with pytest.raises(ValueError, match="8 tokens, expected at most 4"):
        read_texts(path)


def test_missing_and_empty_files_are_refused(tmp_path):
    with pytest.raises(ValueError, match="cannot be read"):
        read_texts(tmp_path / "nothing.jsonl")
    with pytest.raises(ValueError, match="holds no text"):
        read_texts(write(tmp_path, [LINES[2]]))
    (text, _) = read_texts(write(tmp_path, LINES))
    with pytest.raises(ValueError, match="depth is 0"):
        record_texts([text], ngram_rule("vllm"), 0)
    assert np.array_equal(text.prompt, [5, 6, 5])


def test_the_command_records_texts(tmp_path):
    path = write(tmp_path, LINES)
    options = ["--drafter", "vllm:1,2", "--depth", 4, "--end-token", 9, "--out", "t.parquet"]
    out, _ = simspec("record", "--from-text", path.name, *map(str, options), cwd=tmp_path)
    assert out == "wrote t.parquet: 2 texts, 9 rows\n"
    held = load_trace(tmp_path / "t.parquet")
    assert held.depth.tolist() == [2, 2, 2, 4, 4, 0, 0, 1, 1]
    assert held.meta.target == "text texts.jsonl"


def test_the_command_encodes_strings(tmp_path):
    from real.model.checkpoint import load_tokenizer
    from real.pair import TINY

    write(tmp_path, [{"prompt": "Once upon a time", "output": " there was a king"}])
    options = "--target", TINY / "target", "--drafter", "vllm:1,2", "--out", "t.parquet"
    simspec("record", "--from-text", "texts.jsonl", *options, cwd=tmp_path)
    held, encoder = load_trace(tmp_path / "t.parquet"), load_tokenizer(TINY / "target")
    assert encoder.decode(held.prompt.tolist()) == "Once upon a time"
    assert encoder.decode(held.token.tolist()) == " there was a king"
