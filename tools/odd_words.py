"""Phrases that a plain word replaces: python tools/odd_words.py [PATH ...] [--show]

Counts them by room in documents, and in the docstrings, messages, help texts and comments of Python
files, with docstrings that open with What, Where or As. `--show` prints every place.
"""

import argparse
import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PHRASES = (
    r"so (many|much)", r"besides?", r"behind", r"stands?", r"of (its|their|his|our|one's) own",
    r"whom", r"hardly", r"the way of", r"as it always did", r"stand-ins?",
)  # fmt: skip
"""Regular expressions, each a whole word or phrase."""
ODD = re.compile(rf"\b({'|'.join(PHRASES)})\b", re.I)
OPENING = re.compile(r"\s*(What|Where|As)\b")
OPENING_PHRASE = "opening"
"""Under which a docstring's first word is counted."""
DOCUMENTS = ("*.md", "docs/*.md", "traces/*.md", "real/tiny/*.md")
PROGRAM = ("simspec", "real")

Place = tuple[Path, int, str]


def in_text(path: Path, text: str, first: int = 1) -> Iterator[Place]:
    """(file, line, phrase) of odd phrases outside backticks; the text starts at line `first`."""
    plain = re.sub(r"`[^`\n]*`", lambda name: "`" * len(name[0]), text)
    for found in ODD.finditer(re.sub(r"\s", " ", plain)):
        yield path, first + text.count("\n", 0, found.start()), found[0].lower()


def in_document(path: Path) -> list[Place]:
    """Of a Markdown page, without its fenced blocks and the tables that commands print."""
    text = re.sub(
        r"^```.*?^```|<!-- table: .*?<!-- table: end -->",
        lambda block: "\n" * block[0].count("\n"),
        path.read_text(encoding="utf-8"),
        flags=re.S | re.M,
    )
    return list(in_text(path, text))


def in_program(path: Path) -> list[Place]:
    """Of the strings and comments of a Python file."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    found: list[Place] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found += in_text(path, node.value, node.lineno)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            opening = OPENING.match(ast.get_docstring(node) or "")
            if opening:
                line = getattr(node, "lineno", 1)
                found.append((path, line, OPENING_PHRASE))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            found += in_text(path, token.string, token.start[0])
    return found


def places(paths: list[Path]) -> list[Place]:
    """Of pages and Python files, and of all of them below folders."""
    found: list[Place] = []
    for path in paths:
        below = sorted(path.rglob("*.py")) if path.is_dir() else [path]
        for file in below:
            found += in_document(file) if file.suffix == ".md" else in_program(file)
    return found


def everything(root: Path = ROOT) -> list[Path]:
    """All documents, and the packages."""
    pages = [page for pattern in DOCUMENTS for page in sorted(root.glob(pattern))]
    return [*pages, *(root / name for name in PROGRAM)]


def room(path: Path) -> str:
    """The first two folders of a Python file, or the page."""
    parts = path.resolve().relative_to(ROOT).parts
    return "/".join(parts[:2]) if path.suffix == ".py" else "/".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("paths", nargs="*", type=Path, help="pages, Python files or folders")
    parser.add_argument("--show", action="store_true", help="every place")
    options = parser.parse_args()
    found = places(options.paths or everything())
    if options.show:
        for path, line, phrase in found:
            print(f"{path}:{line}: {phrase}")
    counts = Counter(room(path) for path, _, _ in found)
    for name, count in sorted(counts.items(), key=lambda item: -item[1]):
        print(f"{count:5} {name}")
    print(f"{sum(counts.values()):5} in all")


if __name__ == "__main__":
    main()
