"""Text that drafters learn as it is: the target reads it and writes none of it.

EAGLE's Table 6 (arXiv 2401.15077): fixed text in place of the target's own costs 3% of the speedup.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from real.files import check_same_settings, read_card, replace_json
from real.model.stored_weights import sha256
from real.progress import Progress, quiet
from real.prompts import PromptFormat
from real.train.corpus import documents
from real.train.prompt_set import WINDOW, text_files
from real.train.sequence_shards import Sequences, read_shard, save_shard

LONGEST = 512
"""Tokens of a sequence; longer documents are cut into several."""
TURN = re.compile(r"(?:^|\n\n)(User|Assistant): ")


def conversation(text: str) -> tuple[list[str], list[str]] | None:
    """(user turns, as many answers) of `User: a\\n\\nAssistant: b ...`; None for any other text."""
    first, *parts = TURN.split(text)
    names, turns = parts[::2], [part.strip() for part in parts[1::2]]
    alternate = names == ["User", "Assistant"] * (len(names) // 2)
    if first.strip() or not names or not alternate or not all(turns):
        return None
    return turns[::2], turns[1::2]


def read_text(form: PromptFormat, text: str) -> list[int]:
    """Tokens of a document; of a conversation in the chat template, where there is one."""
    chat = conversation(text) if form.template is not None else None
    if chat is None:
        return form.text(text)
    users, answers = chat
    prompt = form.turns("dialogue", users, answers[:-1])
    return prompt + form.tokenizer.encode(answers[-1], add_special_tokens=False).ids


def windows(form: PromptFormat, paths: Sequence[str]) -> Iterator[list[int]]:
    """Sequences of up to LONGEST tokens, side by side; ends of under WINDOW are left out."""
    for document in documents(paths):
        ids = read_text(form, document["text"])
        for start in range(0, len(ids), LONGEST):
            if len(part := ids[start : start + LONGEST]) >= WINDOW:
                yield part


def learned_text(
    form: PromptFormat, paths: Sequence[str], tokens: int, work: Path, progress: Progress = quiet
) -> tuple[Sequences, dict]:
    """The first sequences of the text that hold `tokens` tokens, and their source for cards.

    All tokens but a sequence's first are learned. Kept in `<work>/text`; ValueError where that
    holds others, and where the files hold fewer tokens.
    """
    folder = work / "text"
    made = {
        "files": {path.name: sha256(path) for path in text_files(paths)},
        "tokens": tokens,
        "chat": form.metadata(),
    }
    file, card = folder / "text.safetensors", folder / "text.json"
    if card.exists() and file.exists():
        check_same_settings(read_card(card), made, folder)
        return read_shard(file), made
    kept, held = [], 0
    for part in windows(form, paths):
        kept.append(np.array(part, np.int32))
        held += len(part)
        if len(kept) % 100 == 0:
            progress("text", min(held, tokens), tokens, f"{len(kept)} sequences")
        if held >= tokens:
            break
    if held < tokens:
        raise ValueError(
            f"the text holds {held:,} tokens in sequences of {WINDOW} and more, and {tokens:,} are "
            "to be learned: bring more text, or lower --learn-text"
        )
    offset = np.concatenate(([0], np.cumsum([len(part) for part in kept]))).astype(np.int64)
    found = Sequences(np.concatenate(kept), offset, np.ones(len(kept), np.int64))
    folder.mkdir(parents=True, exist_ok=True)
    save_shard(found, file)
    replace_json(card, made)
    progress("text", tokens, tokens, f"{len(kept)} sequences")
    return found, made
