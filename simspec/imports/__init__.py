"""Imports: what other tools recorded of speculative decoding, and what may be concluded from it."""

from simspec.imports.formats import FORMATS, read_import
from simspec.imports.options import ImportOptions

__all__ = ["FORMATS", "ImportOptions", "read_import"]
