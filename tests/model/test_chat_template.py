"""Chat templates: turns become exactly the tokens that transformers would feed."""

import hashlib
import json

import pytest
from chat_models import BEGIN, CHAT, NO_SYSTEM, TURN, chat_tokenizer, save_chat_model, write_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from shell import command, refused
from transformers import AutoTokenizer

from real.model.checkpoint import load_tokenizer
from real.pair import TINY
from real.prompts import PromptError, PromptFormat, load_chat_template, messages, read_prompts
from simspec import load_trace

WORDS = st.text("what is the 42?<s>|\n ", max_size=20)
HELD = settings(deadline=None, max_examples=60, derandomize=True)


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


def test_tokens_are_those_of_transformers(folder, form, reference):
    @HELD
    @given(st.lists(WORDS, min_size=1, max_size=3), st.lists(WORDS, min_size=2, max_size=2), WORDS)
    def check(turns, answers, system):
        answers = answers[: len(turns) - 1]
        asked = PromptFormat(form.tokenizer, load_chat_template(folder, "auto", system))
        expected = theirs(reference, messages(turns, answers, system))
        assert asked.turns("task", turns, answers) == expected

    check()


def test_a_template_writes_the_only_first_token(form):
    begin = form.tokenizer.token_to_id(BEGIN)
    token = form.turns("t", ["what?"])
    assert token.count(begin) == 1
    assert token[0] == begin
    # control: encoded as other text is, the template's own would be doubled
    rendered = form.template.render(["what?"])
    assert form.tokenizer.encode(rendered).ids[:2] == [begin, begin]


def test_text_begins_as_transformers_begins_it(form, reference):
    for text in ("what is it", " x", "?"):
        assert form.text(text) == reference(text)["input_ids"]
    begin = form.tokenizer.token_to_id(BEGIN)
    rendered = f"{BEGIN}what is it"
    assert form.text(rendered) == form.text("what is it")
    assert reference(rendered)["input_ids"][:2] == [begin, begin]  # what must not happen


def test_styles_are_texts(folder, form):
    plain = PromptFormat(form.tokenizer, load_chat_template(folder, "none"))
    assert plain.template is None
    assert plain.turns("math", ["2+2?"]) == form.text("Question: 2+2?\nAnswer:")
    assert plain.turns("t", ["a", "b"], [" c"]) == form.text(
        "User: a\n\nAssistant: c\n\nUser: b\n\nAssistant:"
    )


def test_a_tokenizer_without_special_tokens_adds_none():
    form = PromptFormat(chat_tokenizer(begin=False))
    assert form.text("what") == form.tokenizer.encode("what").ids


def test_a_text_is_used_unchanged_beside_a_template(form, tmp_path):
    path = write_rows(
        tmp_path / "p.jsonl", {"task": "t", "text": "what"}, {"task": "t", "turns": ["what"]}
    )
    prompts, _ = read_prompts(path, form, 100)
    assert prompts[0].token == form.text("what")
    assert prompts[1].token == form.turns("t", ["what"])
    assert [p.turns for p in prompts] == [(), ("what",)]


def test_a_checkpoint_without_template_has_none(tmp_path):
    save_chat_model(tmp_path, template=None)
    assert load_chat_template(tmp_path) is None
    assert load_chat_template(TINY / "target") is None
    with pytest.raises(PromptError, match="a system prompt needs a chat template"):
        load_chat_template(tmp_path, "auto", "be brief")


def test_a_template_in_its_own_file_is_found(tmp_path):
    save_chat_model(tmp_path, template=None)
    (tmp_path / "chat_template.jinja").write_text(CHAT)
    assert load_chat_template(tmp_path).text == CHAT


def test_a_given_file_replaces_the_tokenizers_template(folder, tmp_path):
    file = tmp_path / "short.jinja"
    file.write_text("{{ messages[-1].content }}:")
    template = load_chat_template(folder, str(file), "unseen")
    assert template.render(["a", "b"], ["c"]) == "b:"
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    expected = {"template": "short.jinja", "sha256": digest, "system": "unseen"}
    assert template.metadata() == expected


@pytest.mark.parametrize(
    "content, words",
    [
        (None, "cannot be read as a chat template"),
        (b" \n", "is empty"),
        (b"\xff", "cannot be read as a chat template"),
        (b"x" * (1 << 21), "is over 1,048,576 bytes"),
    ],
)
def test_a_file_that_is_no_template_is_refused(folder, tmp_path, content, words):
    file = tmp_path / "t.jinja"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(PromptError, match=words) as caught:
        load_chat_template(folder, str(file))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "template, words",
    [
        (NO_SYSTEM, "no system prompt here"),
        ("{% for m in", "cannot render"),
        ("{{ messages[9].content }}", "cannot render"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "cannot render"),  # sandboxed
    ],
)
def test_a_template_that_fails_is_refused_in_one_line(folder, tmp_path, template, words):
    file = tmp_path / "t.jinja"
    file.write_text(template)
    with pytest.raises(PromptError, match=words) as caught:
        load_chat_template(folder, str(file), "be brief").render(["what?"])
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
    code, out, error = command(models, *ASKED, "--system", "be brief", "--json")
    assert code == 0, error
    card, trace = json.loads(out), load_trace(models / "t.parquet")
    digest = hashlib.sha256(CHAT.encode()).hexdigest()
    assert trace.meta.chat == {"template": "tokenizer", "sha256": digest, "system": "be brief"}
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
    chat = messages(["what is it?"], (), "be brief")
    assert first == theirs(AutoTokenizer.from_pretrained(models / "m" / "target"), chat)


def test_without_a_template_a_recording_states_none(models):
    code, _, error = command(models, *ASKED, "--chat-template", "none")
    assert code == 0, error
    assert load_trace(models / "t.parquet").meta.chat == {}
    assert "chat" not in json.loads((models / "t.json").read_text())


@pytest.mark.parametrize(
    "options, words",
    [
        (["--chat-template", "nowhere.jinja"], "expected auto, none or a Jinja file"),
        (["--chat-template", "none", "--system", "x"], "a system prompt needs a chat template"),
        (["--budget", 256], "leaves no room for a prompt in the models' context of 256"),
        (["--budget", 255], "holds no prompt of 1 to 1 tokens"),
    ],
)
def test_options_that_cannot_be_are_refused(models, options, words):
    refused(models, *ASKED, *options, words=words)
