"""Atomic writes: a file is whole or not there."""

import errno
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from simspec.output import files as output


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """`simspec.output.files.replacing` in a folder that is made where it is missing.

    OSError where safetensors cannot write, too.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with output.replacing(path) as temporary:
        try:
            yield temporary
        except SafetensorError as error:  # a full disk has no type of its own there
            raise OSError(errno.EIO, " ".join(str(error).split())[:200], str(path)) from error


NUMBERS = re.compile(r"\[\n[^][{}\"]*\]")
"""A list of numbers in indented JSON; strings hold no line breaks there."""


def replace_json(path: Path, value: object) -> None:
    """Writes `value` as JSON, atomically: indented, but for lists of numbers."""
    text = json.dumps(value, indent=1, sort_keys=True)
    text = NUMBERS.sub(lambda found: json.dumps(json.loads(found[0])), text)
    with replacing(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")
