"""Where results go: refused before the work where they cannot be, and whole or not there."""

import json
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
                f"{path} would overwrite {other}, which this command reads or writes too: name another"
            )


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Gives a temporary path beside `path`; on success what was written there is on the disk in place of `path`, else removed."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield temporary
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)  # some writers leave files that only their owner may read
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path, value) -> None:
    """Write `value` as JSON: a file of that name is replaced as a whole or left alone. ValueError, one line, where it cannot be."""
    try:
        with replacing(path) as temporary:
            temporary.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise ValueError(
            f"{path} cannot be written: {error.strerror}: choose another place"
        ) from None


def read_json(path, made, what: str):
    """made(the JSON value in the file); ValueError, one line with the path and `what` it is not, for whatever is wrong with either."""
    try:
        return made(json.loads(Path(path).read_text(encoding="utf-8")))
    except (OSError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"{path}: not a {what}: {' '.join(str(error).split())}") from None


def check_keys(data, wanted) -> None:
    """ValueError unless `data` is one JSON object with exactly the keys `wanted`."""
    if not isinstance(data, dict):
        raise ValueError(f"holds a {type(data).__name__}, expected one object")
    wanted = set(wanted)
    if set(data) != wanted:
        raise ValueError(
            f"missing keys {sorted(wanted - set(data))}, unknown keys {sorted(set(data) - wanted)}"
        )
