"""The metadata of a recording, and its strict JSON form."""

import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from typing import Any

RULES = ("greedy", "coupled", "rejection", "synthetic")
OPTIONAL: dict[str, Any] = {
    "tree": (), "top_k": 0, "top_p": 1.0, "batch": 1, "chat": {}, "drafter_sha256": ""
}  # fmt: skip
"""Keys that the file omits where they have these values, so that older files keep their bytes."""
SCHEMA = 2
_Check = tuple[Callable[[Any], bool], str]


class TraceError(ValueError):
    """A trace, or a file of one, that breaks its own invariants."""


@dataclass(frozen=True)
class TraceMeta:
    """Origin of a trace.

    | field            | type            | meaning                                                 |
    | ---------------- | --------------- | ------------------------------------------------------- |
    | rule             | str             | greedy, coupled (shared noise), rejection or synthetic  |
    | target, drafter  | str             | names, the drafter's with its settings                  |
    | K                | int, 1..255     | deepest draft recorded                                  |
    | tokenizer_sha256 | str             | hash of the tokenizer's files; '' if there is none      |
    | features         | ((name, grid),) | features after each slot, in the order of Trace.feature |
    | temperature      | float           | 0 for greedy                                            |
    | seed             | int, < 2**64    | of the target's noise, or of the synthetic generator    |
    | end_tokens       | (int,)          | tokens that end a sequence                              |
    | prefix_only      | bool            | the drafter reads the token prefix and nothing else     |
    | sources          | (str,)          | sources of the prompts, with their licenses             |
    | tasks, ids       | (str,) each [S] | of each sequence: task or category, prompt id           |
    | device, dtype    | str             | of the recording                                        |
    | predictors       | {str: str}      | feature -> SHA-256 of its predictor, in hex             |
    | versions         | {str: str}      | library versions                                        |
    | git, notes       | str             | revision, anything else                                 |
    | argv             | (str,)          | command line                                            |
    | tree             | () or (w, D)    | width and levels of the dynamic trees of Trace.order    |
    | top_k, top_p     | int, float      | truncation of both distributions; 0 and 1.0: none       |
    | batch            | int             | sequences written at a time; passes differ in rounding  |
    | chat             | {str: str}      | chat template, its sha256 and system prompt; {}: none   |
    | drafter_sha256   | str             | hash of the drafter's weights; '': unknown, or none     |
    | schema           | int             | version of this table                                   |

    TraceError for a value of the wrong type or outside its range.
    """

    rule: str
    target: str
    drafter: str
    K: int
    tokenizer_sha256: str = ""
    features: tuple[tuple[str, str], ...] = ()
    temperature: float = 0.0
    seed: int = 0
    end_tokens: tuple[int, ...] = ()
    prefix_only: bool = False
    sources: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    device: str = "cpu"
    dtype: str = "float32"
    predictors: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    git: str = ""
    argv: tuple[str, ...] = ()
    notes: str = ""
    schema: int = SCHEMA
    tree: tuple[int, int] | tuple[()] = ()
    top_k: int = 0
    top_p: float = 1.0
    batch: int = 1
    chat: dict[str, str] = field(default_factory=dict)
    drafter_sha256: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "features", tuple(map(_as_tuple, _as_tuple(self.features))))
        for name in ("end_tokens", "sources", "tasks", "ids", "argv", "tree"):
            object.__setattr__(self, name, _as_tuple(getattr(self, name)))
        if type(self.temperature) is int:
            object.__setattr__(self, "temperature", float(self.temperature))
        for name, (is_valid, expected) in _FIELDS.items():
            if not is_valid(getattr(self, name)):
                raise TraceError(f"meta.{name} is {getattr(self, name)!r}, expected {expected}")
        if self.rule == "rejection" and not self.temperature > 0:
            raise TraceError(
                f"meta.temperature is {self.temperature} under the rejection rule, expected a "
                "number > 0"
            )
        if self.rule not in ("coupled", "rejection") and (self.top_k, self.top_p) != (0, 1.0):
            raise TraceError(
                f"meta.top_k and top_p are {self.top_k} and {self.top_p} under rule {self.rule!r}, "
                "expected 0 and 1.0 there"
            )
        for name in self.predictors:
            if name not in dict(self.features):
                raise TraceError(
                    f"meta.predictors names {name!r}, expected one of the features "
                    f"{[known for known, _ in self.features]}"
                )

    def to_json(self) -> str:
        """The metadata as one JSON object, keys in the order of the table; OPTIONAL ones only where
        they differ.
        """
        return json.dumps(
            {
                key: value
                for key, value in asdict(self).items()
                if key not in OPTIONAL or value != OPTIONAL[key]
            }
        )

    @classmethod
    def from_json(cls, text: str) -> "TraceMeta":
        """Read `to_json`'s text; TraceError for anything else: not JSON, a missing or unknown key,
        a wrong type.
        """
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise TraceError(f"meta is not JSON ({error})") from None
        if not isinstance(data, dict):
            raise TraceError(f"meta is a {type(data).__name__}, expected one JSON object")
        if data.get("schema") != SCHEMA:
            raise TraceError(
                f"meta.schema is {data.get('schema')!r}, this version reads {SCHEMA}: install the "
                "simspec that wrote it"
            )
        expected = {f.name for f in fields(cls)} - (set(OPTIONAL) - set(data))
        if set(data) != expected:
            missing, unknown = sorted(expected - set(data)), sorted(set(data) - expected)
            raise TraceError(f"meta lacks {missing} and has unknown {unknown}")
        return cls(**data)


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _int(low: int, high: int) -> _Check:
    return (
        lambda value: type(value) is int and low <= value < high,
        f"an integer in [{low}, {high})",
    )


