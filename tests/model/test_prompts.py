"""Prompts: styles by task, draws by seed, and chat templates as transformers reads them."""

import hashlib
import json

import numpy as np
import pytest
from chat_models import BEGIN, CHAT, TURN, save_chat_model, write_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from shell import command, said_within
from toy_tokenizer import train_tokenizer
from transformers import AutoTokenizer

from real.model.checkpoint import load_tokenizer
from real.pair import TINY
from real.prompts import (
    LeftOut,
    Prompt,
    PromptError,
    PromptFormat,
    draw,
    load_chat_template,
    messages,
    read_prompts,
)
from simspec import load_trace
from simspec.trace.acceptance import repeated_ngrams

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


def test_line_of_100_megabytes_is_refused_before_it_is_read_whole(tmp_path):
    """Its tokens would take 29 GB of memory."""
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"task": "t", "text": "' + "a " * 50_000_000 + '"}')
    said = said_within(64 << 20, lambda: read_prompts(path, PLAIN, 100))
    assert "prompts: line 1: expected at most 2,097,152 bytes a line and" in said


def test_only_newlines_end_a_line(tmp_path):
    odd = "a\u2028b\x85c\u2029d\x1ee"
    path = tmp_path / "prompts.jsonl"
    path.write_text(
        json.dumps({"task": "t", "text": "a\u2028b\x85c\u2029d"}, ensure_ascii=False)
        + "\r\n"
        + json.dumps({"task": "t", "text": odd})
    )
    assert texts(path) == ["a\u2028b\x85c\u2029d", odd]


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


WORDS = st.text("what is the 42?<s>|\n ", max_size=20)
CHATS = settings(deadline=None, max_examples=60, derandomize=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("chat")
    save_chat_model(path)
    return path


@pytest.fixture(scope="module")
def reference(folder):
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def form(folder):
    return PromptFormat(load_tokenizer(folder), load_chat_template(folder))


def theirs(reference, chat):
    return reference.apply_chat_template(
        chat, tokenize=True, add_generation_prompt=True, return_dict=False
    )


def test_tokens_are_those_of_transformers(form, reference):
    @CHATS
    @given(st.lists(WORDS, min_size=1, max_size=3), st.lists(WORDS, min_size=2, max_size=2))
    def check(turns, answers):
        answers = answers[: len(turns) - 1]
        expected = theirs(reference, messages(turns, answers))
        assert form.turns("task", turns, answers) == expected

    check()


def test_a_template_writes_the_only_first_token(form):
    begin = form.tokenizer.token_to_id(BEGIN)
    token = form.turns("t", ["what?"])
    assert token.count(begin) == 1
    assert token[0] == begin
    # control: encoded as other text is, the template's own would be doubled
    rendered = form.template.render(["what?"])
    assert form.tokenizer.encode(rendered).ids[:2] == [begin, begin]


def test_a_text_is_used_unchanged_beside_a_template(form, tmp_path):
    path = write_rows(
        tmp_path / "p.jsonl", {"task": "t", "text": "what"}, {"task": "t", "turns": ["what"]}
    )
    prompts, _ = read_prompts(path, form, 100)
    assert prompts[0].token == form.text("what")
    assert prompts[1].token == form.turns("t", ["what"])


def test_a_checkpoint_without_template_has_none(tmp_path):
    save_chat_model(tmp_path, template=None)
    assert load_chat_template(tmp_path) is None
    assert load_chat_template(TINY / "target") is None


def test_a_given_file_replaces_the_tokenizers_template(folder, tmp_path):
    file = tmp_path / "short.jinja"
    file.write_text("{{ messages[-1].content }}:")
    template = load_chat_template(folder, str(file))
    assert template.render(["a", "b"], ["c"]) == "b:"
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    expected = {"template": "short.jinja", "sha256": digest, "system": ""}
    assert template.metadata() == expected


@pytest.mark.parametrize(
    "content, words",
    [
        (None, "cannot be read as a chat template"),
        (b" \n", "is empty"),
        (b"\xff", "cannot be read as a chat template"),
        (b"x" * (1 << 21), "is over 1,048,576 bytes"),
        (b"{% for m in", "cannot render"),
        (b"{{ messages[9].content }}", "cannot render"),
        (b"{{ ''.__class__.__mro__[1].__subclasses__() }}", "cannot render"),  # sandboxed
    ],
)
def test_a_file_that_is_no_template_is_refused_in_one_line(folder, tmp_path, content, words):
    file = tmp_path / "t.jinja"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(PromptError, match=words) as caught:
        load_chat_template(folder, str(file)).render(["what?"])
    assert "\n" not in str(caught.value)


def test_a_tokenizer_with_code_of_its_own_is_refused(tmp_path):
    save_chat_model(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    config |= {"tokenizer_class": "Mine", "auto_map": {"AutoTokenizer": ["mine.Mine", None]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "mine.py").write_text("raise SystemExit('it ran')")
    with pytest.raises(PromptError, match="cannot be loaded"):
        load_chat_template(tmp_path)


@pytest.fixture
def models(tmp_path):
    """A model folder with a chat target, and prompts for it."""
    save_chat_model(tmp_path / "m" / "target")
    write_rows(
        tmp_path / "p.jsonl",
        {"id": "a", "task": "t", "turns": ["what is it?", "and this?"]},
        {"id": "b", "task": "t", "text": "what"},
        {"id": "c", "task": "t", "turns": ["what " * 300]},
        {"id": "d", "task": "t", "text": ""},
    )
    return tmp_path


ASKED = (
    "record", "p.jsonl", "--models", "m", "--drafter", "prompt_lookup", "-k", 2, "--budget", 6,
    "--out", "t.parquet",
)  # fmt: skip


def test_a_recording_states_its_template_and_what_it_leaves_out(models):
    code, out, error = command(models, *ASKED, "--json")
    assert code == 0, error
    card, trace = json.loads(out), load_trace(models / "t.parquet")
    digest = hashlib.sha256(CHAT.encode()).hexdigest()
    assert trace.meta.chat == {"template": "tokenizer", "sha256": digest, "system": ""}
    assert card["chat"] == trace.meta.chat
    assert {k: card["prompts"][k] for k in ("read", "empty", "too_long", "limit", "recorded")} == {
        "read": 4, "empty": 1, "too_long": 1, "limit": 250, "recorded": 2,
    }  # fmt: skip
    assert (
        f"left out 2 of 4 prompts: 1 over 250 tokens (longest {card['prompts']['longest']:,})"
        in (error)
    )
    tokenizer = load_tokenizer(models / "m" / "target")
    assert tokenizer.token_to_id(TURN) in trace.meta.end_tokens
    first = trace.prompt[: trace.prompt_offset[1]].tolist()
    chat = messages(["what is it?"], ())
    assert first == theirs(AutoTokenizer.from_pretrained(models / "m" / "target"), chat)
