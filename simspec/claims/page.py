"""The verdicts as tables of a page, one paper after another, and the page's renewal."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from simspec.claims.catalogue import REFERENCES
from simspec.claims.evidence import Evidence
from simspec.claims.price import MEASURED, PRICES
from simspec.claims.verdict import HELD, NO_PRICE, UNDECIDED, Verdict
from simspec.files import replacing
from simspec.reports.intervals import interval_text
from simspec.text_table import markdown_table

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
    """One row a claim: number, sentence, place, and the verdicts at each group of prices."""
    rows = []
    for number in dict.fromkeys(v.claim.number for v in verdicts):
        of = {v.price: v for v in verdicts if v.claim.number == number}
        claim = next(iter(of.values())).claim
        if NO_PRICE.name in of:
            cells = [f"{_word(of[NO_PRICE.name])} (no price enters)", "", ""]
        else:
            cells = [_cell([of[p.name] for p in prices if p.name in of]) for _, prices in GROUPS]
        rows.append((str(number), claim.sentence, claim.table, *cells))
    return rows


def _cell(verdicts: Sequence[Verdict]) -> str:
    words = [_word(verdict) for verdict in verdicts]
    if not words:
        return "-"
    return words[0] if len(set(words)) == 1 else " / ".join(words)


def _word(verdict: Verdict) -> str:
    return f"{verdict.verdict}: {verdict.reason}" if verdict.reason else verdict.verdict


def evidence_rows(verdicts: Iterable[Verdict]) -> list[Row]:
    """One row for each piece of evidence at the prices of SHOWN."""
    return [
        (
            str(verdict.claim.number),
            verdict.price,
            e.part,
            e.source.name + ("" if e.source.counted else " (repetitive, not counted)"),
            interval_text(e.interval, "+.3f"),
            _bounds(e),
            str(e.interval.prompts),
            ", ".join(f"{name} {value:.2f}" for name, value in e.figures.items()),
        )
        for verdict in verdicts
        if verdict.price in SHOWN
        for e in verdict.evidence
    ]


def _bounds(evidence: Evidence) -> str:
    low, high = evidence.bounds
    return f"above {low:g}" if high == float("inf") else f"{low:g} to {high:g}"


def markdown(verdicts: Sequence[Verdict]) -> str:
    """For each paper the verdicts on its claims, how each was tested, and the evidence."""
    parts = [summary(verdicts)]
    for paper, reference in REFERENCES.items():
        of = [verdict for verdict in verdicts if verdict.claim.paper == paper]
        if not of:
            continue
        claims = list(dict.fromkeys(verdict.claim for verdict in of))
        parts += [
            f"## {paper} ({reference})",
            markdown_table(headings(), verdict_rows(of)),
            "\n".join(f"- {claim.number}: {claim.detail}" for claim in claims),
        ]
        if rows := evidence_rows(of):
            names = "claim", "price", "effect", "recording", "value [95%]", "claimed"
            parts.append(markdown_table((*names, "prompts", "figures"), rows))
    return "\n\n".join(parts)


def summary(verdicts: Sequence[Verdict]) -> str:
    """How many claims held at some price, at all prices, and how many are undecided at all."""
    by_claim: dict[int, list[str]] = {}
    for verdict in verdicts:
        by_claim.setdefault(verdict.claim.number, []).append(verdict.verdict)
    words = list(by_claim.values())
    everywhere = sum(all(word == HELD for word in of) for of in words)
    somewhere = sum(HELD in of for of in words)
    never = sum(all(word not in (HELD, UNDECIDED) for word in of) for of in words)
    undecided = sum(all(word == UNDECIDED for word in of) for of in words)
    return (
        f"Of {len(words)} claims {everywhere} held at every price and {somewhere} at one at least; "
        f"{never} did not hold at any price; {undecided} are undecided at every price."
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
