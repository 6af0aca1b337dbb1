"""Text that drafters learn as it is: conversations in the template, windows, and resuming."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shell import command, refused
from toy_checkpoint import prompt_file, qwen2_checkpoint, sentences

from real.model.checkpoint import load_tokenizer
from real.prompts import PromptFormat
from real.train.learned_text import LONGEST, conversation, learned_text, read_text
from real.train.prompt_set import WINDOW

TURNS = st.lists(st.tuples(st.sampled_from(["a b", "c"]), st.sampled_from(["d\n\ne", "f"])))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("learned")
    qwen2_checkpoint(path / "qwen")
    prompt_file(path / "train.jsonl", 48)
    words = sentences(400, seed=3)
    rows = [{"text": " ".join(words[i : i + 40])} for i in range(0, 400, 20)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (path / "text.jsonl").write_text(lines)
    return path


@given(TURNS)
def test_a_conversation_is_read_back(turns):
    text = "\n\n".join(f"User: {user}\n\nAssistant: {answer}" for user, answer in turns)
    found = conversation(text)
    assert found == ((([u for u, _ in turns], [a for _, a in turns])) if turns else None)


@pytest.mark.parametrize(
    "text",
    ["", "plain", "User: a", "Assistant: a\n\nUser: b", "x\n\nUser: a\n\nAssistant: b",
     "User: a\n\nUser: b", "User: a\n\nAssistant: "],
)  # fmt: skip
def test_other_text_is_no_conversation(text):
    assert conversation(text) is None


def test_a_conversation_takes_the_template_and_ends_with_its_answer(folder):
    template = SimpleNamespace(
        render=lambda turns, answers: "|".join([*turns, *answers]), metadata=dict
    )
    tokenizer = load_tokenizer(folder / "qwen")
    form = PromptFormat(tokenizer, template)
    chat = "User: one\n\nAssistant: two\n\nUser: three\n\nAssistant: four"
    whole = form._encode("one|three|two") + form._encode("four")
    assert read_text(form, chat) == whole
    assert read_text(PromptFormat(tokenizer), chat) == PromptFormat(tokenizer).text(chat)


def test_sequences_are_the_text_in_order_and_kept(folder, tmp_path):
    form = PromptFormat(load_tokenizer(folder / "qwen"))
    given_ = form, [str(folder / "text.jsonl")], 2000
    found, source = learned_text(*given_, tmp_path)
    rows = [json.loads(line)["text"] for line in (folder / "text.jsonl").read_text().splitlines()]
    expected = []
    for row in rows:
        ids = form.text(row)
        parts = [ids[i : i + LONGEST] for i in range(0, len(ids), LONGEST)]
        expected += [part for part in parts if len(part) >= WINDOW]
    held = [found.sequence(i).tolist() for i in range(len(found))]
    assert held == expected[: len(held)]
    assert 2000 <= sum(map(len, held)) < 2000 + LONGEST
    assert (found.prompt == 1).all()
    again, _ = learned_text(*given_, tmp_path)
    assert np.array_equal(again.token, found.token)
    assert source["files"].keys() == {"text.jsonl"}
    with pytest.raises(ValueError, match="was made with tokens 2000, now 3000"):
        learned_text(*given_[:2], 3000, tmp_path)
    with pytest.raises(ValueError, match="bring more text, or lower --learn-text"):
        learned_text(*given_[:2], 10**8, tmp_path / "other")


def test_a_drafter_learns_text_and_unrolled_steps(folder):
    given_ = ("--target", "qwen", "--prompts", "train.jsonl", "--out", "models", "--steps", "6",
              "--toy", "--distil-tokens", "1500", "--learn-text", "2000", "--json")  # fmt: skip
    options = ("text.jsonl", "--set", "unroll=2")
    code, out, error = command(folder, "train", "eagle", *options, *given_)
    assert code == 0, error
    card = json.loads(out)
    assert card["asked"]["loss"]["unroll"] == 2
    assert card["text"]["learned_text"]["tokens"] == 2000
    assert card["text"]["text_files"] == {}  # learned, and not continued


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("eagle", "--target", "qwen", "--prompts", "train.jsonl"), "none are named"),
        (("eagle", "text.jsonl", "--target", "qwen"), "name prompts to continue by --prompts"),
        (("text.jsonl",), "are for one drafter"),
    ],
)
def test_unfit_requests_are_refused(folder, arguments, words):
    given_ = ("--out", "none", "--toy", "--steps", "1", "--learn-text", "500")
    refused(folder, "train", *arguments, *given_, words=words, progress=True)
