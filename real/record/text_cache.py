"""A target's own texts in a file: recordings of several drafters write them once."""

import hashlib
import json
from pathlib import Path

import numpy as np

from real.files import replacing
from real.model.target import Target
from real.record.rows import MOST, RecordError, Settings
from simspec import TraceMeta

Written = tuple[np.ndarray, np.ndarray]
"""A text's tokens int32 `[n]` and their margin codes uint8 `[n]`."""


class Texts:
    """The texts in the JSON file `path`, by draw address and prompt; empty where there is no file yet.

    They hold for one target, rule, budget and set of end tokens, and for the device, dtype, versions and passes that made them: RecordError
    for a file of others, for one that is damaged, and under the rejection rule, whose recordings need more than the text.
    """

    def __init__(self, path: str | Path, settings: Settings, meta: TraceMeta, target: Target):
        if settings.rule.sampled:
            raise RecordError(
                "texts drawn under the rejection rule are not kept in a file; record without one"
            )
        self.path, self.budget, self.ends, self.vocab = (
            Path(path),
            settings.budget,
            settings.end_tokens,
            target.decoder.config.vocab,
        )
        asked = (
            "target",
            "tokenizer_sha256",
            "rule",
            "temperature",
            "top_k",
            "top_p",
            "seed",
            "device",
            "dtype",
            "versions",
        )
        made = {name: getattr(meta, name) for name in asked} | {
            "budget": settings.budget,
            "end_tokens": settings.end_tokens,
        }
        made["passes"] = [
            type(target.passes).__name__,
            *target.passes.widths,
            target.passes.smallest,
        ]
        self.made_with = json.loads(json.dumps(made))
        self.texts = self._read() if self.path.exists() else {}
        self.saved = len(self.texts)

    def find(self, sequence: int, prompt: list[int]) -> Written | None:
        """The text at that address after that prompt, if it is there."""
        held = self.texts.get(_key(sequence, prompt))
        return None if held is None else (np.array(held[0], np.int32), np.array(held[1], np.uint8))

    def add(self, sequence: int, prompt: list[int], written: Written) -> None:
        """Keeps a text; `save` writes it."""
        self.texts[_key(sequence, prompt)] = [each.tolist() for each in written]

    def save(self) -> None:
        """Writes the file, atomically, if a text was added."""
        if len(self.texts) == self.saved:
            return
        with replacing(self.path) as temporary:
            whole = {"made_with": self.made_with, "sha256": _sum(self.texts), "texts": self.texts}
            temporary.write_text(json.dumps(whole) + "\n", encoding="utf-8")
        self.saved = len(self.texts)

    def _read(self) -> dict[str, list[list[int]]]:
        try:
            held = json.loads(self.path.read_text(encoding="utf-8"))
            texts = dict(held["texts"])
            made_with, whole = dict(held["made_with"]), held["sha256"] == _sum(texts)
            right = (
                whole and all(self._right(text) for text in texts.values())
                if made_with == self.made_with
                else True
            )
        except (OSError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise RecordError(
                f"{self.path} holds no texts ({' '.join(str(error).split())[:200]}); delete it to write them anew"
            ) from None
        differ = sorted(
            key
            for key in {*made_with, *self.made_with}
            if made_with.get(key) != self.made_with.get(key)
        )
        if differ:
            raise RecordError(
                f"{self.path} holds texts made with another {differ[0]}; name another file for these, or delete it"
            )
        if not right:
            raise RecordError(
                f"{self.path} is damaged: its texts are not those that were written; delete it to write them anew"
            )
        return texts

    def _right(self, text) -> bool:
        token, margin = text
        limits = ((token, self.vocab), (margin, MOST + 1))
        numbers = all(
            isinstance(row, list) and all(type(x) is int and 0 <= x < most for x in row)
            for row, most in limits
        )
        return (
            numbers
            and 1 <= len(token) == len(margin) <= self.budget
            and not set(token[:-1]) & set(self.ends)
        )


def _key(sequence: int, prompt: list[int]) -> str:
    return f"{sequence}:{hashlib.sha256(json.dumps(prompt).encode()).hexdigest()[:32]}"


def _sum(texts: dict) -> str:
    return hashlib.sha256(json.dumps(texts, sort_keys=True).encode()).hexdigest()
