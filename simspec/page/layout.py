"""HTML of the page: escaped text, tables and sections, one style sheet, no outer reference."""

from collections.abc import Iterable, Sequence

from simspec.output.names import html_text

STYLE = """
:root { --paper: #ffffff; --ink: #1b1f24; --quiet: #6b7480; --band: #e4e8ee; --rule: #d6dbe1;
  --accent: #0b6e99; --second: #b3541e; --third: #4c7a34; --fourth: #7a4fa3; --code: #f4f6f8; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #14171b; --ink: #e6e9ed; --quiet: #98a2ae; --band: #2b323b; --rule: #343c46;
    --accent: #5cb8e0; --second: #f0965a; --third: #93c47a; --fourth: #c09be6; --code: #1d2228; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); line-height: 1.5;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 24px 20px 64px; }
h1 { font-size: 1.7rem; margin: 0 0 4px; } h2 { font-size: 1.25rem; margin: 44px 0 8px; }
h3 { font-size: 1rem; margin: 20px 0 4px; } p { margin: 6px 0; max-width: 76ch; }
.quiet { color: var(--quiet); font-size: .9rem; }
.advice { border-left: 4px solid var(--accent); padding: 4px 16px; margin: 16px 0; }
.advice strong { font-size: 1.1rem; }
.charts { display: grid; gap: 12px 28px;
  grid-template-columns: repeat(auto-fill, minmax(min(310px, 100%), 1fr)); }
.charts figure { margin: 8px 0; min-width: 0; }
figcaption { font-weight: 600; font-size: .95rem; }
svg { width: 100%; height: auto; display: block; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; margin: 8px 0; }
th, td { text-align: left; padding: 4px 14px 4px 0; border-bottom: 1px solid var(--rule);
  white-space: nowrap; } td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
pre { background: var(--code); padding: 10px 12px; white-space: pre-wrap; font-size: .85rem;
  overflow-wrap: anywhere; border-radius: 6px; margin: 4px 0 12px; }
a { color: var(--accent); }
details > summary { cursor: pointer; }
"""


def page(title: str, body: Iterable[str]) -> str:
    """The whole document; `body` is HTML already."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f'<link rel="icon" href="data:,">\n<title>{html_text(title)}</title>\n'
        f"<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(body)
        + "\n</main>\n</body>\n</html>\n"
    )


def heading(text: str, level: int = 2, anchor: str = "") -> str:
    """A heading; `anchor` is its id."""
    mark = f' id="{html_text(anchor)}"' if anchor else ""
    return f"<h{level}{mark}>{html_text(text)}</h{level}>"


def paragraph(text: str, quiet: bool = False) -> str:
    """A paragraph of plain text."""
    return f"<p{' class=quiet' if quiet else ''}>{html_text(text)}</p>"


def advice(about: str, sentence: str) -> str:
    """A recommendation: what it is about, and the sentence."""
    return (
        f'<div class="advice"><div class="quiet">{html_text(about)}</div>'
        f"<strong>{html_text(sentence)}</strong></div>"
    )


def charts(items: Iterable[tuple[str, str]]) -> str:
    """(caption, SVG) side by side where the screen is wide."""
    figures = (
        f"<figure><figcaption>{html_text(caption)}</figcaption>{svg}</figure>"
        for caption, svg in items
    )
    return f'<div class="charts">{"".join(figures)}</div>'


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], names: int = 1) -> str:
    """A table that scrolls by itself; the first `names` columns are text, the others numbers."""
    kinds = ["" if i < names else " class=n" for i in range(len(headings))]
    head = "".join(f"<th{kind}>{html_text(cell)}</th>" for kind, cell in zip(kinds, headings))
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{html_text(c)}</td>" for kind, c in zip(kinds, row)) + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'


def code(text: str) -> str:
    """Text that is copied as it is."""
    return f"<pre>{html_text(text)}</pre>"


def folded(title: str, body: Iterable[str]) -> str:
    """A part that opens on a click."""
    return f"<details><summary>{html_text(title)}</summary>{''.join(body)}</details>"
