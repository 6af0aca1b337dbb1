"""Invalid cost files, prompts, recordings and folders: one line, exit code 2, nothing written."""

import json
from dataclasses import replace

import pytest
from inputs import COSTS, PROMPT_LINE, with_fields
from shell import refused

from simspec import TraceMeta, load_trace
from simspec.trace.file import TraceError


@pytest.mark.parametrize("name", ["sweep", "run"])
def test_invalid_cost_file_is_refused(input_folder, tmp_path, name):
    """`test_cost_files` has the other kinds."""
    (tmp_path / "x.json").write_bytes(b'{"name": "caf\xe9"}')
    options = ("--policy", "fixed:1", "--cost", tmp_path / "x.json")
    refused(input_folder, name, "t.parquet", *options, words="x.json: not a cost model")


INVALID_PROMPTS = {
    "missing": (None, "cannot be read as prompts"),
    "a folder": ("", "cannot be read as prompts"),
    "empty": (b"", "holds no prompt"),
    "blank": (b"\n \n\n", "holds no prompt"),
    "too long": (
        json.dumps({"task": "t", "text": "word " * 1000}).encode(),
        "holds no prompt of 1 to 510",
    ),
    "not UTF-8": (
        PROMPT_LINE + b'{"task": "t", "text": "caf\xe9"}',
        "x.jsonl cannot be read as prompts ('utf-8'",
    ),
    "bad JSON": (
        PROMPT_LINE * 2 + b"{broken\n" + PROMPT_LINE,
        "x.jsonl line 3: expected a JSON object",
    ),
    "deep JSON": (PROMPT_LINE + b"[" * 200_000, "x.jsonl line 2: expected a JSON object"),
    "many digits": (
        PROMPT_LINE + b'{"task": "t", "text": "x", "id": ' + b"1" * 5000 + b"}",
        "x.jsonl line 2: expected a JSON object",
    ),
    "a list": (PROMPT_LINE + b"[]", "x.jsonl line 2: expected a JSON object"),
    "no text": (PROMPT_LINE + b'{"task": "t"}', "x.jsonl line 2: expected a JSON object"),
    "no task": (PROMPT_LINE + b'{"text": "t"}', "x.jsonl line 2: expected a JSON object"),
    "half a character": (
        PROMPT_LINE + b'{"task": "t", "text": "\\ud800"}',
        "x.jsonl line 2: expected a JSON object",
    ),
    "a NUL": (PROMPT_LINE + b"\0", "x.jsonl line 2: expected a JSON object"),
    **{
        rest: (PROMPT_LINE + b'{"task": "t", ' + rest + b"}", "line 2: expected a JSON object")
        for rest in (
            b'"turns": []',
            b'"turns": "a"',
            b'"turns": [5]',
            b'"turns": ["fine", 5]',
            b'"text": 5',
            b'"text": null',
        )
    },
}


@pytest.mark.parametrize("kind", INVALID_PROMPTS)
def test_invalid_prompts_are_refused(tmp_path, kind):
    content, words = INVALID_PROMPTS[kind]
    if content == "":
        (tmp_path / "x.jsonl").mkdir()
    elif content is not None:
        (tmp_path / "x.jsonl").write_bytes(content)
    refused(
        tmp_path, "record", "x.jsonl", "--out", "x.parquet", "-k", 2, "--budget", 2, words=words
    )


def recording_with(input_folder, **parts):
    trace = load_trace(input_folder / "t.parquet")
    return with_fields(trace, **{k: v(trace) for k, v in parts.items()})


def test_hash_of_weights_round_trips_and_is_checked(input_folder):
    meta = load_trace(input_folder / "t.parquet").meta
    hashed = replace(meta, drafter_sha256="0" * 64)
    assert TraceMeta.from_json(hashed.to_json()) == hashed
    with pytest.raises(TraceError, match="drafter_sha256 is 'ab', expected"):
        replace(meta, drafter_sha256="ab")


def with_meta(**changes):
    return {"meta": lambda trace: replace(trace.meta, **changes)}


@pytest.mark.parametrize(
    "parts, words",
    [
        (with_meta(tokenizer_sha256="0" * 64), "another tokenizer"),
        (with_meta(target="other/0123456789ab"), "was recorded with target other/0123456789ab"),
        (with_meta(drafter_sha256="0" * 64), "was recorded with weights 000000000000 of"),
        (with_meta(drafter="eagle9"), "drafter 'eagle9' is unknown"),
        (with_meta(rule="synthetic"), "rule 'synthetic' cannot be run"),
        (with_meta(rule="coupled", temperature=0.0), "temperature 0.0"),
        (dict(prompt=lambda trace: trace.prompt + 100_000), "the target knows 0..4095"),
        (dict(prompt=lambda trace: trace.prompt - 100_000), "the target knows 0..4095"),
        (
            dict(
                prompt=lambda trace: trace.prompt[:0],
                prompt_offset=lambda trace: trace.prompt_offset * 0,
            ),
            "without a prompt",
        ),
    ],
)
def test_recording_that_cannot_run_is_refused(input_folder, tmp_path, parts, words):
    recording_with(input_folder, **parts).save(tmp_path / "x.parquet")
    refused(tmp_path, "run", "x.parquet", "--policy", "fixed:1", "--cost", COSTS, words=words)
