"""The tables of docs/results.md are what the commands print today."""

import pytest
from documents import ROOT, printed_by

pytestmark = pytest.mark.docs

RESULTS = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")


def test_policies_table_is_current():
    names = [
        f"tiny-{drafter}-{rule}"
        for drafter in ("early_exit", "model")
        for rule in ("coupled", "greedy")
    ]
    assert printed_by("score", *names, "--markdown") in RESULTS


def test_drafters_table_is_current():
    printed = printed_by("drafters", "--markdown")
    assert printed.count("\n") == 17
    assert printed in RESULTS


def test_trees_tables_are_current():
    names = ["tiny-eagle-coupled", "tiny-eagle-greedy", "--nodes", "8", "--nodes", "16"]
    printed = printed_by("trees", *names, "--markdown")
    assert printed.count("| beams |") == 2
    assert printed in RESULTS
