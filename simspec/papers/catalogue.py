"""Claims and tables of the papers, collected from the files that declare them.

A file of this folder declares its claims in `CLAIMS`, and its tables in `TABLES`.
"""

from collections.abc import Callable

from simspec.output.table import Table
from simspec.papers.claim import Claim, Inputs
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

TABLES: dict[str, Callable[[Inputs], Table]] = {
    name: table
    for file in plugins("simspec.papers", "TABLES", besides=("catalogue",)).values()
    for name, table in file.TABLES.items()
}
"""Published tables and figures by name."""
