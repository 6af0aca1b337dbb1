"""docs/exporting.md: its commands print what the page shows."""

import re
from itertools import groupby

import pytest
from console_pages import output, printed, steps
from documents import ROOT, blocks

from simspec.engines.formats import EXPORTS

pytestmark = pytest.mark.docs

PAGE = ROOT / "docs" / "exporting.md"
EXAMPLES = blocks(PAGE, "console")


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_page_shows_what_is_printed(tmp_path, number):
    for words, shown in steps(EXAMPLES[number]):
        assert printed(tmp_path, words, shown) == shown, " ".join(words)


def test_page_shows_every_format():
    shown = [words[2] for block in EXAMPLES for words, _ in steps(block) if words[0] == "simspec"]
    assert [name for name, _ in groupby(sorted(shown))] == sorted(EXPORTS)


def test_page_names_every_format_in_its_table():
    named = re.findall(r"`([a-z-]+)`", PAGE.read_text(encoding="utf-8"))
    assert set(EXPORTS) <= set(named)


def test_control_another_output_is_noticed(tmp_path):
    ((words, shown), *_) = steps(EXAMPLES[0])
    assert output(tmp_path, [*words[:3], "tiny-eagle-greedy", *words[4:]]).splitlines() != shown