def _tuple_of(kind: type, description: str) -> _Check:
    return (
        lambda value: type(value) is tuple and all(type(item) is kind for item in value),
        f"a list of {description}",
    )


def _is_text_object(value: Any) -> bool:
    return type(value) is dict and all(type(x) is str for pair in value.items() for x in pair)


def _is_hash_object(value: Any) -> bool:
    return _is_text_object(value) and all(
        re.fullmatch("[0-9a-f]{64}", text) for text in value.values()
    )


def _is_hash_or_empty(value: Any) -> bool:
    return type(value) is str and re.fullmatch("(?:[0-9a-f]{64})?", value) is not None


def _is_chat(value: Any) -> bool:
    if value == {}:
        return True
    keys = {"template", "sha256", "system"}
    return (
        _is_text_object(value)
        and set(value) == keys
        and re.fullmatch("[0-9a-f]{64}", value["sha256"]) is not None
    )


def _are_features(value: Any) -> bool:
    pairs = type(value) is tuple and all(
        type(pair) is tuple and len(pair) == 2 and all(type(part) is str for part in pair)
        for pair in value
    )
    return pairs and len({name for name, _ in value}) == len(value)


def _is_tree(value: Any) -> bool:
    if value == ():
        return True
    integers = type(value) is tuple and [type(number) for number in value] == [int, int]
    return integers and 1 <= value[0] <= 32 and 1 <= value[1] <= 255


def _is_temperature(value: Any) -> bool:
    return type(value) is float and 0 <= value < float("inf")


_TEXT: _Check = (lambda value: type(value) is str, "text")
_TEXTS = _tuple_of(str, "text")
_FIELDS: dict[str, _Check] = {
    "rule": (lambda value: value in RULES, f"one of {', '.join(RULES)}"),
    "target": _TEXT,
    "drafter": _TEXT,
    "K": _int(1, 256),
    "tokenizer_sha256": _TEXT,
    "features": (_are_features, "a list of (name, grid) pairs with different names"),
    "temperature": (_is_temperature, "a finite number >= 0"),
    "seed": _int(0, 1 << 64),
    "end_tokens": _tuple_of(int, "integers"),
    "prefix_only": (lambda value: type(value) is bool, "true or false"),
    "sources": _TEXTS,
    "tasks": _TEXTS,
    "ids": _TEXTS,
    "device": _TEXT,
    "dtype": _TEXT,
    "predictors": (_is_hash_object, "an object of 64 hex digits a name"),
    "versions": (_is_text_object, "an object of text values"),
    "git": _TEXT,
    "argv": _TEXTS,
    "notes": _TEXT,
    "tree": (_is_tree, "nothing, or a width in 1..32 and a number of levels in 1..255"),
    "top_k": _int(0, 1 << 31),
    "top_p": (lambda value: type(value) is float and 0 < value <= 1, "a share in (0, 1]"),
    "batch": _int(1, 1 << 31),
    "drafter_sha256": (_is_hash_or_empty, "nothing, or 64 hex digits"),
    "chat": (_is_chat, "nothing, or template, sha256 in 64 hex digits and system"),
    "schema": (lambda value: type(value) is int and value == SCHEMA, str(SCHEMA)),
}
