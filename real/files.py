"""Files written whole or not at all; JSON read with a remedy, and compared with a request."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from safetensors import SafetensorError

from simspec.output import files as output


def _embedded_models() -> Path:
    folder = Path(__file__).parent / "tiny"  # of a checkout; wheels have a package of their own
    package = None if folder.is_dir() else find_spec("simspec_models")
    places = package and package.submodule_search_locations
    return Path(places[0]) if places else folder


TINY = _embedded_models()
"""The folder of the embedded models; it is missing where simspec-models is not installed."""


def check_embedded_models() -> None:
    """ValueError, one line, where the embedded models are not installed."""
    if not TINY.is_dir():
        raise ValueError(
            "the embedded models are not installed: pip install 'simspec[demo]', or name models of "
            "your own"
        )


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
        except SafetensorError as error:  # safetensors has no separate error type for a full disk
            raise OSError(errno.EIO, " ".join(str(error).split())[:200], str(path)) from error


@contextmanager
def whole_folder(out: Path) -> Iterator[Path]:
    """A folder that becomes `out`, missing or empty until then, at the end or not at all."""
    part = out.with_name(f".{out.name}.part")  # a killed job leaves it; the next one starts anew
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        yield part
        if out.is_dir():
            out.rmdir()  # it is empty
        os.replace(part, out)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def replace_json(path: Path, value: object) -> None:
    """Writes `value` as JSON, atomically: indented, but for lists of numbers."""
    with replacing(path) as temporary:
        temporary.write_text(output.json_text(value, sort_keys=True), encoding="utf-8")


def read_card(path: Path) -> dict:
    """The content of a JSON file of ours; ValueError, naming the remedy, where it is damaged."""
    with output.reraised(ValueError, f"{path} is damaged", "delete it, and it is made anew"):
        return dict(output.parse_json(path.read_text(encoding="utf-8")))


def check_same_settings(
    stored: dict, requested: dict, place: Path, remedy: str = "choose another --name, or delete it"
) -> None:
    """ValueError naming the first setting that differs from the stored ones of a file or folder."""
    flat = [
        {
            f"{key} {name}".strip(): value
            for key, held in settings.items()
            for name, value in (held if isinstance(held, dict) else {"": held}).items()
        }
        for settings in (stored, requested)
    ]
    for name in flat[0] | flat[1]:
        was, now = (settings.get(name) for settings in flat)
        if was != now:
            raise ValueError(
                f"{place} was made with {name:.60} {was!r:.60}, now {now!r:.60} is asked for; "
                f"{remedy}"
            )
