"""docs/questions.md: its commands print what the page shows."""

import re

import pytest
from console_pages import printed, steps
from documents import ROOT, blocks

pytestmark = pytest.mark.docs

PAGE = ROOT / "docs" / "questions.md"
SECTIONS = PAGE.read_text(encoding="utf-8").split("\n## ")[1:]


def test_page_shows_what_is_printed(tmp_path):
    for block in blocks(PAGE, "console"):
        for words, shown in steps(block):
            assert printed(tmp_path, words, shown) == shown, " ".join(words)


def test_page_answers_ten_questions():
    assert len(SECTIONS) >= 10


@pytest.mark.parametrize("section", SECTIONS, ids=lambda text: text.partition("\n")[0])
def test_each_question_has_a_line_a_command_and_its_output(section):
    title, _, text = section.partition("\n")
    found = re.findall(r"^```console\n(.*?)^```", text, re.S | re.M)
    assert title.strip().endswith("?")
    assert text.strip().partition("```")[0].strip()
    assert any(words[0] == "simspec" and shown for block in found for words, shown in steps(block))
