"""Prompt styles by task, sampling of prompts by seed, and the repetition measure."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_tokenizer import train_tokenizer

from real.prompts import (
    LeftOut,
    Prompt,
    PromptError,
    PromptFormat,
    draw,
    read_prompts,
    repeated_ngrams,
)

HELD = settings(deadline=None, max_examples=100, derandomize=True)
TOKENIZER = train_tokenizer(["User: Question: Answer: Assistant: some words"], 280)
PLAIN = PromptFormat(TOKENIZER)


def written(tmp_path, *rows):
    path = tmp_path / "prompts.jsonl"
    path.write_text(
        "".join(
            (r if isinstance(r, str) else json.dumps(r, ensure_ascii=False)) + "\n" for r in rows
        ),
        encoding="utf-8",
    )
    return path


def texts(path, longest=1000):
    return [TOKENIZER.decode(p.token) for p in read_prompts(path, PLAIN, longest)[0]]


def test_every_task_has_its_style(tmp_path):
    path = written(
        tmp_path,
        {"task": "math", "turns": ["2+2?", "and 3?"]},
        {"task": "code", "turns": ["def f():"]},
        {"task": "chat", "turns": ["Hi {} {0}"]},
        {"task": "math", "text": "as it is {}"},
    )
    assert texts(path) == [
        "Question: 2+2?\nAnswer:",
        "def f():",
        "User: Hi {} {0}\n\nAssistant:",
        "as it is {}",
    ]


def test_public_sets_get_a_task_and_their_licence(tmp_path):
    path = written(
        tmp_path,
        {"id": 5, "task": "gsm8k/main", "turns": ["How many?"], "source": "gsm8k:test"},
        {"task": "own", "text": "x", "source": "mine:here"},
        "",
        {"task": "own", "text": "y"},
    )
    prompts, _ = read_prompts(path, PLAIN, 100)
    assert [(p.id, p.task, p.source) for p in prompts] == [
        ("5", "math", "gsm8k (MIT)"),
        ("2", "own", "mine:here"),
        ("4", "own", "prompts.jsonl"),
    ]
    assert TOKENIZER.decode(prompts[0].token) == "Question: How many?\nAnswer:"


def test_prompts_are_kept_up_to_the_limit(tmp_path):
    path = written(tmp_path, *({"task": "t", "text": "é" * n} for n in range(5)))
    lengths = [len(p.token) for p in read_prompts(path, PLAIN, 1000)[0]]
    assert lengths == [
        len(TOKENIZER.encode("é" * n).ids) for n in range(1, 5)
    ]  # the empty one goes
    for longest in lengths:
        assert [n for n in lengths if n <= longest] == [
            len(p.token) for p in read_prompts(path, PLAIN, longest)[0]
        ]


def test_left_out_prompts_are_counted_with_their_reason(tmp_path):
    rows = [{"task": "t", "text": "é" * n} for n in (0, 1, 2, 3, 0, 9)]
    path = written(tmp_path, *rows, {"task": "t", "turns": [""]})
    sizes = {n: len(TOKENIZER.encode("é" * n).ids) for n in (1, 2, 3, 9)}
    kept, left = read_prompts(path, PLAIN, sizes[2])
    assert [len(p.token) for p in kept] == [sizes[1], sizes[2]]
    assert left == LeftOut(7, empty=3, too_long=2, limit=sizes[2], longest=sizes[9])
    assert left.count == 5
    everything, none = read_prompts(path, PLAIN, 10**6)
    assert len(everything) == 4
    assert none.too_long == 0


def test_what_is_left_out_reads_as_one_line():
    many = LeftOut(80, 0, 3, 1952, 2310)
    assert many.describe() == "left out 3 of 80 prompts: 3 over 1,952 tokens (longest 2,310)"
    assert LeftOut(80, 0, 0, 1952, 1000).describe() == ""
    both = many + LeftOut(20, 2, 1, 1952, 2000)
    assert both.describe() == (
        "left out 6 of 100 prompts: 4 over 1,952 tokens (longest 2,310), 2 empty"
    )
    assert LeftOut() + many == many


def test_only_newlines_end_a_line(tmp_path):
    odd = "a\u2028b\x85c\u2029d\x1ee"
    path = tmp_path / "prompts.jsonl"
    path.write_text(
        json.dumps({"task": "t", "text": "a\u2028b\x85c\u2029d"}, ensure_ascii=False)
        + "\r\n"
        + json.dumps({"task": "t", "text": odd})
    )
    assert texts(path) == ["a\u2028b\x85c\u2029d", odd]


@pytest.mark.parametrize(
    "line",
    [
        "not json",
        "[1]",
        '{"text": "no task"}',
        '{"task": "t"}',
        '{"task": "t", "turns": []}',
        '{"task": "t", "turns": "a string"}',
        '{"task": "t", "turns": [5]}',
        '{"task": "t", "turns": ["fine", 5]}',
        '{"task": "t", "text": 5}',
        '{"task": "t", "text": null}',
    ],
)
def test_invalid_lines_are_refused(tmp_path, line):
    path = written(tmp_path, {"task": "t", "text": "fine"}, line)
    with pytest.raises(PromptError, match="line 2: expected a JSON object") as caught:
        read_prompts(path, PLAIN, 100)
    assert "\n" not in str(caught.value)


def test_file_without_prompts_is_refused(tmp_path):
    contents = (
        (b"", "no prompt: expected"),
        (b'{"task": "t", "text": "too long"}', "of 1 to 2 tokens"),
    )
    for content, what in contents:
        (tmp_path / "p.jsonl").write_bytes(content)
        with pytest.raises(PromptError, match=what):
            read_prompts(tmp_path / "p.jsonl", PLAIN, 2)
    (tmp_path / "latin.jsonl").write_bytes(b'{"task": "t", "text": "caf\xe9"}')
    for path in (tmp_path / "nowhere.jsonl", tmp_path / "latin.jsonl", tmp_path):
        with pytest.raises(PromptError, match="cannot be read as prompts"):
            read_prompts(path, PLAIN, 100)


def prompts_of(tasks):
    return [Prompt(str(i), task, "s", [1]) for i, task in enumerate(tasks)]


@HELD
@given(st.text("abc", max_size=30), st.integers(0, 8), st.integers(0, 1000))
def test_sampling_is_balanced_ordered_and_seeded(tasks, per_task, seed):
    prompts = prompts_of(tasks)
    kept = draw(prompts, per_task, seed)
    assert kept == draw(prompts, per_task, seed)
    assert len({p.id for p in kept}) == len(kept)
    assert list(dict.fromkeys(p.task for p in kept)) == [
        t for t in dict.fromkeys(tasks) if per_task
    ]
    for task in set(tasks):
        numbers = [int(p.id) for p in kept if p.task == task]
        assert numbers == sorted(numbers)
        assert len(numbers) == min(per_task, tasks.count(task))


def test_sampling_reaches_every_prompt():
    prompts = prompts_of("a" * 10)
    drawn = [tuple(p.id for p in draw(prompts, 3, seed)) for seed in range(60)]
    assert {i for ids in drawn for i in ids} == {p.id for p in prompts}
    assert len(set(drawn)) > 30


def test_sampling_of_a_task_ignores_the_others():
    alone, mixed = prompts_of("aaaaaaaa"), prompts_of("aaaaaaaabbbb")
    assert draw(alone, 3, 5) == [p for p in draw(mixed, 3, 5) if p.task == "a"]


def slow_repeats(texts, n):
    """For each n-gram, whether an equal one starts earlier in its text."""
    seen = []
    for text in texts:
        for i in range(len(text) - n + 1):
            seen.append(any(list(text[j : j + n]) == list(text[i : i + n]) for j in range(i)))
    return sum(seen) / len(seen) if seen else 0.0


@HELD
@given(st.lists(st.lists(st.integers(0, 2), max_size=25), max_size=4), st.integers(1, 5))
def test_repeated_ngrams_equal_their_definition(rows, n):
    rows = [np.array(r, np.int32) for r in rows]
    assert repeated_ngrams(iter(rows), n) == slow_repeats(rows, n)


def test_loops_count_as_repetition():
    assert repeated_ngrams([np.arange(100)]) == 0.0
    assert repeated_ngrams([np.arange(100) % 10]) == 83 / 93
    assert (
        repeated_ngrams([np.arange(50), np.arange(50)]) == 0.0
    )  # another text's words are not repetition
