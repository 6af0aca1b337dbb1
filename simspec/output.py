"""Where results go: refused before the work where they cannot be, and whole or not there."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def check_output(path: Path, *inputs) -> None:
    """Refuse an output before the work is done: ValueError, one line, where it is or lacks a folder, or is an `input`."""
    path = Path(path)
    if not path.name or path.is_dir():
        raise ValueError(f"{path} is a folder, expected a file to write: add a name")
    if not path.parent.is_dir():
        raise ValueError(f"{path} cannot be written, there is no folder {path.parent}: make it, or name another")
    if not os.access(path.parent, os.W_OK):
        raise ValueError(f"{path} cannot be written, its folder is read-only: name another")
    for other in map(Path, inputs):
        if path.resolve() == other.resolve() or (path.exists() and other.exists() and path.samefile(other)):
            raise ValueError(f"{path} would overwrite {other}, which this command reads or writes too: name another")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Gives a temporary path beside `path`; on success it replaces `path`, on failure it is removed."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield temporary
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)  # some writers leave files that only their owner may read
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
