"""Numbers of the house: python tools/house.py [CHECKOUT] [--json]

Modules and lines of simspec and real, lines of code (without docstrings, comments and blanks),
import lines, files beside rooms, layers, words of the documents, and lines of tests and tools.
"""

import argparse
import ast
import io
import json
import re
import tokenize
import tomllib
from pathlib import Path

PROGRAM = ("simspec", "real")
NOT_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)


def docstring_lines(tree: ast.Module) -> set[int]:
    """Lines of docstrings, and of the strings that describe constants."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        value = getattr(node, "value", None)
        text = value.value if isinstance(value, ast.Constant) else None
        if isinstance(node, ast.Expr) and isinstance(text, str):
            lines |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


def code_lines(text: str) -> int:
    """Lines that hold code."""
    held: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NOT_CODE and token.type != tokenize.ENDMARKER:
            held |= set(range(token.start[0], token.end[0] + 1))
    return len(held - docstring_lines(ast.parse(text)))


def sources(root: Path, *folders: str) -> dict[Path, str]:
    """{file: text} of the Python files below these folders."""
    files = (path for name in folders for path in sorted((root / name).rglob("*.py")))
    return {path: path.read_text(encoding="utf-8") for path in files}


def import_lines(text: str) -> int:
    """Lines of import statements, at any depth."""
    return sum(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
    )


def floors(root: Path) -> dict[str, tuple[int, int]]:
    """{package: (layers of its contract, names in them)}."""
    config = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = config["tool"]["importlinter"]["contracts"]
    return {
        contract["containers"][0]: (
            len(contract["layers"]),
            sum(len(re.findall(r"\w+", layer)) for layer in contract["layers"]),
        )
        for contract in contracts
        if contract["type"] == "layers"
    }


def numbers(root: Path) -> dict[str, object]:
    """{what: how many}."""
    program = sources(root, *PROGRAM)
    folders = "docs", "traces", *PROGRAM
    pages = [*root.glob("*.md"), *(p for name in folders for p in (root / name).rglob("*.md"))]
    words = {str(p.relative_to(root)): len(p.read_text(encoding="utf-8").split()) for p in pages}
    return {
        "modules of simspec and real": len(program),
        "modules of simspec": len(sources(root, "simspec")),
        "lines of program": sum(len(text.splitlines()) for text in program.values()),
        "lines of code": sum(map(code_lines, program.values())),
        "import lines": sum(map(import_lines, program.values())),
        "flat files in simspec": len([*(root / "simspec").glob("*.py")]),
        "floors and names": floors(root),
        "words of README": words["README.md"],
        "words of documents": sum(words.values()),
        "lines of tests": sum(len(t.splitlines()) for t in sources(root, "tests").values()),
        "lines of tools": sum(len(t.splitlines()) for t in sources(root, "tools").values()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--json", action="store_true", dest="as_json")
    options = parser.parse_args()
    found = numbers(options.root)
    if options.as_json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:30} {value}")


if __name__ == "__main__":
    main()
