"""A tokenizer that hangs, panics, aborts or takes all memory is an error of one line."""

import json
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shell import refused

import real.tokenizer_check
from real.model.checkpoint import load_tokenizer
from real.model.hf_config import WeightsError
from real.pair import TINY
from real.prompts.prompt import PromptError, load_chat_template
from real.tokenizer_check import backtracking_risk, check_tokenizer

PUBLISHED = {
    "GPT-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "Llama 3": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "o200k": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+",
    "DeepSeek": r"[!-/:-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*",
    "Bloom": " ?[^(\\s|[.,!?…。，、।۔،])]+",
    "digits": r"\d{3}(?=(?:\d{3})*\b)",
}
"""Forms of pre-tokenizers that are in use."""

EXPONENTIAL = [
    r"(a+)+$", r"(a|a)+$", r"(?:a*)*b", r"(a|aa){1,99}b", r"(?>(a+))+$", r"(\(a+\))*$",
    r"([a-z]+\s?)*!", r"((a?){20}){20,}", r"(a?){400}b", r"(?:(?:a|b)c?)+$", r"(.)\1+",
    r"\s*\s*\s*\s*\s*x",
]  # fmt: skip


@pytest.mark.parametrize("pattern", PUBLISHED.values(), ids=PUBLISHED)
def test_patterns_in_use_are_accepted(pattern):
    assert backtracking_risk(pattern) == ""


@pytest.mark.parametrize("pattern", EXPONENTIAL)
def test_patterns_that_backtrack_for_ever_are_refused(pattern):
    assert backtracking_risk(pattern)
    assert backtracking_risk(f"x|{pattern}|y")
    assert backtracking_risk(f"[)(]+{pattern}")


@settings(deadline=None)
@given(st.text(r"ab()[]{}|*+?\\^,19:=!", max_size=40))
def test_any_text_is_judged(text):
    assert isinstance(backtracking_risk(text), str)


def tokenizer_json(**changes):
    """The embedded tokenizer with other parts."""
    data = json.loads((TINY / "target" / "tokenizer.json").read_text())
    return json.dumps(data | changes).encode()


def split(pattern):
    return {
        "type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False
    }  # fmt: skip


def test_embedded_tokenizer_is_accepted():
    check_tokenizer((TINY / "target" / "tokenizer.json").read_bytes())
    check_tokenizer(tokenizer_json(pre_tokenizer=split(PUBLISHED["Llama 3"])))


HOSTILE = {
    "backtracking": (tokenizer_json(pre_tokenizer=split(r"(a+)+$")), "may backtrack for ever"),
    "nested deeper": (
        tokenizer_json(normalizer={"type": "Sequence", "normalizers": [
            {"type": "Replace", "pattern": {"\x52egex": r"(\p{L}*)*\d"}, "content": ""}]}),
        "may backtrack for ever",
    ),
    "deep JSON": (b"[" * 200_000, ""),
    "no pattern": (tokenizer_json(pre_tokenizer=split("(((")), ""),
    "nothing": (b"", ""),
    "not a tokenizer": (b"{}", ""),
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_tokenizer_is_refused_in_one_line(tmp_path, kind):
    content, words = HOSTILE[kind]
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(WeightsError, match="is not a tokenizer") as error:
        load_tokenizer(tmp_path)
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(PromptError, match="cannot be loaded"):
        load_chat_template(tmp_path)


@pytest.mark.parametrize(
    "fault, words",
    [
        ("import os; os.abort()", "exit code -6"),
        ("import ctypes; ctypes.string_at(0)", "exit code -11"),
        ("while True: pass", "does not load and encode short texts within 10 s"),
        ("bytearray(1 << 34)", "MemoryError"),
        ("raise BaseException('called `Option::unwrap()` on a `None` value')", "unwrap"),
    ],
)
def test_library_that_aborts_hangs_or_panics_is_an_error(tmp_path, monkeypatch, fault, words):
    """A library that misbehaves while it loads, in place of a tokenizer that makes it do so."""
    (tmp_path / "tokenizers.py").write_text(f"{fault}\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    real.tokenizer_check._verdict.cache_clear()
    source = real.tokenizer_check.__file__
    text = Path(source).read_text().replace("CPU_SECONDS = 10", "CPU_SECONDS = 1")
    (tmp_path / "check.py").write_text(text)
    monkeypatch.setattr(real.tokenizer_check, "__file__", str(tmp_path / "check.py"))
    try:
        with pytest.raises(ValueError, match=words):
            check_tokenizer((TINY / "target" / "tokenizer.json").read_bytes())
    finally:
        real.tokenizer_check._verdict.cache_clear()


def test_a_tokenizer_is_tried_once(monkeypatch):
    content = (TINY / "target" / "tokenizer.json").read_bytes()
    check_tokenizer(content)

    def again(*_, **__):
        raise AssertionError("tried again")

    monkeypatch.setattr(subprocess, "run", again)
    check_tokenizer(bytes(bytearray(content)))
    with pytest.raises(AssertionError, match="tried again"):  # control: another file is tried
        check_tokenizer(content + b" ")


def test_command_refuses_it(tmp_path):
    import shutil

    shutil.copytree(TINY / "target", tmp_path / "m" / "target")
    (tmp_path / "m" / "target" / "tokenizer.json").write_bytes(HOSTILE["backtracking"][0])
    (tmp_path / "p.jsonl").write_text('{"task": "a", "text": "' + "a" * 40 + '"}\n')
    refused(
        tmp_path, "record", "p.jsonl", "--models", "m", "--drafter", "prompt_lookup", "--out",
        "x.parquet", words="may backtrack for ever",
    )  # fmt: skip
