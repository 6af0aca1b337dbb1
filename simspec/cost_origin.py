"""CostOrigin: where and with what costs were measured, and whether two origins agree."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from simspec.files import check_keys

IDENTITY = ("device", "threads", "dtype")
"""What two costs have to share before their seconds can be compared."""

_MAPS = ("engines", "versions", "products")


@dataclass(frozen=True)
class CostOrigin:
    """Where and with what costs were measured; an empty value, or 0, is unknown.

    | field | type | meaning |
    | --- | --- | --- |
    | device | str | the GPU, or the processor |
    | threads | int >= 0 | of torch on the host |
    | dtype | str | of weights and caches |
    | engines | {model: engine} | engines that the target and the drafter ran on |
    | versions | {library: version} | of Python and of the libraries that decide latency |
    | created | str | UTC, ISO 8601 |
    | sitting | str | equal in all files that one measurement wrote |
    | products | {shape: text} | how each number of rows is multiplied, chosen when models load |

    ValueError for values of another type.
    """

    device: str = ""
    threads: int = 0
    dtype: str = ""
    engines: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    created: str = ""
    sitting: str = ""
    products: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name == "threads":
                valid, expected = type(value) is int and value >= 0, "a whole number >= 0"
            elif item.name in _MAPS:
                valid = isinstance(value, Mapping) and all(
                    isinstance(text, str) for pair in value.items() for text in pair
                )
                expected = "an object of texts"
            else:
                valid, expected = isinstance(value, str), "text"
            if not valid:
                raise ValueError(f"origin: {item.name} is {value!r}, expected {expected}")

    def differences(self, other: "CostOrigin") -> tuple[str, ...]:
        """Which of IDENTITY both origins know, and know differently."""
        pairs = ((name, getattr(self, name), getattr(other, name)) for name in IDENTITY)
        return tuple(name for name, ours, theirs in pairs if ours and theirs and ours != theirs)

    @property
    def known(self) -> bool:
        """Whether all of IDENTITY is known."""
        return all(getattr(self, name) for name in IDENTITY)

    def to_dict(self) -> dict[str, Any]:
        """Plain texts and numbers, as in the file."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        values = {name: dict(v) if name in _MAPS else v for name, v in values.items()}
        return values if self.products else {k: v for k, v in values.items() if k != "products"}

    @classmethod
    def from_dict(cls, data: Any) -> "CostOrigin":
        """The inverse of `to_dict`; ValueError for missing or unknown keys and for other values."""
        names = (item.name for item in fields(cls))
        check_keys(data, (name for name in names if name != "products" or name in data))
        return cls(**data)


def read_origin(data: Any) -> tuple[Any, CostOrigin | None]:
    """(the JSON value of a cost file without its origin, the origin or None).

    Older files hold "engines" alone. ValueError for an invalid origin.
    """
    if not isinstance(data, dict):
        return data, None
    rest = {key: value for key, value in data.items() if key not in ("engines", "origin")}
    if "origin" in data:
        if "engines" in data:
            raise ValueError("holds engines beside an origin, expected them inside it")
        return rest, CostOrigin.from_dict(data["origin"])
    if "engines" in data:
        return rest, CostOrigin(engines=data["engines"])
    return rest, None
