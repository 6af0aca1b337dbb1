"""The exhibits of real models: their recordings, costs, and the page that shows them."""

import json

import numpy as np
import pytest
from documents import ROOT, TABLES

from simspec import load_trace
from simspec.cost.table import load_cost
from simspec.trace.recordings import cost_beside

FOLDER = ROOT / "traces" / "smollm2"
PAGE = ROOT / "docs" / "smollm2.md"
RULES = "greedy", "coupled", "rejection"
DRAFTERS = "eagle", "early_exit", "glide", "medusa", "model", "prompt_lookup"


def path_of(rule, drafter):
    return FOLDER / rule / f"{drafter}.parquet"


def cost_of(rule, drafter):
    return load_cost(cost_beside(path_of(rule, drafter)))


@pytest.mark.parametrize("rule", RULES)
def test_recordings_hold_one_set_of_texts(rule):
    traces = {drafter: load_trace(path_of(rule, drafter)) for drafter in DRAFTERS}
    first = traces["prompt_lookup"]
    tasks = list(first.meta.tasks)
    counts = {task: tasks.count(task) for task in tasks}
    assert counts == {"chat": 20, "math": 20, "code": 20, "summary": 19, "reading": 18}
    for drafter, trace in traces.items():
        assert trace.meta.drafter == drafter
        assert trace.meta.rule == rule
        assert trace.meta.target.endswith("a672150fb4f9")
        assert trace.meta.chat["template"] == "tokenizer"
        assert set(trace.budget.tolist()) == {128}
        np.testing.assert_array_equal(trace.token, first.token)
        np.testing.assert_array_equal(trace.prompt, first.prompt)


def test_all_costs_are_of_one_sitting():
    origins = [cost_of(rule, drafter).origin for rule in RULES for drafter in DRAFTERS]
    assert all(origin.known for origin in origins)
    assert len({(o.device, o.threads, o.dtype, o.sitting) for o in origins}) == 1
    assert {o.engines["target"] for o in origins} == {"prepacked"}


CARDS = sorted(set((FOLDER / "drafters").glob("*.json")) - {FOLDER / "drafters/self_skip.json"})


@pytest.mark.parametrize("path", CARDS, ids=lambda path: path.stem)
def test_table_of_trained_drafters_is_that_of_their_cards(path):
    card = json.loads(path.read_text())
    figures = card["evaluation"]
    lengths = [
        f"{row['value']:.2f} [{row['low']:.2f}, {row['high']:.2f}]"
        for row in (figures["trained"]["accepted_length"], figures["beats_trigram"])
    ]
    trained = f"{card['parameters']['trained'] / 1e6:.1f} M"
    cells = f"`{path.stem}`", str(card["steps"]), f"{card['tokens']:,}", trained, *lengths
    assert f"| {' | '.join(cells)} |" in PAGE.read_text(encoding="utf-8")
    assert figures["beats_untrained"]["longer"]
    assert figures["beats_untrained"]["low"] > 0
    assert figures["untrained"]["accepted_length"]["value"] <= 0.03
    assert "Untrained, each accepts 0.03 at most." in PAGE.read_text(encoding="utf-8")


@pytest.mark.docs
def test_table_of_drafters_has_all_of_a_rule():
    files = " ".join(str(path_of("greedy", drafter).relative_to(ROOT)) for drafter in DRAFTERS)
    assert f"sweep --report drafters {files} --markdown" in TABLES["commands"](PAGE)
