"""The tables by name, in the order of the papers."""

from collections.abc import Callable

from simspec.claims.claim import Inputs
from simspec.papers import eagle, eesd, glide, s2d
from simspec.papers.table import PaperTable

TABLES: dict[str, Callable[[Inputs], PaperTable]] = {
    "eesd-4": eesd.table_4,
    "eesd-5": eesd.table_5,
    "eesd-6": eesd.table_6,
    "eesd-7": eesd.table_7,
    "eesd-8": eesd.table_8,
    "eesd-figure-4": eesd.figure_4,
    "eesd-figure-5": eesd.figure_5,
    "glide-3": glide.table_3,
    "glide-4": glide.table_4,
    "glide-figure-4": glide.figure_4,
    "glide-figure-7": glide.figure_7,
    "eagle-1": eagle.table_1,
    "eagle-5": eagle.table_5,
    "eagle-figure-10": eagle.figure_10,
    "s2d-4": s2d.table_4,
    "s2d-figure-3": s2d.figure_3,
}
"""A published table or figure: one entry here, and one function."""
