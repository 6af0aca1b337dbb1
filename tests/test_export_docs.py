"""docs/exporting.md: its commands print what the page shows."""

import re
import shlex
from itertools import groupby

import pytest
from documents import ROOT, blocks
from shell import command

from simspec.exports.formats import FORMATS

PAGE = ROOT / "docs" / "exporting.md"
EXAMPLES = blocks(PAGE, "console")


def steps(block):
    """[(command, lines that the page shows behind it)]."""
    lines = block.replace("\\\n", " ").splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith("$ ")]
    ends = [*starts[1:], len(lines)]
    return [(shlex.split(lines[a][2:]), lines[a + 1 : b]) for a, b in zip(starts, ends)]


def output(folder, words):
    """What the command prints: simspec, cat, head -n or head -c."""
    if words[0] == "simspec":
        _, out, error = command(folder, *words[1:])
        return out + error
    text = (folder / words[-1]).read_text(encoding="utf-8")
    if words[0] == "cat":
        return text
    assert words[0] == "head"
    count = int(words[2])
    return text[:count] if words[1] == "-c" else "".join(text.splitlines(True)[:count])


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_page_shows_what_is_printed(tmp_path, number):
    for words, shown in steps(EXAMPLES[number]):
        assert output(tmp_path, words).splitlines() == shown, " ".join(words)


def test_page_shows_every_format():
    shown = [words[2] for block in EXAMPLES for words, _ in steps(block) if words[0] == "simspec"]
    assert [name for name, _ in groupby(sorted(shown))] == sorted(FORMATS)


def test_page_names_every_format_in_its_table():
    named = re.findall(r"`([a-z-]+)`", PAGE.read_text(encoding="utf-8"))
    assert set(FORMATS) <= set(named)


def test_control_another_output_is_noticed(tmp_path):
    ((words, shown), *_) = steps(EXAMPLES[0])
    assert output(tmp_path, [*words[:3], "tiny-hydra-coupled", *words[4:]]).splitlines() != shown
