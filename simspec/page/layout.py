"""HTML of the page: escaped text, tables and sections, one style sheet, no outer reference."""

import io
import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simspec.numerics.stats import Estimate
from simspec.output.names import html_text, label_text
from simspec.reports.speedup_curve import Point

STYLE = """
:root { --paper: #ffffff; --ink: #1b1f24; --quiet: #6b7480; --band: #e4e8ee; --rule: #d6dbe1;
  --accent: #0b6e99; --second: #b3541e; --third: #4c7a34; --fourth: #7a4fa3; --code: #f4f6f8; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #14171b; --ink: #e6e9ed; --quiet: #98a2ae; --band: #2b323b; --rule: #343c46;
    --accent: #5cb8e0; --second: #f0965a; --third: #93c47a; --fourth: #c09be6; --code: #1d2228; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); overflow-wrap: break-word;
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


def code(text: str) -> str:
    """Text that is copied as it is."""
    return f"<pre>{html_text(text)}</pre>"


def folded(title: str, body: Iterable[str]) -> str:
    """A part that opens on a click."""
    return f"<details><summary>{html_text(title)}</summary>{''.join(body)}</details>"


COLORS = {
    "#010101": "var(--ink)",
    "#020202": "var(--quiet)",
    "#030303": "var(--band)",
    "#040404": "var(--accent)",
    "#050505": "var(--second)",
    "#060606": "var(--third)",
    "#070707": "var(--fourth)",
}
"""Colors that matplotlib draws with, and the variable that replaces each on the page."""

INK, QUIET, BAND, ACCENT, SECOND, THIRD, FOURTH = COLORS
WIDTH = 4.4
"""Inches of a chart: its text keeps its size on a phone."""


def curve_chart(curve: Sequence[Point], oracle: Point, best_k: int) -> str:
    """Speedup of fixed lengths with its band; the best length and the oracle are marked."""

    def draw(axes: Any) -> None:
        lengths = [point.K for point in curve]
        speedups = [point.speedup for point in curve]
        axes.fill_between(
            lengths, [s.low for s in speedups], [s.high for s in speedups], color=BAND, lw=0
        )
        axes.plot(lengths, [s.value for s in speedups], "-", color=INK, lw=1.4)
        axes.plot([best_k], [speedups[best_k].value], "o", color=ACCENT, ms=7)
        axes.axhline(oracle.speedup.value, color=SECOND, lw=1.2, ls="--")
        axes.annotate(
            "oracle", (lengths[-1], oracle.speedup.value), color=SECOND, ha="right", va="bottom"
        )
        axes.axhline(1, color=QUIET, lw=0.8, ls=":")
        axes.set(xlabel="draft length K", ylabel="speedup over plain decoding")
        axes.xaxis.get_major_locator().set_params(integer=True)

    return svg(draw, 3.1)


def policy_chart(points: Sequence[tuple[str, Estimate, str]]) -> str:
    """(label, speedup, kind) from the top down, as points with intervals.

    kind: best (the best fixed length), policy or oracle.
    """
    colors = {"best": ACCENT, "policy": INK, "oracle": SECOND}

    def draw(axes: Any) -> None:
        for at, (_, speedup, kind) in enumerate(points):
            axes.plot([speedup.low, speedup.high], [at, at], color=colors[kind], lw=1.4)
            axes.plot([speedup.value], [at], "o", color=colors[kind], ms=5)
        axes.axvline(1, color=QUIET, lw=0.8, ls=":")
        axes.set_yticks(range(len(points)), [label_text(label) for label, _, _ in points])
        axes.invert_yaxis()
        axes.set(xlabel="speedup over plain decoding")

    return svg(draw, 0.9 + 0.22 * len(points))


def depth_chart(acceptance: NDArray[np.float64]) -> str:
    """Acceptance of the drafted token at each depth, given that all before it were accepted."""

    def draw(axes: Any) -> None:
        axes.bar(np.arange(1, len(acceptance) + 1), np.nan_to_num(acceptance), color=ACCENT)
        axes.set(xlabel="depth of the drafted token", ylabel="accepted, given those before")
        axes.set_ylim(0, 1)
        axes.xaxis.get_major_locator().set_params(integer=True)

    return svg(draw, 2.6)


def calibration_chart(table: NDArray[np.float64]) -> str:
    """Share accepted against the drafter's confidence; on the diagonal both agree."""

    def draw(axes: Any) -> None:
        axes.plot([0, 1], [0, 1], color=QUIET, lw=0.8, ls=":")
        axes.plot(table[:, 1], table[:, 2], "o-", color=ACCENT, ms=4, lw=1.4)
        axes.set(xlabel="confidence of the drafter", ylabel="share accepted")
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1)

    return svg(draw, 2.6)


def svg(draw: Callable[[Any], None], height: float) -> str:
    """The drawing as an `<svg>` element without size, script or outer reference."""
    import matplotlib
    from matplotlib.figure import Figure

    style: Any = {
        "svg.fonttype": "none", "svg.hashsalt": "simspec", "font.size": 9, "text.color": INK,
        "font.family": "sans-serif", "axes.edgecolor": QUIET, "axes.labelcolor": INK,
        "xtick.color": QUIET, "ytick.color": QUIET, "xtick.labelcolor": INK,
        "ytick.labelcolor": INK, "axes.spines.top": False, "axes.spines.right": False,
    }  # fmt: skip
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(WIDTH, height), dpi=72, layout="constrained")
        draw(figure.subplots())
        if (engine := figure.get_layout_engine()) is not None:
            engine.execute(figure)
        figure.set_layout_engine(None)  # savefig would draw a second time for the layout
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return themed(buffer.getvalue())


def themed(text: str) -> str:
    """matplotlib's SVG for use in a page: colors as variables, ids its own, no header, no size."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    text = re.sub(r' (width|height)="[\d.]+pt"', "", text, count=2)
    text = text.replace(' xmlns:xlink="http://www.w3.org/1999/xlink"', "").replace(
        "xlink:href", "href"
    )
    text = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font: \1 sans-serif", text)
    for drawn, variable in COLORS.items():
        text = text.replace(drawn, variable)
    mark = f"c{zlib.crc32(text.encode()):08x}-"  # ids are unique on a page of many charts
    return re.sub(r'((?:id=|href=)"#?|url\(#)', rf"\g<1>{mark}", text)
