"""Tables and claims of four papers, on this project's recordings: one file a paper."""

from collections.abc import Callable
from functools import partial

from simspec.output.frames import DataFrame
from simspec.papers import eagle, eesd, glide, s2d
from simspec.papers.claims import Claim, evidence, summary, verdict_table
from simspec.papers.recorded import Recordings

CLAIMS: dict[str, tuple[Claim, ...]] = {
    "eesd": eesd.CLAIMS, "glide": glide.CLAIMS, "eagle": eagle.CLAIMS, "s2d": s2d.CLAIMS,
}  # fmt: skip
"""Claims by paper: EESD (arXiv 2406.03853), GLIDE with a CAPE (2402.02082), EAGLE (2401.15077) and
S2D (2407.01955)."""

TABLES: dict[str, Callable[[Recordings], DataFrame]] = {
    **eesd.TABLES, **glide.TABLES, **eagle.TABLES, **s2d.TABLES,
    **{f"{paper}-claims": partial(evidence, claims) for paper, claims in CLAIMS.items()},
    **{f"{paper}-verdicts": partial(verdict_table, claims) for paper, claims in CLAIMS.items()},
    "claims": partial(summary, [claim for claims in CLAIMS.values() for claim in claims]),
}  # fmt: skip
"""Published tables and figures by name, the evidence and the verdicts of each paper's claims, and
the verdicts on all claims."""
