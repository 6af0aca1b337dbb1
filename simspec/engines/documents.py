"""Files that strangers send: bounded text, JSON without guesses, counters of Prometheus."""

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from simspec.output.files import read_at_most

LARGEST = 256 << 20
"""Bytes of a file; its JSON takes several times as much memory."""
LARGEST_NUMBER = 1 << 53
"""Integers above are no counts."""
LONGEST_LINE = 10_000
"""Characters of a line of a log or of counters."""
SEARCH_LEVELS = 6
"""Levels of objects and lists that a search goes down."""


@dataclass(frozen=True)
class Source:
    """A file that another tool wrote: its format, name without folder, SHA-256 in hex, and text."""

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


class DuplicateKey(ValueError):
    """A JSON object has a key twice, of which parsers keep the last in silence."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        (twice, _), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise DuplicateKey(f"the key {twice[:60]!r} comes twice")
    return data


JSON = json.JSONDecoder(object_pairs_hook=_unique)
"""NaN is refused where it is read: other tools write it into figures that nobody asks for."""


@dataclass(frozen=True)
class Fields:
    """A JSON object and its place in the file, for messages.

    A field that is missing or of another type is a ValueError, so a renamed field never reads as 0.
    """

    values: dict[str, Any]
    place: str

    def __contains__(self, key: str) -> bool:
        return self.values.get(key) is not None

    def whole(self, key: str, least: int = 0) -> int:
        """An integer of at least `least`."""
        return int(self.wholes(key, least, single=True)[0])

    def wholes(self, key: str, least: int = 0, single: bool = False) -> np.ndarray:
        """int64 of a list of integers, each at least `least`."""
        value = self._value(key)
        items = [value] if single else value
        if type(items) is not list or not all(
            type(item) is int and least <= item < LARGEST_NUMBER for item in items
        ):
            kind = "an integer" if single else "a list of integers"
            raise self.error(key, value, f"{kind} >= {least}")
        return np.array(items, np.int64)

    def number(self, key: str) -> float:
        """A finite number >= 0."""
        value = self._value(key)
        if (
            type(value) not in (int, float)
            or not 0 <= value < LARGEST_NUMBER
            or not math.isfinite(value)
        ):
            raise self.error(key, value, "a finite number >= 0")
        return float(value)

    def numbers(self, key: str) -> list[float]:
        """A list of finite numbers >= 0."""
        value = self._value(key)
        if type(value) is not list:
            raise self.error(key, value, "a list of numbers")
        return [Fields({key: item}, self.place).number(key) for item in value]

    def name(self, key: str) -> str:
        """A text, or an integer as text."""
        value = self._value(key)
        if type(value) not in (str, int):
            raise self.error(key, value, "a text or an integer")
        return str(value)

    def inner(self, key: str) -> "Fields":
        """The object in a field."""
        value = self._value(key)
        if type(value) is not dict:
            raise self.error(key, value, "an object")
        return Fields(value, f"{self.place}, {key}")

    def inners(self, key: str) -> list["Fields"]:
        """The objects of a list."""
        value = self._value(key)
        if type(value) is not list or not all(type(item) is dict for item in value):
            raise self.error(key, value, "a list of objects")
        return [Fields(item, f"{self.place}, {key} {i}") for i, item in enumerate(value)]

    def table(self, key: str) -> dict[int, int]:
        """{whole number: count} of an object whose keys are whole numbers as text."""
        inner = self.inner(key)
        if not all(name.isascii() and name.isdigit() and len(name) < 6 for name in inner.values):
            raise self.error(key, inner.values, "an object keyed by whole numbers")
        return {int(name): inner.whole(name) for name in inner.values}

    def holding(self, key: str) -> Iterator["Fields"]:
        """Every object in this one, itself included, that has a field `key` other than null."""
        yield from _holding(self.values, key, self.place, SEARCH_LEVELS)

    def error(self, key: str, value: Any, expected: str) -> ValueError:
        """ValueError, one line: the place, the field, what was given and what was expected."""
        shown = " ".join(repr(value)[:80].split())
        return ValueError(f"{self.place}: {key} is {shown}, expected {expected}")

    def _value(self, key: str) -> Any:
        if self.values.get(key) is None:
            known = ", ".join(sorted(map(str, self.values))[:20]) or "none"
            raise ValueError(
                f"{self.place}: {key} is missing, the fields there are {known[:300]}: name the "
                "format that wrote this file"
            )
        return self.values[key]


def _holding(value: Any, key: str, place: str, levels: int) -> Iterator[Fields]:
    if type(value) is dict and value.get(key) is not None:
        yield Fields(value, place)
    elif levels and type(value) in (dict, list):
        for item in value.values() if type(value) is dict else value:
            yield from _holding(item, key, place, levels - 1)


def json_rows(text: str) -> list[Fields]:
    """The objects of a JSON object, a JSON array, JSON lines, or a stream of `data:` lines.

    ValueError, one line, for a key that comes twice, and for no JSON.
    """
    try:
        value, end = JSON.raw_decode(text.lstrip())
        whole = not text.lstrip()[end:].strip()
    except DuplicateKey:
        raise
    except (ValueError, RecursionError):
        whole = False
    if whole:
        values = value if type(value) is list else [value]
        return [_fields(item, f"object {number}") for number, item in enumerate(values, 1)]
    return [_fields(item, f"line {number}") for number, item in _lines(text)]


def _lines(text: str) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(text.split("\n"), 1):
        line = line.strip().removeprefix("data:").strip()
        if not line or line == "[DONE]":
            continue
        try:
            yield number, JSON.decode(line)
        except (ValueError, RecursionError) as error:
            reason = " ".join(str(error).split())[:100]
            raise ValueError(f"line {number}: not JSON ({reason})") from None


def _fields(value: Any, place: str) -> Fields:
    if type(value) is not dict:
        raise ValueError(f"{place}: a {type(value).__name__}, expected an object")
    return Fields(value, place)


def responses(rows: Iterable[Fields], key: str) -> list[Fields]:
    """The objects that hold `key`, one a response and choice; of a stream's chunks the last.

    Chunks of one response share an `id`, in the object or in the row; rows without one are
    responses each. A list of such objects outside the choices has one for each sequence.
    """
    last: dict[tuple[str, str], Fields] = {}
    for row in rows:
        choices = row.values.get("choices")
        parts = row.inners("choices") if type(choices) is list and choices else []
        holders = [
            (str(part.values.get("index", i)), next(part.holding(key), None))
            for i, part in enumerate(parts)
        ]
        if not any(holder for _, holder in holders):
            holders = [(str(i), holder) for i, holder in enumerate(row.holding(key))]
        for index, holder in holders:
            if holder is not None:
                name = holder.values.get("id") or row.values.get("id") or row.place
                last[str(name), index] = holder
    return list(last.values())


SAMPLE = re.compile(r"\s*(?:\{([^}]*)\})?\s+(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)(?:\s+\d+)?\s*")
MODEL = re.compile(r'(?:^|,)\s*model_name="((?:[^"\\]|\\.)*)"')
NO_POSITION = -1
Counters = dict[str, dict[int, int]]
"""{name without prefix and _total: {position, or NO_POSITION: count}}, summed over engines."""


def read_counters(
    source: Source, before: Source | None, prefix: str, names: Collection[str], label: str
) -> Counters:
    """The counters named prefix + name of a scrape of /metrics, less those of an earlier one.

    label: the name of the position's label. ValueError, one line, for what is no counter, several
    models, and an earlier scrape that counts more.
    """
    now = _counters(source, prefix, names, label)
    if before is None:
        return now
    earlier = _counters(before, prefix, names, label)
    difference: Counters = {}
    for name, counts in now.items():
        held = earlier.get(name, {})
        if {*held} != {*counts} or any(held[place] > counts[place] for place in counts):
            raise ValueError(
                f"{before.file} counts more than {source.file} or other positions, expected an "
                "earlier scrape of the same server: swap them"
            )
        difference[name] = {place: counts[place] - held[place] for place in counts}
    return difference


def _counters(source: Source, prefix: str, names: Collection[str], label: str) -> Counters:
    name = re.compile(rf"{re.escape(prefix)}({'|'.join(names)})(?:_total)?\b")
    position = re.compile(rf'(?:^|,)\s*{label}="(\d{{1,3}})"')
    found: Counters = {}
    models = set()
    for number, line in enumerate(source.text.split("\n"), 1):
        found_name = name.match(line)
        if found_name is None:
            continue
        match = SAMPLE.fullmatch(line, found_name.end()) if len(line) <= LONGEST_LINE else None
        value = float(match[2]) if match else -1.0
        if match is None or not 0 <= value < LARGEST_NUMBER or value % 1:
            raise ValueError(f"line {number}: {line[:80]!r} is no counter")
        labels = match[1] or ""
        models |= set(MODEL.findall(labels))
        place = position.search(labels)
        counts = found.setdefault(found_name[1], {})
        at = int(place[1]) if place else NO_POSITION
        counts[at] = counts.get(at, 0) + int(value)
    if len(models) > 1:
        raise ValueError(f"{source.file} holds counters of {len(models)} models: keep one's lines")
    return found
