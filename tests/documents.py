"""The documents of the repository, their examples and the commands that they show."""

import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

from shell import simspec

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = [
    *(ROOT / name for name in ("README.md", "NOTATION.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "traces" / "README.md",
    *sorted((ROOT / "real" / "tiny").glob("*.md")),
]

TABLES = runpy.run_path(str(ROOT / "docs" / "tables.py"))
"""Of the script that renews tables of pages."""


def stale_tables(page: Path, start: str = "") -> list[str]:
    """Commands of a page that begin with `start` and print other tables today than it shows."""
    found = [
        match
        for match in TABLES["BLOCK"].finditer(page.read_text(encoding="utf-8"))
        if match[2].startswith(start)
    ]
    assert found, f"{page.name} has no table of `simspec {start}`"
    return [
        match[2]
        for match in found
        if TABLES["snapshot"](match, printed_by(*shlex.split(match[2]))) != match[5].strip()
    ]


def blocks(page: Path, language: str = "python") -> list[str]:
    """The fenced blocks of that language, in order."""
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.S | re.M)


def output_of(code: str, folder: Path = ROOT) -> str:
    """What the Python code prints; AssertionError with its traceback if it fails."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def printed_by(*arguments: str) -> str:
    """What `simspec ARGUMENTS` prints in the folder of the repository, stripped."""
    out, _ = simspec(*arguments, cwd=ROOT)
    return out.strip()


def command_lines(page: Path) -> list[str]:
    """Each `simspec COMMAND ...` of a page, in backticks or in a fenced block."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    code = [
        line
        for block in re.findall(r"^```\w*\n(.*?)^```", text, re.S | re.M)
        for line in block.split("\n")
    ]
    code += re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M))
    lines = [line.strip().removeprefix("$ ") for line in code]
    return [line for line in lines if re.match(r"simspec [a-z]", line)]


def broken_links(page: Path) -> list[str]:
    """Relative links of a page whose file does not exist."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text)]
    return [
        link
        for link in links
        if link and not re.match(r"[a-z]+:", link) and not (page.parent / link).exists()
    ]
