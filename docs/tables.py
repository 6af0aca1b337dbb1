"""Tables of documents that a command prints, each behind a comment with its command.

`python docs/tables.py` compares, `python docs/tables.py --write` writes; with names of pages, those
pages alone.
"""

import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"(<!-- table: simspec ([^\n]+) -->\n\n)(.*?)\n*(<!-- table: end -->)", re.S)


def commands(page: Path) -> list[str]:
    """The commands of a page's tables, without `simspec`."""
    return [command for _, command, *_ in BLOCK.findall(page.read_text(encoding="utf-8"))]


def printed(command: str) -> str:
    """What `simspec COMMAND` prints from the checkout, stripped."""
    words = [sys.executable, "-m", "simspec.cli", *shlex.split(command)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=True)
    return done.stdout.strip()


def renewed(text: str) -> str:
    """The page with the tables of today."""
    return BLOCK.sub(lambda found: found[1] + printed(found[2]) + "\n\n" + found[4], text)


def main(arguments: list[str]) -> int:
    """Compare or write; 1 where a page differs."""
    names = [name for name in arguments if name != "--write"]
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
