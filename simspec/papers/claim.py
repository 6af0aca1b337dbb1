"""Claim: a sentence of a paper and its test; verdicts with one error rate, and their page."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from simspec.numerics.stats import holm
from simspec.output.files import replacing
from simspec.output.table import Table
from simspec.papers.card import Card
from simspec.papers.evidence import Effect
from simspec.papers.recorded import MEASURED, PRICES, Price, Recordings

EESD, GLIDE, EAGLE, S2D = "EESD", "GLIDE with a CAPE", "EAGLE", "S2D"
REFERENCES = {
    EESD: "arXiv 2406.03853",
    GLIDE: "arXiv 2402.02082",
    EAGLE: "arXiv 2401.15077",
    S2D: "arXiv 2407.01955",
}
"""The address of each paper."""


@dataclass(frozen=True)
class Inputs:
    """Recordings, cards and seeds that claims are tested on.

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


Test = Callable[[Inputs, Price], list[Effect]]


@dataclass(frozen=True)
class Claim:
    """A claim of a paper, or one part of a composite claim, with a separate verdict.

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
    | construction | why the test can almost never fail; '': it can |
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


HELD, FAILED, UNDECIDED = "held", "did not hold", "undecided"
BY_CONSTRUCTION = "by construction"
ALPHA = 0.05
COVERED = (
    f"The chance that any 'held' or 'did not hold' is wrong is {ALPHA:.0%} at most over the draw "
    "of prompts, given these recordings, costs and cards. It does not cover the training seed "
    "(two for drafters that claims compare, else one), errors of the measured costs, or tests that "
    "changed after a look at results."
)
"""The sources of error that the error rate of the verdicts covers."""
NO_PRICE = Price("no price")


@dataclass(frozen=True)
class Verdict:
    """A claim at one price.

    | field | meaning |
    | --- | --- |
    | claim, price | Claim, and the price's name |
    | verdict | held, by construction, did not hold or undecided |
    | p | of the verdict's error, after Holm's step-down over all verdicts; 1 without evidence |
    | reason | '' or why no evidence counts |
    | evidence | (Effect,) |
    """

    claim: Claim
    price: str
    verdict: str
    p: float
    reason: str
    evidence: tuple[Effect, ...]

    @property
    def inside(self) -> tuple[int, int]:
        """(recordings that count whose 95% intervals all lie within the bounds, all that count)."""
        of: dict[str, bool] = {}
        for e in self.evidence:
            if e.source.counted:
                low, high = e.bounds
                within = low < e.interval.low and e.interval.high < high
                of[e.source.name] = of.get(e.source.name, True) and within
        return sum(of.values()), len(of)

    def to_dict(self) -> dict[str, Any]:
        """The fields for JSON, less the claim, with the recordings and how many are inside."""
        shown = {name: value for name, value in vars(self).items() if name != "claim"}
        names = dict.fromkeys(e.source.name for e in self.evidence)
        return shown | {"inside": self.inside, "recordings": list(names)}


def verdicts_on(
    claims: Sequence[Claim], inputs: Inputs, progress: Callable[[Claim], None] = lambda claim: None
) -> list[Verdict]:
    """The verdict on each claim at each of its prices; `progress` is called before each claim."""
    found = []
    for claim in claims:
        progress(claim)
        for price in claim.prices or (NO_PRICE,):
            evidence = tuple(claim.test(inputs, price))
            excluded = dict.fromkeys(e.source.excluded for e in evidence)
            reason = f"nothing counts ({', '.join(excluded)})" if evidence else claim.needs
            reason = "" if "" in excluded else reason
            found.append(Verdict(claim, price.name, UNDECIDED, 1.0, reason, evidence))
    return decided(found)


def decided(found: Sequence[Verdict], alpha: float = ALPHA) -> list[Verdict]:
    """The verdicts; any 'held' or 'did not hold' is wrong with a chance of alpha at most.

    The chance is over the draw of prompts, given recordings, costs and cards, see `COVERED`.
    With p_i and q_i the p-values of `Effect.inside` and `outside` of n pieces of evidence:

    | verdict | shown | p-value |
    | --- | --- | --- |
    | held, or by construction | every piece | 2 max p_i |
    | did not hold | at least one piece contradicts | 2 n min q_i |

    The smaller is Holm-adjusted over all verdicts that have evidence.
    """
    sides = [_sides(verdict.evidence) for verdict in found]
    tested = [i for i, side in enumerate(sides) if side is not None]
    p = np.array([min(1.0, 2 * min(side)) for side in sides if side is not None])
    adjusted = dict(zip(tested, holm(p))) if tested else {}
    rows = []
    for i, (verdict, side) in enumerate(zip(found, sides)):
        if side is None:
            rows.append(verdict)
            continue
        held = BY_CONSTRUCTION if verdict.claim.construction else HELD
        word = held if side[0] <= side[1] else FAILED
        q = float(adjusted[i])
        rows.append(replace(verdict, p=q, verdict=word if q <= alpha else UNDECIDED))
    return rows


def _sides(evidence: Sequence[Effect]) -> tuple[float, float] | None:
    """(p-value of 'held', p-value of 'did not hold') of the pieces that count; None: no piece."""
    counted = [e for e in evidence if e.source.counted]
    if not counted:
        return None
    against = len(counted) * min(e.outside for e in counted)
    return max(e.inside for e in counted), min(1.0, against)


BEGIN, END = "<!-- claims: begin, written by simspec claims -->", "<!-- claims: end -->"
GROUPS = (
    ("measured", (MEASURED,)),
    ("flat, c = .05 / .10 / .15", tuple(price for price in PRICES if price.flat)),
    ("rows, c = .05 / .10 / .15", PRICES[1 + sum(price.flat for price in PRICES) :]),
)
"""Columns of verdicts: heading, prices."""
SHOWN = (NO_PRICE.name, MEASURED.name, "c=0.10 flat")
"""Prices whose evidence is shown; `--json` has all."""
Row = tuple[str, ...]


def verdict_table(verdicts: Sequence[Verdict]) -> Table:
    """One row a claim: label, sentence, place, and the verdicts at each group of prices.

    Each verdict is followed by the number of counted recordings whose effect lies where claimed.
    """
    rows = []
    for claim in dict.fromkeys(v.claim for v in verdicts):
        of = {v.price: v for v in verdicts if v.claim is claim}
        if NO_PRICE.name in of or all(v.reason for v in of.values()):
            cells = [_cell([*of.values()]), "", ""]
        else:
            cells = [_cell([of[p.name] for p in prices if p.name in of]) for _, prices in GROUPS]
        rows.append((claim.label, claim.sentence, claim.table, *cells))
    headings = "claim", "", "where", *(name for name, _ in GROUPS)
    return Table(headings, rows, names=2, optional=("where",))


def _cell(verdicts: Sequence[Verdict]) -> str:
    if not verdicts:
        return "-"
    words = [f"{v.verdict}: {v.reason}" if v.reason else v.verdict for v in verdicts]
    shown = " / ".join(words[:1] if len(set(words)) == 1 else words)
    counts = [v.inside for v in verdicts if v.inside[1]]
    if not counts:
        return shown
    counts = counts[:1] if len(set(counts)) == 1 else counts
    if len({n for _, n in counts}) == 1:
        return f"{shown} ({', '.join(str(m) for m, _ in counts)} of {counts[0][1]})"
    return f"{shown} ({' / '.join(f'{m} of {n}' for m, n in counts)})"


def evidence_table(verdicts: Iterable[Verdict]) -> Table:
    """One row for each effect on each recording, with its values at the prices of SHOWN."""
    rows: dict[Row, dict[str, Effect]] = {}
    for verdict in verdicts:
        for e in verdict.evidence:
            if verdict.price in SHOWN:
                why = "" if e.source.counted else f" ({e.source.excluded}: not counted)"
                of = verdict.claim.label, e.part, e.source.name + why
                rows.setdefault(of, {})[verdict.price] = e
    headings = "claim", "effect", "recording", "claimed", *SHOWN[1:], "prompts", "figures"
    return Table(headings, [(*of, *_values(by_price)) for of, by_price in rows.items()], names=3)


def _values(by_price: Mapping[str, Effect]) -> Row:
    """Bounds, values and figures at SHOWN, prompts; a figure that prices share is given once."""
    first = next(iter(by_price.values()))
    values = [
        by_price[name].interval.text("+.3f") if name in by_price else "" for name in SHOWN[1:]
    ]
    if NO_PRICE.name in by_price:
        values = [first.interval.text("+.3f"), ""]
    shown = [[f"{name} {x:.2f}" for name, x in e.figures.items()] for e in by_price.values()]
    figures = "; ".join(dict.fromkeys(", ".join(texts) for texts in shown))
    return _bounds(first), *values, str(first.interval.prompts), figures


def _bounds(evidence: Effect) -> str:
    low, high = evidence.bounds
    return f"above {low:g}" if high == float("inf") else f"{low:g} to {high:g}"


def markdown(verdicts: Sequence[Verdict], evidence: bool = True) -> str:
    """For each paper the verdicts on its claims, how each was tested, and perhaps the evidence."""
    parts = [f"{summary(verdicts)} {COVERED}"]
    for paper, reference in REFERENCES.items():
        of = [verdict for verdict in verdicts if verdict.claim.paper == paper]
        if not of:
            continue
        claims = list(dict.fromkeys(verdict.claim for verdict in of))
        parts += [
            f"## {paper} ({reference})",
            verdict_table(of).markdown(),
            "\n".join(map(_tested, claims)),
        ]
        shown = evidence_table(of)
        if evidence and shown.rows:
            parts.append(shown.markdown())
    return "\n\n".join(parts)


def verdict_tables(verdicts: Sequence[Verdict]) -> list[Table]:
    """The verdicts on the claims of each paper, the last with the counts."""
    papers = list(dict.fromkeys(p for p in REFERENCES for v in verdicts if v.claim.paper == p))
    note = (
        f"{summary(verdicts)} (m of n): on m of the n recordings that count the 95% interval lies "
        f"where claimed. flat: verification costs a plain step; rows: as measured; empty: no price "
        f"enters. {COVERED} "
        "--json has figures and intervals."
    )
    tables = []
    for paper in papers:
        of = verdict_table([verdict for verdict in verdicts if verdict.claim.paper == paper])
        below = (note,) if paper == papers[-1] else ()
        tables.append(replace(of, title=paper, notes=below))
    return tables


def _tested(claim: Claim) -> str:
    """How a claim was tested here, what the paper tested, and what decides by construction."""
    built = f" By construction: {claim.construction}" if claim.construction else ""
    return f"- {claim.label}: {claim.detail} In the paper: {claim.regime}{built}"


def summary(verdicts: Sequence[Verdict]) -> str:
    """How many statements held at some price, at all, or by construction, and how many did not."""
    by_claim: dict[Claim, list[str]] = {}
    for verdict in verdicts:
        by_claim.setdefault(verdict.claim, []).append(verdict.verdict)
    words = list(by_claim.values())
    numbers = {claim.number for claim in by_claim}
    everywhere, never, undecided = (
        sum(set(of) == {word} for of in words) for word in (HELD, FAILED, UNDECIDED)
    )
    somewhere, built = (sum(word in of for of in words) for word in (HELD, BY_CONSTRUCTION))
    return (
        f"{len(numbers)} claims are {len(words)} statements: {everywhere} held at every price and "
        f"{somewhere} at one at least; {built} hold by construction of the test; {never} did not "
        f"hold at any price; {undecided} are undecided at every price."
    )


def renew(path: Path, text: str) -> None:
    """Replace the text between the markers of a page, completely or not at all.

    ValueError for a file without the two markers, once each and in order.
    """
    page = path.read_text(encoding="utf-8")
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end) or BEGIN in rest or END in tail:
        raise ValueError(f"{path} has no place for the tables: add the lines {BEGIN} and {END}")
    with replacing(path) as temporary:
        temporary.write_text(f"{head}{BEGIN}\n\n{text}\n\n{END}{tail}", encoding="utf-8")
