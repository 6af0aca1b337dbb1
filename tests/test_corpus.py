"""Documents round-trip byte for byte; training windows are a function of (seed, step)."""

import json
import lzma

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from real.train.corpus import END, CorpusError, documents, encode, train_tokenizer, windows

HELD = settings(deadline=None, max_examples=60, derandomize=True)
STORY = [
    "The cat sat on the mat 12 times; the cats sat on mats.",
    "A café, naïve façade: 37 + 5 = 42.",
    "def f(x): return x",
]
TOKENIZER = train_tokenizer(STORY * 3, 300)


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


@HELD
@given(st.text())
def test_tokenizer_round_trips_any_text(text):
    assert TOKENIZER.decode(TOKENIZER.encode(text).ids) == text


def test_tokenizer_follows_its_specification():
    assert TOKENIZER.token_to_id(END) == 0
    assert TOKENIZER.get_vocab_size() == 300
    long = TOKENIZER.encode("the cat sat").ids
    assert len(long) < len("the cat sat")  # merges were learnt
    digits = [TOKENIZER.decode([i]) for i in TOKENIZER.encode("1212").ids]
    assert digits == list("1212")


def test_tokenizer_training_is_deterministic(tmp_path):
    assert train_tokenizer(STORY * 3, 300).to_str() == TOKENIZER.to_str()
    TOKENIZER.save(str(tmp_path / "t.json"))
    assert (
        Tokenizer.from_file(str(tmp_path / "t.json")).encode(STORY[1]).ids
        == TOKENIZER.encode(STORY[1]).ids
    )


@HELD
@given(st.lists(st.text(max_size=12), max_size=7), st.integers(1, 4))
def test_encode_ends_every_text(texts, batch):
    encoded = encode(TOKENIZER, iter(texts), batch)
    wanted = [token for text in texts for token in [*TOKENIZER.encode(text).ids, 0]]
    assert encoded.tolist() == wanted
    assert encoded.dtype == np.uint16


def test_large_vocabularies_get_wider_tokens():
    large = Tokenizer(
        models.WordLevel({END: 0, **{f"w{i}": i for i in range(1, 70_000)}}, unk_token=END)
    )
    large.pre_tokenizer = pre_tokenizers.Whitespace()
    encoded = encode(large, ["w1 w69999"])
    assert encoded.tolist() == [1, 69_999, 0]
    assert encoded.dtype == np.uint32


@HELD
@given(
    st.integers(1, 20),
    st.integers(2, 60),
    st.integers(0, 5),
    st.integers(0, 99),
    st.integers(0, 999),
)
def test_windows_are_contiguous(length, extra, rows, seed, step):
    token = np.arange(length + extra, dtype=np.uint16) + 7
    batch = windows(token, rows, length, seed, step)
    assert batch.shape == (rows, length + 1)
    assert batch.dtype == np.int64
    assert (np.diff(batch, axis=1) == 1).all()
    assert (batch >= 7).all()
    assert (batch < 7 + len(token)).all()
    assert np.array_equal(batch, windows(token, rows, length, seed, step))


def test_windows_are_addressed_by_seed_and_step():
    token = np.arange(100_000)
    drawn = {
        (seed, step): tuple(windows(token, 4, 8, seed, step)[:, 0])
        for seed in range(5)
        for step in range(40)
    }
    assert len(set(drawn.values())) == len(drawn)
    starts = np.concatenate([windows(token[:30], 50, 8, 0, step)[:, 0] for step in range(20)])
    assert set(starts) == set(
        range(21)
    )  # everywhere in the text (its very last token is never requested)


def test_too_few_tokens_for_a_window_are_refused():
    assert windows(np.arange(10), 3, 8, 0, 0).tolist() == [list(range(9))] * 3
    with pytest.raises(CorpusError, match="9 tokens; training on windows of 8 needs more"):
        windows(np.arange(9), 3, 8, 0, 0)
