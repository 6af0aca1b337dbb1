"""Files that strangers send: bounded text, rows of JSON, lines of logs, counters of Prometheus."""

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from simspec.output.files import parse_json, read_at_most, reraised

LARGEST = 256 << 20
"""Bytes of a file; its JSON takes several times as much memory."""
LARGEST_NUMBER = 1 << 53
"""Integers above are no counts."""
LONGEST_LINE = 10_000
"""Characters of a line of a log or of counters."""
SEARCH_LEVELS = 6
"""Levels of objects and lists that a search goes down."""
Whole = Annotated[int, Meta(ge=0, lt=LARGEST_NUMBER)]
Number = Annotated[float, Meta(ge=0, lt=LARGEST_NUMBER)]
Objects = list[dict[str, Any]]


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


@dataclass(frozen=True)
class Fields:
    """A JSON object and its place in the file, for messages.

    A field that is missing or of another type is a ValueError, so a renamed field never reads as 0.
    """

    values: dict[str, Any]
    place: str
    # the objects that it is in, the outermost first
    around: tuple[dict[str, Any], ...] = ()

    def __contains__(self, key: str) -> bool:
        return self.values.get(key) is not None

    def get(self, key: str, kind: Any = Whole) -> Any:
        """The field as a type that msgspec converts to; default: an integer of at least 0."""
        value = self.values.get(key)
        if value is None:
            known = ", ".join(sorted(map(str, self.values))[:20]) or "none"
            raise ValueError(
                f"{self.place}: {key} is missing, the fields there are {known[:300]}: name the "
                "format that wrote this file"
            )
        try:
            return msgspec.convert(value, kind, str_keys=True)
        except msgspec.ValidationError as error:
            raise self.error(key, str(error).replace("Expected", "expected")) from None

    def inner(self, key: str) -> "Fields":
        """The object in a field."""
        around = (*self.around, self.values)
        return Fields(self.get(key, dict[str, Any]), f"{self.place}, {key}", around)

    def near(self, path: tuple[str, ...]) -> Any:
        """The value at the path of keys in this object or the nearest around it; None: in none."""
        for held in (self.values, *reversed(self.around)) if path else ():
            value: Any = held
            for key in path:
                value = value.get(key) if type(value) is dict else None
            if value is not None:
                return value
        return None

    def holding(self, key: str) -> Iterator["Fields"]:
        """Every object in this one, itself included, that has a field `key` other than null."""
        yield from _holding(self.values, key, self.place, SEARCH_LEVELS, self.around)

    def error(self, key: str, expected: str) -> ValueError:
        """ValueError, one line: the place, the field, what was given and what was expected."""
        shown = " ".join(repr(self.values.get(key))[:80].split())
        return ValueError(f"{self.place}: {key} is {shown}, {expected}")


def _holding(
    value: Any, key: str, place: str, levels: int, around: tuple[dict[str, Any], ...]
) -> Iterator[Fields]:
    if type(value) is dict and value.get(key) is not None:
        yield Fields(value, place, around)
    elif levels and type(value) in (dict, list):
        inside = (*around, value) if type(value) is dict else around
        for item in value.values() if type(value) is dict else value:
            yield from _holding(item, key, place, levels - 1, inside)


def json_rows(text: str) -> list[Fields]:
    """The objects of a JSON object, a JSON array, JSON lines, or a stream of `data:` lines.

    json reads NaN, which tools write into figures that nobody asks for. ValueError, one line.
    """
    try:
        value = parse_json(text)
    except (ValueError, RecursionError):
        return [_fields(item, f"line {number}") for number, item in _lines(text)]
    values = value if type(value) is list else [value]
    return [_fields(item, f"object {number}") for number, item in enumerate(values, 1)]


def _lines(text: str) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(text.split("\n"), 1):
        line = line.strip().removeprefix("data:").strip()
        if not line or line == "[DONE]":
            continue
        with reraised(ValueError, f"line {number}: not JSON"):
            value = parse_json(line)
        yield number, value


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
        choices = row.get("choices", Objects) if type(row.values.get("choices")) is list else []
        parts = [
            Fields(part, f"{row.place}, choices {i}", (row.values,))
            for i, part in enumerate(choices)
        ]
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


def log_lines(
    source: Source, words: str, form: re.Pattern[str], written_by: str
) -> list[tuple[int, re.Match[str]]]:
    """[(number, match)] of the lines that hold the words, each of which must have the form."""
    found = []
    for number, line in enumerate(source.text.split("\n"), 1):
        if words in line:
            match = form.search(line) if len(line) <= LONGEST_LINE else None
            if match is None:
                raise ValueError(f"line {number}: {words} in another form than {written_by}'s")
            found.append((number, match))
    if not found:
        raise ValueError(f"no line holds {words}: expected a log of {written_by}")
    return found


SAMPLE = re.compile(r"\s*(?:\{([^}]*)\})?\s+(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)(?:\s+\d+)?\s*")
MODEL = re.compile(r'(?:^|,)\s*model_name="((?:[^"\\]|\\.)*)"')
POSITION = re.compile(r'(?:^|,)\s*position="(\d{1,3})"')
NO_POSITION = -1
Counters = dict[str, dict[int, int]]
"""{name without prefix and _total: {position, or NO_POSITION: count}}, summed over engines."""


def read_counters(
    source: Source, before: Path | Source | None, prefix: str, names: Collection[str]
) -> Counters:
    """The counters named prefix + name of a scrape of /metrics, less those of an earlier one.

    ValueError, one line, for what is no counter, several models, and an earlier scrape that counts
    more.
    """
    now = _counters(source, prefix, names)
    if isinstance(before, Path):
        before = read_source(source.format, before)
    earlier = {} if before is None else _counters(before, prefix, names)
    for name, held in earlier.items():
        counts = now.get(name, {})
        if {*held} != {*counts} or any(held[place] > counts[place] for place in counts):
            raise ValueError(
                f"an earlier scrape of {name} counts more than {source.file} or other positions, "
                "expected one of the same server: swap them"
            )
        now[name] = {place: counts[place] - held[place] for place in counts}
    return now


def _counters(source: Source, prefix: str, names: Collection[str]) -> Counters:
    name = re.compile(rf"{re.escape(prefix)}({'|'.join(names)})(?:_total)?\b")
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
        place = POSITION.search(labels)
        counts, at = found.setdefault(found_name[1], {}), int(place[1]) if place else NO_POSITION
        counts[at] = counts.get(at, 0) + int(value)
    if len(models) > 1:
        raise ValueError(f"{source.file} holds counters of {len(models)} models: keep one's lines")
    return found
