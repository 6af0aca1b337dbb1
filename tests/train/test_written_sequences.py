"""What drafters learn from: text files, and sequences that a target writes."""

import json
import lzma
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from toy_checkpoint import prompt_file, qwen2_checkpoint, sentences
from toy_lm import toy_decoder, toy_prompts

from real.model.checkpoint import load_tokenizer
from real.model.target import Target
from real.prompts import PromptFormat
from real.record import Settings
from real.record import sequences as batch_writer
from real.record.sequences import target_sequence, target_sequences
from real.sampling import Rule
from real.train import sequences
from real.train.sequences import (
    FIRST_ADDRESS,
    LONGEST,
    LoadedTarget,
    Writing,
    conversation,
    is_greedy,
    learned_text,
    read_shard,
    read_text,
    write_sequences,
)
from real.train.settings import Training
from real.train.text import WINDOW, CorpusError, documents, split_prompts

DECODER = toy_decoder(2, spread=0.8)
MADE_FOR = {"weights": "w", "config": "c", "tokenizer": "t"}


def prompt_set(count=40, seed=0):
    return split_prompts(toy_prompts(count, seed), {}, seed)


def test_prompts_are_split_without_overlap():
    found = prompt_set(120)
    parts = [{tuple(p) for p in part} for part in (found.training, found.heldout)]
    assert not parts[0] & parts[1]
    assert parts[0] | parts[1] == {tuple(p) for p in toy_prompts(120)}
    assert len(found.heldout) == len(parts[0] | parts[1]) // 4
    assert len(found.training) == len(parts[0])
    assert prompt_set(120).sha256 == found.sha256 != prompt_set(120, 1).sha256
    with pytest.raises(ValueError, match="1 different prompts; expected at least 8"):
        split_prompts([[1, 2]] * 30, {}, 0)


def test_each_prompt_is_continued_greedily_once():
    number = np.arange(5 * 9)
    greedy = is_greedy(number, 9)
    assert np.bincount(number[greedy] % 9).tolist() == [1] * 9
    assert not greedy[18:].any()
    assert 4 <= greedy[:9].sum() <= 5


def writing(tokens, length, ends, seed, prompts=None, decoder=DECODER, made_for=MADE_FOR):
    loaded = LoadedTarget(decoder, decoder, None, made_for, ends)
    return Writing(loaded, prompts or prompt_set(), tokens, length, seed)


class Killed(Exception):
    pass


def test_sequences_equal_those_written_one_at_a_time(tmp_path):
    """Greedy ones and drawn ones, each ended at its first end token."""
    prompts, target = prompt_set(), Target(DECODER)
    found = write_sequences(writing(500, 9, (3, 7), 4), tmp_path)
    greedy = is_greedy(np.arange(len(found)), len(prompts.training))
    assert 0 < greedy.sum() < len(found)
    for i in range(0, len(found), 3):
        prompt, new_tokens = found.pair(i)
        rule = Rule() if greedy[i] else Rule("rejection", 1.0, 4)
        alone, _ = target_sequence(
            target, Settings(1, 9, rule, (3, 7), ()), prompt, FIRST_ADDRESS + i
        )
        assert prompt == prompts.training[i % len(prompts.training)]
        assert new_tokens.tolist() == alone.tolist()


def test_writing_resumes_and_grows(tmp_path):
    prompts = prompt_set()

    def write(folder, tokens=1500, stop=None):
        def progress(label, done, total, note=""):
            if stop is not None and done >= stop:
                raise Killed

        return write_sequences(writing(tokens, 6, (3, 7), 4), folder, progress)

    whole = write(tmp_path / "a")
    for stop in (1, 900):
        with pytest.raises(Killed):
            write(tmp_path / "b", stop=stop)
    held = {p: p.stat().st_mtime_ns for p in (tmp_path / "b").rglob("*.safetensors")}
    assert 2 <= len(held) < len(list((tmp_path / "a").rglob("*.safetensors")))
    resumed = write(tmp_path / "b")
    assert all(p.stat().st_mtime_ns == written for p, written in held.items())
    assert np.array_equal(resumed.token, whole.token)
    assert np.array_equal(resumed.offset, whole.offset)
    assert whole.new_tokens >= 1500
    more = write(tmp_path / "b", tokens=2500)
    assert np.array_equal(more.token[: len(whole.token)], whole.token)
    assert more.new_tokens >= 2500
    again = write(tmp_path / "b")
    assert np.array_equal(again.token, whole.token)
    learned = np.concatenate([whole.pair(i)[1] for i in range(len(whole))])
    assert np.array_equal(whole.learned(), learned)
    assert all(whole.pair(i)[0] in prompts.training for i in range(len(whole)))
    for i in range(len(whole)):
        new_tokens = whole.pair(i)[1]
        assert not np.isin(new_tokens[:-1], (3, 7)).any()
        assert len(new_tokens) == 6 or new_tokens[-1] in (3, 7)


