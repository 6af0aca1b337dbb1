"""The verdicts as tables of a page, one paper after another, and the page's renewal."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from simspec.claims.claim import REFERENCES, Claim
from simspec.claims.evidence import Evidence
from simspec.claims.price import MEASURED, PRICES
from simspec.claims.verdict import (
    BY_CONSTRUCTION,
    COVERED,
    FAILED,
    HELD,
    NO_PRICE,
    UNDECIDED,
    Verdict,
)
from simspec.output.files import replacing
from simspec.output.terminal import markdown_table
from simspec.reports.intervals import interval_text

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


def headings() -> Row:
    """Of the table of verdicts."""
    return "claim", "", "where", *(name for name, _ in GROUPS)


def verdict_rows(verdicts: Sequence[Verdict]) -> list[Row]:
    """One row a claim: label, sentence, place, and the verdicts at each group of prices.

    Behind a verdict is on how many recordings, of those that count, the effect lies where claimed.
    """
    rows = []
    for claim in dict.fromkeys(v.claim for v in verdicts):
        of = {v.price: v for v in verdicts if v.claim is claim}
        if all(v.reason for v in of.values()):
            cells = [_cell([*of.values()]), "", ""]
        elif NO_PRICE.name in of:
            cells = [f"{_cell([*of.values()])}, no price enters", "", ""]
        else:
            cells = [_cell([of[p.name] for p in prices if p.name in of]) for _, prices in GROUPS]
        rows.append((claim.label, claim.sentence, claim.table, *cells))
    return rows


def _cell(verdicts: Sequence[Verdict]) -> str:
    if not verdicts:
        return "-"
    words = [f"{v.verdict}: {v.reason}" if v.reason else v.verdict for v in verdicts]
    counts = ["{} of {}".format(*v.inside) for v in verdicts if v.inside[1]]
    texts = [parts[:1] if len(set(parts)) == 1 else parts for parts in (words, counts)]
    return " / ".join(texts[0]) + (f" ({' / '.join(texts[1])})" if counts else "")


def evidence_rows(verdicts: Iterable[Verdict]) -> list[Row]:
    """One row for each effect on each recording, with its values at the prices of SHOWN."""
    rows: dict[Row, dict[str, Evidence]] = {}
    for verdict in verdicts:
        for e in verdict.evidence:
            if verdict.price in SHOWN:
                why = "" if e.source.counted else f" ({e.source.excluded}: not counted)"
                of = verdict.claim.label, e.part, e.source.name + why
                rows.setdefault(of, {})[verdict.price] = e
    return [(*of, *_values(by_price)) for of, by_price in rows.items()]


def _values(by_price: Mapping[str, Evidence]) -> Row:
    """Bounds, values and figures at SHOWN, prompts; a figure stands once where prices share it."""
    first = next(iter(by_price.values()))
    values = [
        interval_text(by_price[name].interval, "+.3f") if name in by_price else ""
        for name in SHOWN[1:]
    ]
    if NO_PRICE.name in by_price:
        values = [interval_text(first.interval, "+.3f"), ""]
    shown = [[f"{name} {x:.2f}" for name, x in e.figures.items()] for e in by_price.values()]
    figures = "; ".join(dict.fromkeys(", ".join(texts) for texts in shown))
    return _bounds(first), *values, str(first.interval.prompts), figures


def _bounds(evidence: Evidence) -> str:
    low, high = evidence.bounds
    return f"above {low:g}" if high == float("inf") else f"{low:g} to {high:g}"


def markdown(verdicts: Sequence[Verdict]) -> str:
    """For each paper the verdicts on its claims, how each was tested, and the evidence."""
    parts = [f"{summary(verdicts)} {COVERED}"]
    for paper, reference in REFERENCES.items():
        of = [verdict for verdict in verdicts if verdict.claim.paper == paper]
        if not of:
            continue
        claims = list(dict.fromkeys(verdict.claim for verdict in of))
        parts += [
            f"## {paper} ({reference})",
            markdown_table(headings(), verdict_rows(of)),
            "\n".join(map(_tested, claims)),
        ]
        if rows := evidence_rows(of):
            names = "claim", "effect", "recording", "claimed", *SHOWN[1:], "prompts", "figures"
            parts.append(markdown_table(names, rows))
    return "\n\n".join(parts)


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
    """Replace what stands between the markers of a page, completely or not at all.

    ValueError for a file without the two markers, once each and in order.
    """
    page = path.read_text(encoding="utf-8")
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end) or BEGIN in rest or END in tail:
        raise ValueError(f"{path} has no place for the tables: add the lines {BEGIN} and {END}")
    with replacing(path) as temporary:
        temporary.write_text(f"{head}{BEGIN}\n\n{text}\n\n{END}{tail}", encoding="utf-8")
