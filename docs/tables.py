"""Tables of documents that a command prints, each behind a comment with its command.

A page keeps all of a table, or its first rows; the site has all of it:

    <!-- table: simspec score tiny-model-greedy --markdown -->          all, with its notes
    <!-- table: simspec score tiny-model-greedy --markdown; rows -->    all rows, without notes
    <!-- table: simspec score tiny-model-greedy --markdown; 3 rows -->  three of each table

`python docs/tables.py` compares pages with what their commands print, `--write` writes it into
them, `--build` keeps whole outputs in out/tables for the site. Names of pages select pages.
"""

import hashlib
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
BUILT = ROOT / "out" / "tables"
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


@cache
def fingerprint() -> str:
    """SHA-256 of the code of simspec and of the names and sizes of all recordings."""
    digest = hashlib.sha256()
    for path in sorted((ROOT / "simspec").rglob("*.py")):
        digest.update(path.read_bytes())
    for path in sorted((ROOT / "traces").rglob("*")):
        digest.update(f"{path.relative_to(ROOT)}:{path.stat().st_size}".encode())
    return digest.hexdigest()


def built(command: str) -> Path:
    """The file that `--build` writes for a command."""
    return BUILT / f"{hashlib.sha256(command.encode()).hexdigest()[:16]}.md"


def _later(command: str) -> tuple[bool, str]:
    """Sorts the commands that take minutes first, so that none of them ends alone."""
    return command.split()[0] != "report", command


def build(pages: list[Path]) -> None:
    """Keeps the whole output of every command whose page holds a part of it."""
    BUILT.mkdir(parents=True, exist_ok=True)
    head = f"<!-- {fingerprint()} -->\n\n"
    wanted = {
        found[2]
        for page in pages
        for found in BLOCK.finditer(page.read_text(encoding="utf-8"))
        if found[4]
    }

    def keep(command: str) -> None:
        path = built(command)
        if not (path.exists() and path.read_text("utf-8").startswith(head)):
            print(f"simspec {command}", file=sys.stderr)
            path.write_text(f"{head}{printed(command)}\n", encoding="utf-8")

    with ThreadPoolExecutor(2) as pool:  # as many as the suite's workers
        list(pool.map(keep, sorted(wanted, key=_later)))


def whole(text: str) -> str:
    """The page with whole outputs where `--build` has kept them, for the site."""

    def replace(found: re.Match[str]) -> str:
        path = built(found[2])
        if not found[4] or not path.exists():
            return found[0]
        return f"{found[1]}{path.read_text('utf-8').partition(' -->')[2].strip()}\n\n{found[6]}"

    return BLOCK.sub(replace, text)


def main(arguments: list[str]) -> int:
    """Compare, write or build; 1 where a page differs."""
    names = [name for name in arguments if not name.startswith("--")]
    pages = [Path(name) for name in names] or sorted((ROOT / "docs").glob("*.md"))
    if "--build" in arguments:
        build(pages)
        return 0
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
