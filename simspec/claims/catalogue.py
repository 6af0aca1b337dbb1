"""The 20 claims of four papers, collected from the files that test them.

A file of this folder declares its claims in `CLAIMS`.
"""

from simspec.claims.claim import Claim
from simspec.plugins import plugins

CLAIMS: tuple[Claim, ...] = tuple(
    sorted(
        (
            claim
            for file in plugins("simspec.claims", "CLAIMS", besides=("catalogue",)).values()
            for claim in file.CLAIMS
        ),
        key=lambda claim: (claim.number, claim.part),
    )
)
"""All claims, in the order of the list that the project set out to test."""
