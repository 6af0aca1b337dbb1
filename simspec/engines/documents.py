"""Strict JSON and YAML, one line an error: documents of settings, fields of measurements."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

MAX_JSON, MAX_YAML = 1 << 26, 1 << 15
"""Most characters that are read."""

MAX_BRACKETS = 64
"""Most opening brackets of YAML, whose parser takes time in the square of their depth."""


def shown(value: Any) -> str:
    """The value's repr, cut to 60 characters."""
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python prints
        text = f"a {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."


def parse_json(text: str, kind: str) -> Any:
    """The JSON value; ValueError, one line, for a key that comes twice, NaN, or no JSON."""
    _check_size(text, MAX_JSON, kind)
    try:
        return _SETTINGS.decode(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{kind}: not JSON: {' '.join(str(error).split())[:200]}") from None


def parse_yaml(text: str, kind: str) -> Any:
    """The YAML value; ValueError, one line, for a key that comes twice, aliases, or no YAML."""
    import yaml

    _check_size(text, MAX_YAML, kind)
    if text.count("[") + text.count("{") > MAX_BRACKETS:
        raise ValueError(f"{kind}: more than {MAX_BRACKETS} brackets, expected few")
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text)):
            raise ValueError("holds an alias, expected plain values")
        value = yaml.safe_load(text)
        _check_mappings(yaml.compose(text, Loader=yaml.SafeLoader), value, yaml)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"{kind}: not YAML: {' '.join(str(error).split())[:200]}") from None
    return value


def check_fields(
    data: Any, name: str, required: Iterable[str], optional: Iterable[str] = ()
) -> dict[str, Any]:
    """The object; ValueError unless it has all required keys, and no others than these."""
    if not isinstance(data, dict):
        raise ValueError(f"{name} is {shown(data)}, expected an object")
    needed, known = set(required), {*required, *optional}
    if unknown := [key for key in data if key not in known]:
        raise ValueError(
            f"{name} has the unknown key {shown(unknown[0])}, expected some of {sorted(known)}"
        )
    if missing := sorted(needed - set(data)):
        raise ValueError(f"{name} lacks {missing[0]!r}: add it")
    return data


def check_integer(value: Any, name: str, low: int, high: int | None = None) -> int:
    """The value; ValueError unless it is an integer in low .. high, no bool, text or float."""
    valid = type(value) is int and value >= low and (high is None or value <= high)
    if not valid:
        span = f"{low} or more" if high is None else f"in {low}..{high}"
        raise ValueError(f"{name} is {shown(value)}, expected an integer {span}")
    return int(value)


def check_number(value: Any, name: str, low: float, high: float = math.inf) -> float:
    """The value; ValueError unless it is a finite number in [low, high], no bool or text."""
    valid = type(value) in (int, float) and low <= value <= high and abs(value) < math.inf
    if not valid:
        raise ValueError(f"{name} is {shown(value)}, expected a number in [{low:g}, {high:g}]")
    return float(value)


def check_text(value: Any, name: str) -> str:
    """The value; ValueError unless it is text with something in it."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{name} is {shown(value)}, expected text")
    return value


def check_option(value: Any, name: str, options: Sequence[Any]) -> Any:
    """The value; ValueError unless it equals one of the options, in type too."""
    if not any(type(value) is type(option) and value == option for option in options):
        listed = ", ".join(str(option) for option in options)
        raise ValueError(f"{name} is {shown(value)}, expected one of {listed}")
    return value


def check_list(value: Any, name: str, length: int | None = None) -> list[Any]:
    """The value; ValueError unless it is a list of that length, or of one entry and more."""
    if not isinstance(value, list) or (not value if length is None else len(value) != length):
        size = "with something in it" if length is None else f"of {length}"
        raise ValueError(f"{name} is {shown(value)}, expected a list {size}")
    return value


def check_survival(value: Any, name: str, length: int) -> list[float]:
    """The value; ValueError unless it is a list of that many shares that never grow."""
    rates = [
        check_number(rate, f"{name}[{i}]", 0, 1)
        for i, rate in enumerate(check_list(value, name, length))
    ]
    for i, (before, rate) in enumerate(zip(rates, rates[1:]), 1):
        if rate > before:
            raise ValueError(
                f"{name}[{i}] is {rate:g} after {before:g}, expected shares that never grow: "
                "P(the first i + 1 accepted)"
            )
    return rates


def _check_size(text: str, most: int, kind: str) -> None:
    if not isinstance(text, str) or len(text) > most:
        raise ValueError(f"{kind}: expected text of at most {most} characters")


class DuplicateKey(ValueError):
    """A JSON object has a key twice, of which parsers keep the last in silence."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        (twice, _), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise DuplicateKey(f"the key {shown(twice)} comes twice")
    return data


def _constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON number")


_SETTINGS = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_constant)
_MEASURED = json.JSONDecoder(object_pairs_hook=_unique)
"""NaN is refused where it is read: other tools write it into figures that nobody asks for."""


def _check_mappings(node: Any, value: Any, yaml: Any) -> None:
    if isinstance(node, yaml.MappingNode):
        if any(key.tag.endswith(":merge") for key, _ in node.value):
            raise ValueError("holds a merge key, expected plain values")
        if len(node.value) != len(value):
            raise ValueError("a key comes twice")
        for (_, child), held in zip(node.value, value.values()):
            _check_mappings(child, held, yaml)
    elif isinstance(node, yaml.SequenceNode):
        for child, held in zip(node.value, value):
            _check_mappings(child, held, yaml)


LARGEST_NUMBER = 1 << 53
"""Integers above are no counts."""

SEARCH_LEVELS = 6
"""Levels of objects and lists that a search goes down."""


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
        value, end = _MEASURED.raw_decode(text.lstrip())
        whole = not text.lstrip()[end:].strip()
    except DuplicateKey:
        raise
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
            yield number, _MEASURED.decode(line)
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
