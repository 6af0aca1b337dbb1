"""The formats of `simspec import`, each declared in its file of this folder."""

from dataclasses import fields
from difflib import get_close_matches
from os import PathLike
from pathlib import Path

from simspec.imports.kinds import Import
from simspec.imports.options import ImportFormat, ImportOptions
from simspec.imports.source import read_source
from simspec.output.files import LONGEST_REASON
from simspec.plugins import plugins

FORMATS: dict[str, ImportFormat] = {
    made.name: made
    for file in plugins("simspec.imports", "FORMATS", besides=("formats",)).values()
    for made in file.FORMATS
}
"""Every format, by name."""


def read_import(
    format: str, path: str | PathLike[str], options: ImportOptions | None = None
) -> Import:
    """What the file holds; ValueError, one line with the file, where it is not of this format."""
    if format not in FORMATS:
        near = get_close_matches(format, FORMATS, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ValueError(
            f"format {format!r} is unknown: {hint}expected one of {', '.join(FORMATS)}"
        )
    options = options or ImportOptions()
    for field in fields(options):
        stated = getattr(options, field.name) != field.default
        if stated and field.name not in FORMATS[format].options:
            raise ValueError(f"format {format} does not read {field.name}: leave that option out")
    source = read_source(format, path)
    try:
        return FORMATS[format].read(source, options)
    except (ValueError, OverflowError, RecursionError) as error:
        reason = " ".join(str(error).split())[:LONGEST_REASON]
        raise ValueError(f"{Path(path)}: {reason}") from None
