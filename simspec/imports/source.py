"""Source: an untrusted file, read once, with its hash."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from simspec.imports.fields import Fields
from simspec.output.files import read_at_most

LARGEST = 256 << 20
"""Bytes of a file; its JSON takes several times as much memory."""


@dataclass(frozen=True)
class Source:
    """A file that another tool wrote.

    | field  | meaning                        |
    | ------ | ------------------------------ |
    | format | its name in `formats.FORMATS`  |
    | file   | the file's name, without folder |
    | sha256 | of its bytes, in hex           |
    | text   | its content                    |
    """

    format: str
    file: str
    sha256: str
    text: str


def read_source(format: str, path: str | PathLike[str]) -> Source:
    """The file's content and hash; ValueError, one line, where it is too large or no text."""
    path = Path(path)
    try:
        content = read_at_most(path, LARGEST)
        text = content.decode("utf-8-sig")
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text: name a plain-text or JSON file") from None
    except ValueError as error:
        raise ValueError(f"{path} cannot be read: {error}; split it by lines") from None
    return Source(format, path.name, hashlib.sha256(content).hexdigest(), text)


def json_rows(text: str) -> list[Fields]:
    """The objects of a JSON object, a JSON array, JSON lines, or a stream of `data:` lines."""
    try:
        value, end = json.JSONDecoder().raw_decode(text.lstrip())
        whole = not text.lstrip()[end:].strip()
    except (ValueError, RecursionError):
        whole = False
    if whole:
        values = value if type(value) is list else [value]
        rows = list(enumerate(values, 1))
        return [_fields(item, f"object {number}") for number, item in rows]
    return [_fields(item, f"line {number}") for number, item in _lines(text)]


def _lines(text: str) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(text.split("\n"), 1):
        line = line.strip().removeprefix("data:").strip()
        if not line or line == "[DONE]":
            continue
        try:
            yield number, json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = " ".join(str(error).split())[:100]
            raise ValueError(f"line {number}: not JSON ({reason})") from None


def _fields(value: Any, place: str) -> Fields:
    if type(value) is not dict:
        raise ValueError(f"{place}: a {type(value).__name__}, expected an object")
    return Fields(value, place)
