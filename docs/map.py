"""Writes docs/architecture.md's table of rooms and docs/architecture.svg from the code itself.

`python docs/map.py` compares, `python docs/map.py --write` writes.
"""

import ast
import re
import sys
import tomllib
from html import escape
from pathlib import Path

ROOT = Path(__file__).parent.parent
BEGIN, END = "<!-- map: begin, written by docs/map.py -->", "<!-- map: end -->"


def modules(root: Path) -> dict[str, list[str]]:
    """Package -> its modules, both dotted; simspec first, a package before its modules."""
    packages: dict[str, list[str]] = {}
    for top in ("simspec", "real"):
        for path in sorted((root / top).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            if parts[-1] == "__init__":
                parts = parts[:-1]
            package = parts if path.stem == "__init__" else parts[:-1]
            packages.setdefault(".".join(package), []).append(".".join(parts))
    return {package: sorted(names) for package, names in sorted(packages.items(), key=_order)}


def _order(item):
    return item[0].split(".")[0] != "simspec", item[0]


def summary(root: Path, module: str) -> str:
    """First sentence of the module's docstring, fit for a cell of a table."""
    path = root.joinpath(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    sentence = re.split(r"(?<=[.!?:])\s+(?=[A-Z`])", " ".join(text.split("\n\n")[0].split()))[0]
    return sentence.rstrip(":").replace("|", "\\|")


def rooms(root: Path) -> dict[str, str]:
    """{package: first sentence of its docstring}, simspec first."""
    return {package: summary(root, package) for package in modules(root)}


def table(root: Path) -> str:
    """The rooms as a table."""
    lines = ["| room | what it holds |", "| --- | --- |"]
    return (
        "\n".join([*lines, *(f"| `{name}` | {text} |" for name, text in rooms(root).items())])
        + "\n"
    )


def layers(root: Path) -> dict[str, list[list[str]]]:
    """Top package -> its layers from the top down, as in the contracts of pyproject.toml."""
    config = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = config["tool"]["importlinter"]["contracts"]
    return {
        contract["containers"][0]: [re.split(r"\s*[|:]\s*", layer) for layer in contract["layers"]]
        for contract in contracts
        if contract["type"] == "layers"
    }


WIDTH, PANEL, MARGIN, ROW, GAP = 960, 455, 14, 28, 8
MOST = 4  # boxes side by side; a layer of more takes several lines
FLOW = (
    ("prompts", "your text"),
    ("record", "torch, once"),
    ("recording", "Parquet file"),
    ("replay", "numba, all policies"),
    ("policy", "best at your costs"),
    ("run", "same rounds, for real"),
)
STYLE = (
    "text{font:13px Helvetica,Arial,sans-serif;text-anchor:middle;fill:#1a202c}"
    ".title{font-size:15px;font-weight:bold}.note{font-size:11px}"
    "rect{rx:5px;stroke:#4a5568;fill:#f7fafc}rect.page{rx:0;stroke:none;fill:#fff}"
    "rect.simspec{fill:#eef4fb;stroke:#2b6cb0}rect.real{fill:#fdf3e7;stroke:#b7791f}"
    "path{fill:none;stroke:#4a5568;stroke-width:1.5}"
)


def picture(root: Path) -> str:
    """The architecture as SVG: the data flow above, the layers of both packages below."""
    shapes, top = [], 92
    step = (WIDTH - 2 * MARGIN + 22) / len(FLOW)
    for i, (title, note) in enumerate(FLOW):
        x = MARGIN + i * step
        shapes.append(_box(x, MARGIN, step - 22, 48, "flow"))
        shapes.append(_text(x + (step - 22) / 2, MARGIN + 20, title, "title"))
        shapes.append(_text(x + (step - 22) / 2, MARGIN + 38, note, "note"))
        if i:
            shapes.append(_arrow(x - 20, MARGIN + 24, x - 4))
    bottoms = []
    for column, (package, rows) in enumerate(layers(root).items()):
        left = MARGIN + column * (WIDTH - 2 * MARGIN - PANEL)
        note = "numpy and numba" if package == "simspec" else "torch"
        shapes.append(_text(left + PANEL / 2, top + 8, f"{package}/  ({note})", "title"))
        y = top + 20
        for row in rows:
            lines = -(-len(row) // MOST)
            each = -(-len(row) // lines)
            for start in range(0, len(row), each):
                names = row[start : start + each]
                width = (PANEL - GAP * (len(names) - 1)) / len(names)
                for i, name in enumerate(names):
                    x = left + i * (width + GAP)
                    shapes.append(_box(x, y, width, ROW, package))
                    shapes.append(_text(x + width / 2, y + 19, name))
                y += ROW + 4
            y += 6
        bottoms.append(y)
    foot = max(bottoms) + 14
    note = "A layer imports layers below it only; real imports simspec, never the other way."
    shapes.append(_text(WIDTH / 2, foot, note))
    height = foot + 14
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" role="img">\n'
        "<title>simspec: the data flow, and the layers of both packages</title>\n"
        f"<style>{STYLE}</style>\n"
        f'<rect class="page" width="{WIDTH}" height="{height}"/>\n'
        + "\n".join(shapes)
        + "\n</svg>\n"
    )


def _box(x, y, width, height, kind):
    return f'<rect class="{kind}" x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="{height}"/>'


def _text(x, y, words, kind=""):
    kind = f' class="{kind}"' if kind else ""
    return f'<text{kind} x="{x:.0f}" y="{y:.0f}">{escape(words)}</text>'


def _arrow(x, y, to):
    return f'<path d="M{x:.0f} {y:.0f}H{to:.0f}m-6-4l6 4-6 4"/>'


def written(root: Path) -> dict[Path, str]:
    """Each file that this script writes, as the code of today wants it."""
    page = root / "docs" / "architecture.md"
    head, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    tail = rest.partition(END)[2]
    return {
        page: f"{head}{BEGIN}\n\n{table(root)}\n{END}{tail}",
        root / "docs" / "architecture.svg": picture(root),
    }


def main(arguments: list[str]) -> int:
    stale = [
        path
        for path, text in written(ROOT).items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    for path in stale:
        if "--write" in arguments:
            path.write_text(written(ROOT)[path], encoding="utf-8")
        print(path.relative_to(ROOT), "written" if "--write" in arguments else "is stale: --write")
    return int(bool(stale) and "--write" not in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
