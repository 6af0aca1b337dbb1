"""The metadata of a recording with its strict JSON form, and the arrays of a trace."""

import json
import math
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from typing import Annotated, Any, Literal, get_type_hints

import msgspec
from msgspec import Meta

ARRAYS: dict[str, tuple[str, tuple[str, ...]]] = {
    "offset": ("int64", ("S+1",)),
    "budget": ("int64", ("S",)),
    "prompt_offset": ("int64", ("S+1",)),
    "prompt": ("int32", ("P",)),
    "sequence": ("int64", ("S",)),
    "token": ("int32", ("N",)),
    "depth": ("uint8", ("N",)),
    "run": ("uint8", ("N",)),
    "feature": ("uint8", ("N", "K", "F")),
    "rank": ("uint8", ("N", "K")),
    "margin": ("uint8", ("N",)),
    "draft_margin": ("uint8", ("N", "K")),
    "feature_margin": ("uint8", ("N", "K")),
    "ratio": ("float32", ("N", "K")),
    "order": ("uint8", ("N", "K")),
    "beam": ("uint8", ("N", "2")),
}
"""Name: (dtype, axes). S sequences, N rows, P prompt tokens, K draft slots, F features."""

OPTIONAL = ("rank", "margin", "draft_margin", "feature_margin", "ratio", "order", "beam")
BY_SEQUENCE = tuple(name for name, (_, axes) in ARRAYS.items() if "N" not in axes)
BY_ROW = tuple(name for name, (_, axes) in ARRAYS.items() if "N" in axes)

RULES = ("greedy", "coupled", "rejection", "synthetic")
SCHEMA = 2
OMITTED: dict[str, Any] = {
    "tree": (), "top_k": 0, "top_p": 1.0, "batch": 1, "chat": {}, "drafter_sha256": ""
}  # fmt: skip
"""Keys that the file omits where they have these values, so that older files keep their bytes."""
SHA256 = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]


class TraceError(ValueError):
    """A trace, or a file of one, that breaks its own invariants."""


@dataclass(frozen=True)
class TraceMeta:
    """Origin of a trace.

    | field            | meaning                                                     |
    | ---------------- | ----------------------------------------------------------- |
    | rule             | greedy, coupled (shared noise), rejection or synthetic      |
    | target, drafter  | names, the drafter's with its settings                      |
    | K                | deepest draft recorded                                      |
    | tokenizer_sha256 | hash of the tokenizer's files; '' if there is none          |
    | features         | (name, grid) after each slot, in the order of Trace.feature |
    | temperature      | 0 for greedy                                                |
    | seed             | < 2**64; of the target's noise, or the synthetic generator  |
    | end_tokens       | tokens that end a sequence                                  |
    | prefix_only      | the drafter reads the token prefix and nothing else         |
    | sources          | sources of the prompts, with their licenses                 |
    | tasks, ids       | of each sequence: task or category, prompt id               |
    | device, dtype    | of the recording                                            |
    | predictors       | feature -> SHA-256 of its predictor, in hex                 |
    | versions         | library versions                                            |
    | git, notes       | revision, anything else                                     |
    | argv             | command line                                                |
    | tree             | () or width and levels of the dynamic trees of Trace.order  |
    | top_k, top_p     | truncation of both distributions; 0 and 1.0: none           |
    | batch            | sequences written at a time; passes differ in rounding      |
    | chat             | template, its sha256 and system prompt; {}: none            |
    | drafter_sha256   | hash of the drafter's weights; '': unknown, or none         |
    | schema           | version of this table                                       |

    TraceError for a value of the wrong type or outside its range.
    """

    rule: Annotated[str, Meta(pattern=rf"\A({'|'.join(RULES)})\Z")]
    target: str
    drafter: str
    K: Annotated[int, Meta(ge=1, le=255)]
    tokenizer_sha256: str = ""
    features: tuple[tuple[str, str], ...] = ()
    temperature: Annotated[float, Meta(ge=0)] = 0.0
    seed: int = 0
    end_tokens: tuple[int, ...] = ()
    prefix_only: bool = False
    sources: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    device: str = "cpu"
    dtype: str = "float32"
    predictors: dict[str, SHA256] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    git: str = ""
    argv: tuple[str, ...] = ()
    notes: str = ""
    schema: Literal[2] = 2
    tree: tuple[int, int] | tuple[()] = ()
    top_k: Annotated[int, Meta(ge=0, lt=1 << 31)] = 0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    batch: Annotated[int, Meta(ge=1, lt=1 << 31)] = 1
    chat: dict[str, str] = field(default_factory=dict)
    drafter_sha256: Annotated[str, Meta(pattern=r"\A([0-9a-f]{64})?\Z")] = ""

    def __post_init__(self) -> None:
        for name, kind in _types().items():
            try:
                object.__setattr__(self, name, msgspec.convert(getattr(self, name), kind))
            except msgspec.ValidationError as error:
                reason = str(error).replace("`", "").replace("Expected", "expected")
                raise TraceError(f"meta.{name} is {getattr(self, name)!r}, {reason}") from None
        cut, drawn = (self.top_k, self.top_p) != (0, 1.0), self.rule in ("coupled", "rejection")
        known = [name for name, _ in self.features]
        for name, fits, expected in (
            ("features", len(set(known)) == len(known), "different names"),
            ("seed", 0 <= self.seed < 1 << 64, "an integer in [0, 2**64)"),
            ("temperature", math.isfinite(self.temperature), "a finite number"),
            ("temperature", self.temperature or self.rule != "rejection", "more than 0 there"),
            ("top_p", drawn or not cut, f"top_k 0 and top_p 1.0 under rule {self.rule!r}"),
            ("predictors", set(self.predictors) <= set(known), f"some of the features {known}"),
            ("tree", not self.tree or (len(self.tree) == 2 and self.tree[0] <= 32),
             "nothing, or a width in 1..32 and a number of levels"),
            ("chat", not self.chat or _is_chat(self.chat), "template, sha256 and system"),
        ):  # fmt: skip
            if not fits:
                raise TraceError(f"meta.{name} is {getattr(self, name)!r}, expected {expected}")

    def to_json(self) -> str:
        """The metadata as one JSON object, keys in the order of the table; those of OMITTED only
        where they differ.
        """
        data = asdict(self)
        return json.dumps(
            {key: data[key] for key in data if key not in OMITTED or data[key] != OMITTED[key]}
        )

    @classmethod
    def from_json(cls, text: str) -> "TraceMeta":
        """Reads `to_json`'s text; TraceError for anything else: not JSON, a missing or unknown key,
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
        expected = {f.name for f in fields(cls)} - (set(OMITTED) - set(data))
        if set(data) != expected:
            missing, unknown = sorted(expected - set(data)), sorted(set(data) - expected)
            raise TraceError(f"meta lacks {missing} and has unknown {unknown}")
        return cls(**data)


@cache
def _types() -> dict[str, Any]:
    level = Annotated[int, Meta(ge=1, le=255)]  # msgspec knows no union of two tuples
    return get_type_hints(TraceMeta, include_extras=True) | {"tree": tuple[level, ...]}


def _is_chat(chat: dict[str, str]) -> bool:
    hashed = len(chat.get("sha256", "")) == 64 and set(chat["sha256"]) <= set("0123456789abcdef")
    return hashed and set(chat) == {"template", "sha256", "system"}
