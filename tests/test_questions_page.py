"""docs/questions.md: its commands print what the page shows."""

from console_pages import printed, steps
from documents import ROOT, blocks

PAGE = ROOT / "docs" / "questions.md"


def test_page_shows_what_is_printed(tmp_path):
    for block in blocks(PAGE, "console"):
        for words, shown in steps(block):
            assert printed(tmp_path, words, shown) == shown, " ".join(words)


def test_page_answers_ten_questions():
    assert PAGE.read_text(encoding="utf-8").count("\n## ") >= 10
