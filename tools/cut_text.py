"""Cuts what drafters learn besides the prompts of public sets: chats, code and prose of a corpus.

Usage: python tools/cut_text.py DATA EXHIBIT.jsonl FOLDER [TIMES]

FOLDER/chat.jsonl has questions of a chat data set, which the target answers; FOLDER/text.jsonl has
text to learn as it is, in shares by domain, without the maths. No document shares 13 words in a row
with a prompt of the exhibit (`leakage`). Documents keep the order of the shards, which is random.
TIMES as much is cut of both, for a GPU.
"""

import json
import lzma
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from cut_prompts import leaks, word_runs

CHAT = "dialogue/databricks-dolly-15k:"
"""Source of the questions (CC-BY-SA-3.0): instructions as users write them."""
QUESTIONS, LONGEST_QUESTION = 3000, 1500
CHARACTERS = {"dialogue": 1_600_000, "code": 800_000, "prose": 800_000}
"""Characters of text by domain: about a quarter of it in tokens."""
LONGEST_DOCUMENT = 4000
"""Characters taken of a document, from its start, so that many documents have a part."""


def documents(data: Path) -> Iterator[dict[str, str]]:
    """{text, source} of all shards."""
    for path in sorted(data.glob("train-*.jsonl.xz")):
        with lzma.open(path, "rt", encoding="utf-8", newline="\n") as file:
            yield from map(json.loads, file)


def question(document: dict[str, str]) -> str:
    """The question of a chat of one turn; "" for other documents, whose answers are then text."""
    if not document["source"].startswith(CHAT):
        return ""
    asked, _, answer = document["text"].removeprefix("User: ").partition("\n\nAssistant: ")
    return asked if answer and len(asked) <= LONGEST_QUESTION else ""


def main(data: Path, exhibit: Path, folder: Path, times: int = 1) -> None:
    shown = [json.loads(line)["turns"] for line in exhibit.read_text(encoding="utf-8").splitlines()]
    taken = set().union(*(word_runs(turns) for turns in shown))
    held, left_out = Counter[str](), 0
    chats, texts = [], []
    for i, document in enumerate(documents(data)):
        domain = document["source"].partition("/")[0]
        text = document["text"][:LONGEST_DOCUMENT]
        asked = question(document) if len(chats) < times * QUESTIONS else ""
        if not asked and held[domain] >= times * CHARACTERS.get(domain, 0):
            continue
        if leaks([text], taken):
            left_out += 1
        elif asked:
            chats.append({"id": f"dolly-{i}", "task": "chat", "turns": [asked]})
        else:
            held[domain] += len(text)
            texts.append({"text": text, "source": document["source"]})
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in (("chat", chats), ("text", texts)):
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    print(f"{len(chats)} questions, {len(texts)} documents, {dict(held)} characters of text")
    print(f"left out: {left_out} documents that share 13 words with the exhibit")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]), *map(int, sys.argv[4:]))
