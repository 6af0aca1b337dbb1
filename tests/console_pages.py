"""Pages of docs/ whose console blocks show commands and what these print.

`python tests/console_pages.py docs/exchange.md` writes today's output into a page.
"""

import re
import shlex
import sys
import tempfile
from pathlib import Path

from documents import ROOT
from shell import command

REST = "..."
"""A line that stands for the rest of an output."""


def steps(block):
    """[(command, lines that the page shows behind it)]."""
    lines = block.replace("\\\n", " ").splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith("$ ")]
    ends = [*starts[1:], len(lines)]
    return [(shlex.split(lines[a][2:]), lines[a + 1 : b]) for a, b in zip(starts, ends)]


def output(folder, words):
    """What the command prints: simspec, cat, head -n or head -c.

    A file of the repository is named by its path in it.
    """
    words = [str(ROOT / word) if (ROOT / word).is_file() else word for word in words]
    if words[0] == "simspec":
        _, out, error = command(folder, *words[1:])
        return out + error
    text = (folder / words[-1]).read_text(encoding="utf-8")
    if words[0] == "cat":
        return text
    assert words[0] == "head"
    count = int(words[2])
    return text[:count] if words[1] == "-c" else "".join(text.splitlines(True)[:count])


def printed(folder, words, shown):
    """The lines that the command prints, as far as the page shows them."""
    lines = [line.rstrip() for line in output(folder, words).splitlines()]
    if shown[-1:] == [REST] and len(lines) >= len(shown):
        return [*lines[: len(shown) - 1], REST]
    return lines


def rewritten(text, folder):
    """The page with today's output in its console blocks."""

    def block(match):
        lines = []
        commands = re.findall(r"^\$ (?:.*\\\n)*.*", match[1], flags=re.M)
        for asked, (words, shown) in zip(commands, steps(match[1])):
            lines += [asked, *printed(folder, words, shown)]
        return "\n".join(["```console", *lines, "```"])

    return re.sub(r"```console\n(.*?)```", block, text, flags=re.S)


if __name__ == "__main__":
    page = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as scratch:
        new = rewritten(page.read_text(encoding="utf-8"), Path(scratch))
    page.write_text(new, encoding="utf-8")
