"""advise looks at the texts first: answers that end at once, loops, prompts without a template."""

import json
from pathlib import Path

import numpy as np
import pytest
from chat_models import BEGIN, CHAT, save_chat_model, write_rows
from hypothesis import given
from hypothesis import strategies as st
from shell import command
from test_advise import REQUESTS, SHORT, a_log, engine, fake_engine, small  # noqa: F401
from toy_gguf import write_gguf

import real.commands.advise
from real.commands.advise import Advise
from real.engines.advise import log_rows
from real.engines.answers import NothingToDraft, answer_faults
from simspec.engines.text import WrittenText

LOOP, PLAIN, ENDED = [7, 8, 9] * 9, list(range(30)), [5, 3]


def rows(*answers):
    """Rows of a log with these answers."""
    prompt = np.array([1])
    given = [
        WrittenText(str(i), "t", prompt, np.array(answer), len(answer))
        for i, answer in enumerate(answers)
    ]
    return log_rows(given)[0]


TOKENS = st.integers(0, 9)


@given(st.lists(TOKENS, max_size=20), st.lists(TOKENS, min_size=1, max_size=8))
def test_an_ngram_repeated_to_the_end_is_a_loop_whatever_came_before(start, ngram):
    """At most len(start) + len(ngram) of its 8-grams are new."""
    times = -(-(len(start) + 7) // len(ngram)) + 2
    assert answer_faults(rows(start + ngram * times))


@pytest.mark.parametrize("text", [
    PLAIN,
    [*LOOP, *PLAIN],  # which goes on
    [*PLAIN, *PLAIN, 5, 5, 5, 5],  # a line of dots
    [1, 2, 3, 1, 4, 3, 1, 2, 3, 1, 5, 3, 1, 4],  # and the, and the
])  # fmt: skip
def test_control_texts_of_people_are_no_loops(text):
    assert answer_faults(rows(text)) == []


@pytest.mark.parametrize(
    "answers, said",
    [
        ([PLAIN] * 10, []),
        ([PLAIN] * 8 + [LOOP] * 2, []),
        ([PLAIN] * 7 + [LOOP] * 3, ["3 of 10 answers repeat themselves"]),
        ([ENDED] * 5 + [PLAIN] * 5, []),
    ],
)
def test_faults_are_told_with_their_remedy(answers, said):
    found = answer_faults(rows(*answers))
    for line, start in zip(found, said, strict=True):
        assert line.startswith(start)
        assert ": " in line
    with pytest.raises(NothingToDraft, match="6 of 10 answers end .*leave --raw out"):
        answer_faults(rows(*[ENDED] * 6, *[PLAIN] * 4), raw=True)


def asked(folder):
    """The prompts' tokens that advise sends to the model in this folder."""
    texts = ({"id": f"q{i}", "task": "t", "text": f"what is {i}?"} for i in range(16))
    made = Advise("vllm", Path("a"), folder, write_rows(folder / "p.jsonl", *texts), budget=8)
    template = real.commands.advise._template(folder, folder)
    return [request.prompt for request in REQUESTS(made, folder, 200, template)[0]]


def test_text_goes_through_the_models_template(tmp_path):
    tokenizer = save_chat_model(tmp_path)
    written = f"{BEGIN}<|user|>\nwhat is 0?<|end|>\n<|assistant|>\n"
    expected = tokenizer.encode(written, add_special_tokens=False).ids
    assert asked(tmp_path)[0] == tuple(expected)
    save_chat_model(tmp_path, template=None)
    assert asked(tmp_path)[0] == tuple(tokenizer.encode("what is 0?").ids)


def test_a_template_that_only_the_gguf_holds_is_used(tmp_path):
    save_chat_model(tmp_path / "t", template=None)
    write_gguf(tmp_path / "m.gguf")
    template = real.commands.advise._template(tmp_path / "m.gguf", tmp_path / "t")
    assert template.text == CHAT
    assert template.render(["hi"]).startswith(f"{BEGIN}<|user|>\nhi")


def test_a_text_that_a_template_has_written_is_refused(tmp_path):
    from real.model.checkpoint import load_tokenizer
    from real.prompts import PromptError, PromptFormat, load_chat_template, read_prompts

    save_chat_model(tmp_path)
    form = PromptFormat(load_tokenizer(tmp_path), load_chat_template(tmp_path))
    path = write_rows(tmp_path / "p.jsonl", {"id": "a", "task": "t", "text": "<|user|>\nhi<|end|>"})
    assert read_prompts(path, form, 100)[0][0].token == form.text("<|user|>\nhi<|end|>")
    with pytest.raises(PromptError, match=r"prompt 'a': .*'<\|user\|>'.*give --raw"):
        read_prompts(path, form, 100, asked=True)


@pytest.fixture
def answers(small, monkeypatch):  # noqa: F811
    """Sets what the small engine answers: a function of a request's number and its own answer."""
    made = real.engines.Worker

    def set_answers(answer):
        def worker(*given):
            runner = made(*given)
            runner.world = {p: answer(i, f) for i, (p, f) in enumerate(runner.world.items())}
            return runner

        monkeypatch.setattr(real.engines, "Worker", worker)

    return set_answers


def test_answers_that_end_at_once_stop_the_command(small, answers):  # noqa: F811
    answers(lambda i, future: [3, *future])
    code, out, error = command(small.folder, *SHORT, "--out", "a")
    *_, last = error.strip().splitlines()
    assert (code, out) == (1, "")
    assert last.startswith("simspec: 8 of 8 answers end after a token or two, which leaves too")
    assert not any(line.startswith("simspec: 2/4") for line in error.splitlines())
    assert not list((small.folder / "a").glob("*.jsonl"))


def test_loops_are_told_in_a_line_and_in_the_advice(small, answers):  # noqa: F811
    answers(lambda i, future: [1] * 80)
    code, _, error = command(small.folder, *SHORT, "--budget", 16, "--out", "a")
    assert code in (0, 1)
    found = json.loads((small.folder / "a" / "advice.json").read_text())
    assert error.count("answers repeat themselves") == 1
    assert [line[:6] for line in found["remarks"]] == ["8 of 8"]


def test_control_healthy_answers_are_not_spoken_of(small, answers):  # noqa: F811
    answers(lambda i, future: np.random.default_rng(i).integers(0, 3, 80).tolist())
    _, _, error = command(small.folder, *SHORT, "--out", "a")
    assert "answers" not in error
    assert json.loads((small.folder / "a" / "advice.json").read_text())["remarks"] == []


def test_a_log_is_looked_at_too(small):  # noqa: F811
    a_log(small.folder, output=[3])
    given = "advise", "vllm", "--log", "log.jsonl", "--cost", "c.json", "--out", "a"
    code, out, error = command(small.folder, *given)
    assert (code, out, "40 of 40 answers end after a token or two" in error) == (1, "", True)
