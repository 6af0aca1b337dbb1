"""Output files: validated before the work, and written completely or not at all."""

import errno
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import msgspec
import numpy as np

from simspec.output.names import csv_text, one_note

T = TypeVar("T")
UNREADABLE = (
    OSError, LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError,
)  # fmt: skip
"""What parsers raise for a file that is damaged or of another kind."""
LONGEST_REASON = 500
"""Characters of an error that quotes a file's content."""
MOST_JSON = 64 << 20
"""Bytes of a file of costs, a tree or another description."""
NUMBERS = re.compile(r"\[\n[^][{}\"]*\]")
"""A list of numbers in indented JSON; strings hold no line breaks there."""


def check_output(path: str | PathLike[str], *inputs: str | PathLike[str]) -> None:
    """ValueError, one line, where an output is a folder, has none, or would overwrite an input."""
    path = Path(path)
    if not path.name or path.is_dir():
        raise ValueError(f"{path} is a folder, expected a file to write: add a name")
    if not path.parent.is_dir():
        raise ValueError(
            f"{path} cannot be written, there is no folder {path.parent}: make it, or name another"
        )
    if not os.access(path.parent, os.W_OK):
        raise ValueError(f"{path} cannot be written, its folder is read-only: name another")
    for other in map(Path, inputs):
        if path.resolve() == other.resolve() or (
            path.exists() and other.exists() and path.samefile(other)
        ):
            raise ValueError(
                f"{path} would overwrite {other}, which this command reads or writes too: name "
                "another"
            )


@contextmanager
def replacing(path: str | PathLike[str]) -> Iterator[Path]:
    """A temporary path in the folder of `path`: on success it replaces `path` on the disk, else
    it is removed.

    OSError names `path` where the disk is full or cannot be written.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with naming(path):
            yield temporary
            mask = os.umask(0)
            os.umask(mask)
            # some writers leave files that only their owner may read
            temporary.chmod(0o666 & ~mask)
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def naming(path: str | PathLike[str]) -> Iterator[None]:
    """An OSError of the body that names no file, such as of a full disk, names this one."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(error.errno or errno.EIO, error.strerror or str(error), str(path)) from error


def json_text(value: Any, sort_keys: bool = False) -> str:
    """`value` as indented JSON with lists of numbers on one line, which halves a file of costs."""
    text = json.dumps(value, indent=1, sort_keys=sort_keys)
    return NUMBERS.sub(lambda found: f"[{' '.join(found[0][1:-1].split())}]", text) + "\n"


def write_json(path: str | PathLike[str], value: Any) -> None:
    """Writes `value` as JSON, completely or not at all; ValueError, one line, where it cannot be
    written.
    """
    try:
        with replacing(path) as temporary:
            temporary.write_text(json_text(value), encoding="utf-8")
    except OSError as error:
        raise ValueError(
            f"{path} cannot be written: {error.strerror}: choose another place"
        ) from None


def write_csv(table: Any, path: str | PathLike[str]) -> None:
    """Writes a data frame as CSV, completely or not at all; its texts are no formulas."""
    texts = table.select_dtypes(exclude=["number", "bool"]).map(
        lambda cell: csv_text(cell) if isinstance(cell, str) else cell
    )
    with replacing(path) as temporary:
        table.assign(**texts).to_csv(temporary, index=False)


def read_at_most(path: str | PathLike[str], most: int) -> bytes:
    """The bytes of a file, a pipe or a device; ValueError, of no path, where there are more."""
    parts, left = list[bytes](), most
    with open(path, "rb") as file:
        while part := file.read(1 << 20):
            parts.append(part)
            left -= len(part)
            if left < 0:
                raise ValueError(f"it has over {most:,} bytes")
    return b"".join(parts)


def read_lines(path: str | PathLike[str], most_line: int, most: int) -> Iterator[tuple[int, bytes]]:
    """(number, line) of the lines that are not blank; ValueError, of no path, where a line or the
    file has more bytes.
    """
    read = 0
    with open(path, "rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(most_line + 1), b""), 1):
            read += len(line)
            if len(line) > most_line or read > most:
                raise ValueError(
                    f"line {number}: expected at most {most_line:,} bytes a line and {most:,} a "
                    "file: split it"
                )
            if line.strip():
                yield number, line


def parse_json(text: str) -> Any:
    """The JSON value; ValueError where an object has a key twice, of which json keeps the last."""
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        (name, _), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"an object has the key {name[:60]!r} twice: keep one of them")
    return found


@contextmanager
def reraised(
    kind: type[Exception], what: str, remedy: str = "", raised: Any = UNREADABLE
) -> Iterator[None]:
    """What the body raises, as one line of this kind: WHAT: REASON; REMEDY."""
    try:
        yield
    except raised as error:
        reason, end = one_note(error)[:LONGEST_REASON], f"; {remedy}" if remedy else ""
        raise kind(f"{what}: {reason or type(error).__name__}{end}") from error


def read_json(path: str | PathLike[str], make: Callable[[Any], T], kind: str) -> T:
    """make(the JSON value in the file); ValueError, one line with the path and the `kind` of file
    expected.
    """
    raised = OSError, ValueError, OverflowError, RecursionError
    with reraised(ValueError, f"{path}: not a {kind}", raised=raised):
        return make(parse_json(read_at_most(path, MOST_JSON).decode("utf-8")))


def check_keys(data: Any, keys: Iterable[str]) -> None:
    """ValueError unless `data` is one JSON object with exactly these keys."""
    if not isinstance(data, dict):
        raise ValueError(f"holds a {type(data).__name__}, expected one object")
    expected = set(keys)
    if set(data) != expected:
        raise ValueError(
            f"missing keys {sorted(expected - set(data))}, unknown keys "
            f"{sorted(set(data) - expected)}"
        )


def converted(label: str, value: Any, kind: Any) -> Any:
    """`value` as `kind`; ValueError, one line that begins with `label`, where it is none."""
    if isinstance(value, np.generic):
        value = value.item()
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        reason = str(error).replace("Expected", "expected").replace("`", "")
        raise ValueError(f"{label} is {repr(value)[:80]}, {reason}") from None


def convert_fields(made: Any, label: str) -> None:
    """Each field of a frozen dataclass as its annotation says; ValueError as of `converted`."""
    for name, kind in field_types(type(made)).items():
        value = converted(f"{label}: {name}", getattr(made, name), kind)
        object.__setattr__(made, name, value)


def _field_types(kind: Any) -> dict[str, Any]:
    """{field: its annotation} of a dataclass."""
    hints = get_type_hints(kind, include_extras=True)
    return {each.name: hints[each.name] for each in fields(kind)}


field_types: Callable[[Any], dict[str, Any]] = cache(_field_types)
