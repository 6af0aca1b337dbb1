"""Atomic writes: a file is whole or not there."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from simspec import files as output


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """`simspec.files.replacing` in a folder that is made where it is missing."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with output.replacing(path) as temporary:
        yield temporary


def replace_json(path: Path, value: object) -> None:
    """Writes `value` as JSON, atomically."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n", encoding="utf-8")
