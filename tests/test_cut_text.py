"""Text that drafters learn: shares by domain, and nothing that the exhibit holds."""

import json
import lzma

import cut_text

SHOWN = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen"


def cut(tmp_path, monkeypatch, documents, questions=2, times=1):
    monkeypatch.setattr(cut_text, "QUESTIONS", questions)
    monkeypatch.setattr(cut_text, "CHARACTERS", {"dialogue": 60, "code": 30})
    monkeypatch.setattr(cut_text, "LONGEST_DOCUMENT", 80)
    with lzma.open(tmp_path / "train-00000.jsonl.xz", "wt", encoding="utf-8") as file:
        for source, text in documents:
            file.write(json.dumps({"source": source, "text": text}) + "\n")
    (tmp_path / "shown.jsonl").write_text(json.dumps({"turns": [SHOWN]}) + "\n")
    cut_text.main(tmp_path, tmp_path / "shown.jsonl", tmp_path / "out", times)
    chats, texts = (
        [json.loads(line) for line in (tmp_path / "out" / name).read_text().splitlines()]
        for name in ("chat.jsonl", "text.jsonl")
    )
    return [row["turns"][0] for row in chats], [row["text"] for row in texts]


def chat(asked):
    return cut_text.CHAT + "open_qa", f"User: {asked}\n\nAssistant: It is."


def test_shares_are_kept_and_other_domains_left_out(tmp_path, monkeypatch):
    code = "x = 1\n" * 20
    chats, texts = cut(
        tmp_path,
        monkeypatch,
        [
            ("math/gsm8k:train", "Question: 1 + 1?"),
            chat("What is red?"),
            ("code/a:b.py", code),
            ("code/a:c.py", code),
            chat("What is blue?"),
            chat("What is green?"),
            ("dialogue/other:x", "User: Hello.\n\nAssistant: Hello."),
            ("dialogue/other:y", "User: " + "long " * 20),
        ],
    )
    assert chats == ["What is red?", "What is blue?"]
    assert texts == [
        code[:80],  # one document reaches the 30 characters of code
        "User: What is green?\n\nAssistant: It is.",  # beyond the questions: text
        "User: Hello.\n\nAssistant: Hello.",
    ]


def test_twice_as_much_is_cut_where_asked(tmp_path, monkeypatch):
    documents = [chat(f"What is {i}?") for i in range(6)] + [
        ("code/a", f"x = {i}") for i in range(20)
    ]
    once = cut(tmp_path, monkeypatch, documents)
    twice = cut(tmp_path, monkeypatch, documents, times=2)
    assert [len(part) for part in once] == [2, 2 + 6]
    assert [len(part) for part in twice] == [4, 2 + 12]


def test_what_the_exhibit_holds_is_left_out(tmp_path, monkeypatch, capsys):
    copied, near = SHOWN.upper() + "!", " ".join(SHOWN.split()[:12])
    documents = [chat(copied), ("code/a:b", copied), chat(near), ("code/a:c", near)]
    chats, texts = cut(tmp_path, monkeypatch, documents)
    assert chats == [near]
    assert texts == [near]  # 12 words in a row are no copy
    assert "left out: 2 documents" in capsys.readouterr().out
