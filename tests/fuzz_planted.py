"""Readers with one planted bug each, which the fuzzer must find, and one without."""

import json
import os
from pathlib import Path
from time import process_time

import numpy
from fuzz_mutations import Kind

SAMPLE = {"size": 10, "name": "x", "rows": [1, 2, 3]}


def sound(path: Path) -> dict:
    """Checks everything before it is used."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        raise ValueError(f"{path.name} is no JSON: expected an object") from None
    if not isinstance(data, dict) or set(data) != set(SAMPLE):
        raise ValueError(f"{path.name} has other keys: expected {', '.join(SAMPLE)}")
    return data


def tolerant(path: Path) -> dict:
    """Any object; {} for what is none."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError(f"{path.name} nests too deep: expected an object") from None
    return data if isinstance(data, dict) else {}


def size(path: Path) -> int:
    value = tolerant(path).get("size")
    return value if type(value) is int else 0


def two_lines(path: Path) -> None:
    if size(path) != 10:
        raise ValueError(f"size is {size(path)}\nexpected 10")


def slow(path: Path) -> None:
    end = process_time() + (2.2 if size(path) > 10**5 else 0)
    while process_time() < end:
        pass


def hangs(path: Path) -> None:
    while size(path) > 10**5:
        pass


def memory_hidden(path: Path) -> None:
    try:
        bytearray(max(size(path) - 10, 0) << 40)
    except (MemoryError, OverflowError):
        raise ValueError("not a file of ours: MemoryError") from None


READERS = {
    "sound": sound, "two_lines": two_lines, "slow": slow, "hangs": hangs,
    "memory_hidden": memory_hidden,
    "no_check_of_keys": lambda path: tolerant(path)["rows"],
    "no_check_of_nesting": lambda path: json.loads(
        path.read_text(encoding="utf-8", errors="replace")
    ),
    "declared_size": lambda path: bytes(b"\1" * min(max(size(path), 0), 300 << 20)),
    "aborts": lambda path: isinstance(tolerant(path).get("rows"), list) or os.abort(),
    "warns": lambda path: numpy.exp(numpy.float64(min(max(size(path), 0), 10**6))),
}  # fmt: skip
KINDS = {
    name: Kind(lambda folder: (folder / "a.json").write_text(json.dumps(SAMPLE)), reader)
    for name, reader in READERS.items()
}
