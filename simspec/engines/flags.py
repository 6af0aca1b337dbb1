"""Command-line flags on one line, written and read as an engine's shell reads them."""

import re
import shlex
from collections.abc import Iterable, Mapping

from simspec.engines.documents import shown

MAX_TEXT = 1 << 16
NO_NAMES: Mapping[str, str] = {}
_INTEGER, _NUMBER = re.compile(r"-?\d{1,9}"), re.compile(r"-?\d{1,9}(\.\d{1,25})?(e-?\d{1,3})?")


def flag_line(flags: Mapping[str, object]) -> str:
    """'--name value ...' as a shell reads it; a value of True is a switch."""
    words: list[str] = []
    for name, value in flags.items():
        words += [name] if value is True else [name, shlex.quote(str(value))]
    return " ".join(words) + "\n"


def read_flags(
    text: str,
    kind: str,
    required: Iterable[str],
    optional: Iterable[str] = (),
    renamed: Mapping[str, str] = NO_NAMES,
    aliases: Mapping[str, str] = NO_NAMES,
) -> dict[str, str]:
    """{flag: value} of '--name value ...'; ValueError, one line, for anything else.

    A flag that comes twice is refused, since parsers keep the last one in silence; so are unknown
    flags, abbreviations and missing values. aliases {other spelling: flag} are read as the flag;
    renamed {old: new} only serves the message.
    """
    if not isinstance(text, str) or len(text) > MAX_TEXT:
        raise ValueError(f"{kind}: expected text of at most {MAX_TEXT} characters")
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"{kind}: not a command line: {error}") from None
    known, flags = {*required, *optional}, dict[str, str]()
    while words:
        name = words.pop(0)
        name = aliases.get(name, name)
        if name in renamed:
            raise ValueError(f"{kind}: {name} is written {renamed[name]} here: rename it")
        if name not in known:
            raise ValueError(f"{kind}: {shown(name)} is no flag, expected some of {sorted(known)}")
        if name in flags:
            raise ValueError(f"{kind}: {name} comes twice, and only the last would count")
        if not words or words[0].startswith("--"):
            raise ValueError(f"{kind}: {name} has no value, expected one after it")
        flags[name] = words.pop(0)
    if missing := [name for name in required if name not in flags]:
        raise ValueError(f"{kind}: {missing[0]} is missing: add it")
    return flags


def flag_integer(flags: Mapping[str, str], name: str, low: int) -> int:
    """The flag's value as an integer of `low` or more; ValueError otherwise."""
    text = flags[name]
    if not _INTEGER.fullmatch(text) or int(text) < low:
        raise ValueError(f"{name} is {shown(text)}, expected an integer {low} or more")
    return int(text)


def number_of(text: str, name: str, low: float, high: float) -> float:
    """The text as a number in [low, high]; ValueError otherwise."""
    if not _NUMBER.fullmatch(text) or not low <= float(text) <= high:
        raise ValueError(f"{name} is {shown(text)}, expected a number in [{low:g}, {high:g}]")
    return float(text)
