"""The formats of `simspec export`, each declared in its own file of this folder."""

from simspec.exports.request import Format
from simspec.plugins import plugins

FORMATS: dict[str, Format] = {
    made.name: made
    for file in plugins("simspec.exports", "FORMATS", besides=("formats", "write")).values()
    for made in file.FORMATS
}
"""Every format, by name."""
