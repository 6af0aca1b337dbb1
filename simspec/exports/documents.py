"""Documents of settings: strict JSON, flags on one line, confidence thresholds."""

import json
import math
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from simspec.exports.request import Request
from simspec.policies import parse
from simspec.policy.policy import Policy

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
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_constant)
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


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        (twice, _), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"the key {shown(twice)} comes twice")
    return data


def _constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON number")


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
) -> dict[str, str]:
    """{flag: value} of '--name value ...'; ValueError, one line, for anything else.

    A flag that comes twice is refused, since parsers keep the last one in silence; so are unknown
    flags, abbreviations and missing values. renamed {old: new} only serves the message.
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
        if name in renamed:
            raise ValueError(f"{kind}: {name} is written {renamed[name]} here: rename it")
        if name not in known:
            raise ValueError(f"{kind}: {shown(name)} is no flag, expected some of {sorted(known)}")
        if name in flags:
            raise ValueError(f"{kind}: {name} comes twice, and only the last would count")
        if not words or words[0].startswith("--"):
            raise ValueError(f"{kind}: {name} has no value, expected one behind it")
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


def confidence_threshold(
    request: Request, inclusive: bool, engine: str
) -> tuple[float, int] | None:
    """(threshold, longest draft) of a confidence policy, None of a fixed length.

    inclusive: whether the engine submits the token below the threshold. ValueError for the other
    kind, since its drafts differ by a token, and for any other policy.
    """
    if request.choice.schedule is not None:
        return None
    name = request.choice.policies[0]
    policy = parse(name)
    if not isinstance(policy, Policy) or not name.startswith("confidence:"):
        raise ValueError(
            f"{engine} has no setting that drafts as policy {name!r} does: give fixed:K or "
            f"confidence:P,inclusive={str(inclusive).lower()}"
        )
    threshold, submits = policy.params
    if bool(submits) != inclusive:
        does = "submits" if inclusive else "drops"
        raise ValueError(
            f"policy {name!r} does not draft as {engine} does, which {does} the token below the "
            f"threshold: give confidence:{threshold:g},inclusive={str(inclusive).lower()}"
        )
    return threshold, policy.longest(request.evidence.K)