@pytest.mark.parametrize(
    "changed, name",
    [
        ({"prompts": prompt_set(seed=1)}, "prompts"),
        ({"length": 5}, "length"),
        ({"seed": 5}, "seed"),
        ({"ends": (4,)}, "end_tokens"),
        ({"made_for": MADE_FOR | {"weights": "x"}}, "target"),
        ({"decoder": toy_decoder(2, spread=0.8).to(torch.float32)}, "dtype"),
    ],
)
def test_sequences_of_another_making_are_refused(tmp_path, changed, name):
    given = {"tokens": 50, "length": 6, "ends": (3,), "seed": 4}
    write_sequences(writing(**given), tmp_path)
    with pytest.raises(ValueError, match=f"was made with {name} .*; choose another --work"):
        write_sequences(writing(**given | changed), tmp_path)


def test_damaged_shards_are_named(tmp_path):
    write_sequences(writing(50, 6, (3,), 4), tmp_path)
    path = tmp_path / "sequences" / "00000.safetensors"
    whole = path.read_bytes()
    for damaged in (b"", whole[:-4], whole[:8] + b"[" + whole[9:]):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="00000.safetensors is damaged") as caught:
            read_shard(path)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "rule", [Rule(), Rule("coupled", 1.0, 4), Rule("rejection", 1.0, 4)], ids=lambda rule: rule.name
)
def test_sequences_looked_at_rarely_equal_those_written_one_at_a_time(monkeypatch, rule):
    """As on a GPU: what follows an end token is dropped, and no sequence outgrows its budget."""
    prompts = [[5], *toy_prompts(21), [4], [4]]
    addresses = [7 * i + 1 for i in range(len(prompts))]
    alone = Settings(1, 40, rule, (3, 7), (), (), 1)
    wanted = target_sequences(Target(DECODER), alone, prompts, addresses)
    monkeypatch.setitem(batch_writer.CHECKED, "cpu", 16)
    for batch in (2, 5, 40):
        looked_at_rarely(wanted, replace(alone, batch=batch), prompts, addresses)


def looked_at_rarely(wanted, written, prompts, addresses):
    found = {}
    batch_writer.write_batch(
        DECODER, written, dict(enumerate(zip(prompts, addresses))), written.batch,
        lambda i, tokens, evidence: found.update({i: (tokens, len(evidence))}), False,
    )  # fmt: skip
    assert [found[i] for i in range(len(prompts))] == [
        (tokens.tolist(), len(tokens)) for tokens, _ in wanted
    ]
    assert len({len(tokens) for tokens, _ in wanted}) > 3


def test_a_batch_holds_no_more_than_its_cache_may(monkeypatch):
    one, batches = DECODER.cache(capacity=1), []

    def listed(target, settings, asked, *given):
        batches.append(settings.batch)
        return [(np.zeros(1, np.int32), None) for _ in asked]

    monkeypatch.setitem(sequences.CACHE_BYTES, "cpu", 60 * (one.key.nbytes + one.value.nbytes))
    monkeypatch.setattr(sequences, "target_sequences", listed)
    asked = [[1] * 14, [1] * 4], np.arange(2), np.ones(2, bool), 6
    sequences._continued(writing(50, 6, (3,), 4), DECODER, *asked)
    assert batches[0] == 3


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
    # characters that only look like line ends
    assert [t for t, _ in texts][0] == "packed\u2028é\x85"
    assert [t for t, _ in texts][2:] == ["one", "two", "# title"]


PACKED = lzma.compress(jsonl(*({"text": str(i)} for i in range(2000))).encode())
UNFIT = {
    **{line: ("t.jsonl", jsonl({"text": "fine"}).encode() + line + b"\n", f"line 2: {words}")
       for line, words in ((b"not json", "expected a JSON object"),
                           (b'{"body": "x"}', "expected a JSON object"),
                           (b'["text"]', "expected a JSON object"),
                           (b'{"text": 5}', '"text" is int'),
                           (b'{"text": null}', '"text" is NoneType'),
                           (b"", "expected a JSON object"))},
    "cut": ("cut.jsonl.xz", PACKED[:-20], "cut.jsonl.xz"),
    "not packed": ("no.jsonl.xz", b"plain", "no.jsonl.xz"),
    "not UTF-8": ("latin.txt", b"caf\xe9", "latin.txt"),
}  # fmt: skip


@pytest.mark.parametrize("kind", UNFIT)
def test_lines_without_text_and_damaged_files_are_refused_by_name(tmp_path, kind):
    name, content, words = UNFIT[kind]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CorpusError, match=words) as caught:
        list(documents([tmp_path / name]))
    assert "\n" not in str(caught.value)


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
