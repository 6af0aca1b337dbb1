"""Documents of text files, and text that is learned as it is: templates, windows, resuming."""

import json
import lzma
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shell import command
from toy_checkpoint import prompt_file, qwen2_checkpoint, sentences

from real.model.checkpoint import load_tokenizer
from real.prompts import PromptFormat
from real.train.sequences import LONGEST, conversation, learned_text, read_text
from real.train.settings import Training
from real.train.text import WINDOW, CorpusError, documents


def jsonl(*rows):
    return "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "b.txt").write_text("plain\r\ntext", encoding="utf-8", newline="")
    (tmp_path / "c.jsonl").write_text(
        jsonl({"text": "one"}, {"text": "two", "source": "web"}), encoding="utf-8"
    )
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "z.jsonl.xz").write_bytes(
        lzma.compress(jsonl({"text": "packed\u2028é\x85"}).encode())
    )
    (tmp_path / "d.md").write_text("# title", encoding="utf-8")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    return tmp_path


def test_folders_are_read_in_order(folder):
    texts = [(d["text"], d["source"]) for d in documents([folder])]
    assert [s for _, s in texts] == ["z.jsonl.xz", "b.txt", "c.jsonl", "web", "d.md"]
    assert [t for t, _ in texts][
        0
    ] == "packed\u2028é\x85"  # characters that only look like line ends
    assert [t for t, _ in texts][2:] == ["one", "two", "# title"]


def test_files_are_read_in_the_given_order(folder):
    twice = [folder / "d.md", folder / "c.jsonl", folder / "d.md"]
    assert [d["text"] for d in documents(twice)] == ["# title", "one", "two", "# title"]


def refused(words, path):
    with pytest.raises(CorpusError, match=words) as caught:
        list(documents([path]))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "line, words",
    [
        ("not json", "line 2: expected a JSON object"),
        ('{"body": "x"}', "line 2: expected a JSON object"),
        ('["text"]', "line 2: expected a JSON object"),
        ('{"text": 5}', 'line 2: "text" is int'),
        ('{"text": null}', 'line 2: "text" is NoneType'),
        ("", "line 2: expected a JSON object"),
    ],
)
def test_lines_without_text_are_refused(tmp_path, line, words):
    path = tmp_path / "t.jsonl"
    path.write_text(jsonl({"text": "fine"}) + line + "\n")
    refused(words, path)


def test_paths_without_text_are_refused(folder, tmp_path_factory):
    refused("does not exist", folder / "nowhere.txt")
    refused("is not .txt", folder / "picture.png")
    refused("holds no .txt", tmp_path_factory.mktemp("empty"))


def test_damaged_files_are_refused_by_name(folder):
    packed = lzma.compress(jsonl(*({"text": str(i)} for i in range(2000))).encode())
    for name, content in (
        ("cut.jsonl.xz", packed[:-20]),
        ("no.jsonl.xz", b"plain"),
        ("latin.txt", b"caf\xe9"),
    ):
        (folder / name).write_bytes(content)
        refused(name, folder / name)


TURNS = st.lists(st.tuples(st.sampled_from(["a b", "c"]), st.sampled_from(["d\n\ne", "f"])))


@pytest.fixture(scope="module")
def chats(tmp_path_factory):
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


def test_a_conversation_takes_the_template_and_ends_with_its_answer(chats):
    template = SimpleNamespace(
        render=lambda turns, answers: "|".join([*turns, *answers]), metadata=dict
    )
    tokenizer = load_tokenizer(chats / "qwen")
    form = PromptFormat(tokenizer, template)
    chat = "User: one\n\nAssistant: two\n\nUser: three\n\nAssistant: four"
    whole = form._encode("one|three|two") + form._encode("four")
    assert read_text(form, chat) == whole
    assert read_text(PromptFormat(tokenizer), chat) == PromptFormat(tokenizer).text(chat)


def test_sequences_are_the_text_in_order_and_kept(chats, tmp_path):
    form = PromptFormat(load_tokenizer(chats / "qwen"))

    def learned(tokens, work=tmp_path):
        text, prompts = (str(chats / "text.jsonl"),), (chats / "train.jsonl",)
        given_ = {"text": text, "prompts": prompts, "work": work, "learn_text": tokens}
        return learned_text(Training("eagle", tmp_path / "m", **given_), form)

    ((found,), source) = learned(2000)
    rows = [json.loads(line)["text"] for line in (chats / "text.jsonl").read_text().splitlines()]
    expected = []
    for row in rows:
        ids = form.text(row)
        parts = [ids[i : i + LONGEST] for i in range(0, len(ids), LONGEST)]
        expected += [part for part in parts if len(part) >= WINDOW]
    held = [found.sequence(i).tolist() for i in range(len(found))]
    assert held == expected[: len(held)]
    assert 2000 <= sum(map(len, held)) < 2000 + LONGEST
    assert (found.prompt == 1).all()
    ((again,), _) = learned(2000)
    assert np.array_equal(again.token, found.token)
    assert source["files"].keys() == {"text.jsonl"}
    with pytest.raises(ValueError, match="was made with tokens 2000, now 3000"):
        learned(3000)
    with pytest.raises(ValueError, match="bring more text, or lower --learn-text"):
        learned(10**8, tmp_path / "other")


def test_a_drafter_learns_text_and_unrolled_steps(chats):
    given_ = ("--target", "qwen", "--prompts", "train.jsonl", "--out", "models", "--steps", "6",
              "--distil-tokens", "1500", "--learn-text", "2000", "--json")  # fmt: skip
    options = ("text.jsonl", "--set", "unroll=2")
    code, out, error = command(chats, "train", "eagle", *options, *given_)
    assert code == 0, error
    card = json.loads(out)
    assert card["asked"]["loss"]["unroll"] == 2
    assert card["text"]["learned_text"]["tokens"] == 2000
    assert card["text"]["text_files"] == {}  # learned, and not continued
