"""What a recording says about itself, and its strict JSON form."""

import json
import re
from dataclasses import asdict, dataclass, field, fields

RULES = ("greedy", "coupled", "rejection", "synthetic")
OPTIONAL = {"tree": (), "top_k": 0, "top_p": 1.0}
"""Keys that a recording says only where they differ from this: older files keep their bytes."""
SCHEMA = 2


class TraceError(ValueError):
    """A trace, or a file of one, that breaks its own invariants."""


@dataclass(frozen=True)
class TraceMeta:
    """Where a trace comes from.

    | field            | type            | meaning                                                               |
    | ---------------- | --------------- | --------------------------------------------------------------------- |
    | rule             | str             | greedy, coupled (shared Gumbel noise), rejection (drawn drafts, ratio recorded) or synthetic |
    | target, drafter  | str             | names, the drafter's with its settings                                  |
    | K                | int, 1..255     | deepest draft recorded                                                  |
    | tokenizer_sha256 | str             | hash of the tokenizer's files; '' if there is none                      |
    | features         | ((name, grid),) | what the drafter shows after each slot, in the order of Trace.feature   |
    | temperature      | float           | 0 for greedy                                                            |
    | seed             | int, < 2**64    | of the target's noise (coupled) or of the generator (synthetic)         |
    | end_tokens       | (int,)          | tokens that end a sequence                                              |
    | prefix_only      | bool            | the drafter reads the token prefix and nothing else                     |
    | sources          | (str,)          | where the prompts come from, with their licences                        |
    | tasks, ids       | (str,) each [S] | one per sequence: its task or category, its prompt's id                 |
    | device, dtype    | str             | where and in what the recording ran                                     |
    | predictors       | {str: str}      | feature -> SHA-256 of the predictor that it was read through, in hex     |
    | versions         | {str: str}      | library versions                                                        |
    | git, argv, notes | str, (str,), str| revision, command line, anything else                                   |
    | tree             | () or (w, D)    | width and levels of the dynamic trees that Trace.order tells of         |
    | top_k, top_p     | int, float      | how both distributions were cut before anything was picked; 0 and 1.0: not at all |
    | schema           | int             | version of this table                                                   |

    Raises TraceError for a value of the wrong type or outside its range.
    """

    rule: str
    target: str
    drafter: str
    K: int
    tokenizer_sha256: str = ""
    features: tuple = ()
    temperature: float = 0.0
    seed: int = 0
    end_tokens: tuple = ()
    prefix_only: bool = False
    sources: tuple = ()
    tasks: tuple = ()
    ids: tuple = ()
    device: str = "cpu"
    dtype: str = "float32"
    predictors: dict = field(default_factory=dict)
    versions: dict = field(default_factory=dict)
    git: str = ""
    argv: tuple = ()
    notes: str = ""
    schema: int = SCHEMA
    tree: tuple = ()
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self):
        object.__setattr__(self, "features", tuple(map(_as_tuple, _as_tuple(self.features))))
        for name in ("end_tokens", "sources", "tasks", "ids", "argv", "tree"):
            object.__setattr__(self, name, _as_tuple(getattr(self, name)))
        if type(self.temperature) is int:
            object.__setattr__(self, "temperature", float(self.temperature))
        for name, (accepts, wanted) in _FIELDS.items():
            if not accepts(getattr(self, name)):
                raise TraceError(f"meta.{name} is {getattr(self, name)!r}, expected {wanted}")
        if self.rule == "rejection" and not self.temperature > 0:
            raise TraceError(
                f"meta.temperature is {self.temperature} under the rejection rule, expected a number > 0"
            )
        if self.rule not in ("coupled", "rejection") and (self.top_k, self.top_p) != (0, 1.0):
            raise TraceError(
                f"meta.top_k and top_p are {self.top_k} and {self.top_p} under rule {self.rule!r}, expected 0 and 1.0 there"
            )
        for name in self.predictors:
            if name not in dict(self.features):
                raise TraceError(
                    f"meta.predictors names {name!r}, expected one of the features {[known for known, _ in self.features]}"
                )

    def to_json(self) -> str:
        """The metadata as one JSON object, keys in the order of the table; those of OPTIONAL only where they say something."""
        return json.dumps(
            {
                key: value
                for key, value in asdict(self).items()
                if key not in OPTIONAL or value != OPTIONAL[key]
            }
        )

    @classmethod
    def from_json(cls, text: str) -> "TraceMeta":
        """Read `to_json`'s text; TraceError for anything else: not JSON, a missing or unknown key, a wrong type."""
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise TraceError(f"meta is not JSON ({error})") from None
        if not isinstance(data, dict):
            raise TraceError(f"meta is a {type(data).__name__}, expected one JSON object")
        if data.get("schema") != SCHEMA:
            raise TraceError(
                f"meta.schema is {data.get('schema')!r}, this version reads {SCHEMA}: install the simspec that wrote it"
            )
        wanted = {f.name for f in fields(cls)} - (set(OPTIONAL) - set(data))
        if set(data) != wanted:
            raise TraceError(
                f"meta lacks {sorted(wanted - set(data))} and has unknown {sorted(set(data) - wanted)}"
            )
        return cls(**data)


def _as_tuple(value):
    return tuple(value) if isinstance(value, list) else value


def _int(low, high):
    return (
        lambda value: type(value) is int and low <= value < high,
        f"an integer in [{low}, {high})",
    )


def _tuple_of(kind, words):
    return (
        lambda value: type(value) is tuple and all(type(v) is kind for v in value),
        f"a list of {words}",
    )


def _texts(value):
    return type(value) is dict and all(type(x) is str for pair in value.items() for x in pair)


def _pairs(value):
    whole = type(value) is tuple and all(
        type(v) is tuple and len(v) == 2 and all(type(part) is str for part in v) for v in value
    )
    return whole and len({name for name, _ in value}) == len(value)


_TEXT = (lambda value: type(value) is str, "text")
_TEXTS = _tuple_of(str, "text")
_FIELDS = {
    "rule": (lambda value: value in RULES, f"one of {', '.join(RULES)}"),
    "target": _TEXT,
    "drafter": _TEXT,
    "K": _int(1, 256),
    "tokenizer_sha256": _TEXT,
    "features": (_pairs, "a list of (name, grid) pairs with different names"),
    "temperature": (
        lambda value: type(value) is float and 0 <= value < float("inf"),
        "a finite number >= 0",
    ),
    "seed": _int(0, 1 << 64),
    "end_tokens": _tuple_of(int, "integers"),
    "prefix_only": (lambda value: type(value) is bool, "true or false"),
    "sources": _TEXTS,
    "tasks": _TEXTS,
    "ids": _TEXTS,
    "device": _TEXT,
    "dtype": _TEXT,
    "predictors": (
        lambda value: (
            _texts(value) and all(re.fullmatch("[0-9a-f]{64}", x) for x in value.values())
        ),
        "an object of 64 hex digits a name",
    ),
    "versions": (_texts, "an object of text values"),
    "git": _TEXT,
    "argv": _TEXTS,
    "notes": _TEXT,
    "tree": (
        lambda value: (
            value == ()
            or type(value) is tuple
            and [*map(type, value)] == [int, int]
            and 1 <= value[0] <= 32
            and 1 <= value[1] <= 255
        ),
        "nothing, or a width in 1..32 and a number of levels in 1..255",
    ),
    "top_k": _int(0, 1 << 31),
    "top_p": (lambda value: type(value) is float and 0 < value <= 1, "a share in (0, 1]"),
    "schema": (lambda value: type(value) is int and value == SCHEMA, str(SCHEMA)),
}
