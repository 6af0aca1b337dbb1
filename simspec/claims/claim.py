"""Claim: a sentence of a paper and the function that tests it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from simspec.claims.card import Card
from simspec.claims.evidence import Evidence
from simspec.claims.recorded import PRICES, Price, Recordings

EESD, GLIDE, EAGLE, S2D = "EESD", "GLIDE with a CAPE", "EAGLE", "S2D"
REFERENCES = {
    EESD: "arXiv 2406.03853",
    GLIDE: "arXiv 2402.02082",
    EAGLE: "arXiv 2401.15077",
    S2D: "arXiv 2407.01955",
}
"""Where each paper is."""


@dataclass(frozen=True)
class Inputs:
    """What claims are tested on.

    | field | meaning |
    | --- | --- |
    | recordings | Recordings |
    | cards | of trained drafters |
    | seed, draws | of policies that draw: the first seed, and how many draws are averaged |
    """

    recordings: Recordings
    cards: Sequence[Card] = ()
    seed: int = 0
    draws: int = 4


Test = Callable[[Inputs, Price], list[Evidence]]


@dataclass(frozen=True)
class Claim:
    """A claim of a paper, or one part of a composite claim, with a verdict of its own.

    | field | meaning |
    | --- | --- |
    | number | its place in the list |
    | sentence | what it says, in our words |
    | paper, table | where it says so |
    | test | the evidence at a price; empty: there is none |
    | prices | at which it is tested; (): no price enters |
    | needs | what is missing where there is no evidence |
    | detail | how the sentence was made a test |
    | part | letter of a part of a composite claim; '': the claim is one statement |
    | regime | what the paper tested, against which control |
    | construction | why the test can hardly fail; '': it can |
    """

    number: int
    sentence: str
    paper: str
    table: str
    test: Test
    prices: tuple[Price, ...] = PRICES
    needs: str = "no recording"
    detail: str = ""
    part: str = ""
    regime: str = ""
    construction: str = ""

    @property
    def label(self) -> str:
        """Number and part, as 13b."""
        return f"{self.number}{self.part}"
