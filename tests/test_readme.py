"""The README: its examples run, its figures are those of docs/engines.md, its commands exist."""

import re

import pytest
from documents import README, ROOT, blocks, output_of

pytestmark = pytest.mark.docs

BLOCKS = blocks(README)
TEXT = README.read_text(encoding="utf-8")


def test_first_example_has_at_most_twelve_lines():
    assert len([line for line in BLOCKS[0].splitlines() if line.strip()]) <= 12


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_readme_examples_run(number):
    assert output_of(BLOCKS[number]).strip()


def test_first_example_prints_the_output_shown():
    assert output_of(BLOCKS[0]) == blocks(README, "text")[0]


def test_readme_opens_with_install_commands_and_a_picture():
    head = TEXT[:2500]
    assert head.index("pip install") < head.index("make demo") < head.index("make test")
    picture = re.search(r"!\[[^\]]+\]\(([^)]+)\)", head)
    assert picture
    assert (ROOT / picture[1]).exists()


def test_readme_has_at_most_1100_words():
    assert 600 <= len(TEXT.split()) <= 1100


def test_readme_results_are_rows_of_the_page_of_engines():
    section = TEXT.partition("## Results")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    results = (ROOT / "docs" / "engines.md").read_text(encoding="utf-8").splitlines()
    assert len(rows) >= 5
    assert set(rows) <= set(results)


def test_control_a_broken_example_is_noticed():
    with pytest.raises(AssertionError, match="NameError"):
        output_of("simspec.load_trace('x')")
