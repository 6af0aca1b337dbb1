"""Atomic writes: a file is whole or not there."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Gives a temporary path beside `path`; on success it replaces `path`, on failure it is removed."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield temporary
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)  # some writers leave files that only their owner may read
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def replace_json(path: Path, value: object) -> None:
    """Writes `value` as JSON, atomically."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n", encoding="utf-8")
