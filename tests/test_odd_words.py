"""The language of documents and docstrings: phrases that a plain word replaces do not return."""

import runpy

import pytest
from documents import ROOT

ODD = runpy.run_path(str(ROOT / "tools" / "odd_words.py"))
CLEAN = (
    "simspec/cost", "simspec/numerics", "simspec/output", "simspec/policies", "simspec/policy",
    "simspec/replay", "simspec/trace", "simspec/tree", "real/draft", "real/drafters",
    "real/prompts", "real/cli", "real/audit", "real/bench", "real/campaign", "real/decode",
    "real/jobs", "real/model", "real/record", "simspec/evaluate", "simspec/page",
    "simspec/published", "simspec/validation",
)  # fmt: skip
"""Rooms without odd phrases; add a room once it has none."""


def test_documents_hold_none():
    pages = [path for path in ODD["everything"]() if path.suffix == ".md"]
    assert len(pages) >= 30
    assert ODD["places"](pages) == []


@pytest.mark.parametrize("room", CLEAN)
def test_clean_rooms_hold_none(room):
    assert ODD["places"]([ROOT / room]) == []


def test_control_each_kind_of_place_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("It is so\nmany.\n\n```\nbehind\n```\n\nA head of its own; a beside.\n")
    assert [(line, phrase) for _, line, phrase in ODD["places"]([page])] == [
        (1, "so many"), (8, "of its own"), (8, "beside"),
    ]  # fmt: skip
    (tmp_path / "room").mkdir()
    module = tmp_path / "room" / "module.py"
    module.write_text(
        '"""What it holds."""\n\nbehind = 1  # stands\n\n\n'
        'def f():\n    """Fine."""\n    raise ValueError(f"{behind} beside it")\n'
    )
    found = {(line, phrase) for _, line, phrase in ODD["places"]([tmp_path / "room"])}
    assert found == {(1, "opening"), (3, "stands"), (8, "beside")}
