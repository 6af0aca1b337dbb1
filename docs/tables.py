"""Tables of documents that a command prints, each behind a comment with its command.

    <!-- table: simspec policies --markdown -->          all, with its notes
    <!-- table: simspec policies --markdown; rows -->    all rows, without notes
    <!-- table: simspec policies --markdown; 3 rows -->  three of each table

`python docs/tables.py` compares pages with what their commands print, `--write` writes it into
them. Names of pages select pages.
"""

import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(
    r"(<!-- table: simspec ([^\n;]+?)(?:; (?:(\d+) )?(rows))? -->\n\n)"
    r"(.*?)\n*(<!-- table: end -->)",
    re.S,
)


def commands(page: Path) -> list[str]:
    """The commands of a page's tables, without `simspec`."""
    return [found[2] for found in BLOCK.finditer(page.read_text(encoding="utf-8"))]


def printed(command: str) -> str:
    """What `simspec COMMAND` prints from the checkout, stripped."""
    words = [sys.executable, "-m", "simspec.cli", *shlex.split(command)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=True)
    return done.stdout.strip()


def rows(text: str, most: int | None = None) -> str:
    """The tables of Markdown text with their titles, without notes, `most` rows of each."""
    kept: list[str] = []
    for part in re.split(r"\n{2,}", text):
        lines = part.splitlines()
        if lines[0].startswith("|") and most != 0:
            kept.append("\n".join(lines if most is None else lines[: 2 + most]))
        elif re.match(r"\*\*|#", lines[0]) and most != 0:
            kept.append(part)
    return "\n\n".join(kept)


def snapshot(found: re.Match[str], text: str) -> str:
    """What a page keeps of `text`, the output of the command of its block."""
    if not found[4]:
        return text
    return rows(text, int(found[3]) if found[3] else None)


def renewed(text: str) -> str:
    """The page with the tables of today."""
    return BLOCK.sub(
        lambda found: (
            f"{found[1]}{snapshot(found, printed(found[2]))}".rstrip("\n") + f"\n\n{found[6]}"
        ),
        text,
    )


def main(arguments: list[str]) -> int:
    """Compare or write; 1 where a page differs."""
    names = [name for name in arguments if not name.startswith("--")]
    pages = [Path(name) for name in names] or sorted((ROOT / "docs").glob("*.md"))
    differ = 0
    for page in pages:
        text = page.read_text(encoding="utf-8")
        today = renewed(text)
        if today != text and "--write" in arguments:
            page.write_text(today, encoding="utf-8")
        elif today != text:
            print(f"{page} differs from what its commands print: run with --write")
            differ = 1
    return differ


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
