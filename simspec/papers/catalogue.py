"""Claims and tables of the papers, collected from the files that declare them.

A file of this folder declares its claims in `CLAIMS`, and its tables in `TABLES`.
"""

from collections.abc import Callable

from simspec.output.table import Table
from simspec.papers.claim import REFERENCES, Claim, Inputs
from simspec.plugins import plugins

CLAIMS: tuple[Claim, ...] = tuple(
    sorted(
        (
            claim
            for file in plugins("simspec.papers", "CLAIMS", besides=("catalogue",)).values()
            for claim in file.CLAIMS
        ),
        key=lambda claim: (claim.number, claim.part),
    )
)
"""All claims, in the order of the list that the project set out to test."""

_PAPERS = [paper.split()[0].lower() for paper in REFERENCES]
_FILES = plugins("simspec.papers", "TABLES", besides=("catalogue",))

TABLES: dict[str, Callable[[Inputs], Table]] = {
    name: table
    for file in sorted(_FILES, key=lambda name: [*_PAPERS, name].index(name))
    for name, table in _FILES[file].TABLES.items()
}
"""Published tables and figures by name, in the order of the papers."""
